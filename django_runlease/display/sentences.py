"""What an operator did to a lease, or is about to do."""

from __future__ import annotations

from ..history import Row
from ..holder import group_of, is_dead
from ..store import Broken
from ..text import printable
from .leases import held_for
from .times import age, moment


def paused(lease: Row) -> str:
    text = f"{printable(lease['name'])}: paused; every claim declines until it is resumed."
    if lease["expires_in"] is not None and lease["expires_in"] > 0:
        text += f" Its holder {printable(lease['holder'])} goes on."
    return text


def resumed(lease: Row, *, was_paused: bool) -> str:
    name = printable(lease["name"])
    text = f"{name}: resumed." if was_paused else f"{name}: it was not paused."
    if lease["due_in"] is not None:
        text += f" The next claim may come in {age(lease['due_in'])}."
    return text


def before_break(lease: Row, *, at_once: bool) -> str:
    """What somebody who is about to break *lease* has to know."""
    name, expires_in = printable(lease["name"]), lease["expires_in"]
    if expires_in is None:
        text = f"{name} is free. A break only lifts its minimum hold."
        if lease["due_in"] is not None:
            text += (
                " If it was broken, the next claim waits for its last holder, which may still be "
                f"running; after another break it comes up to {age(lease['due_in'])} earlier, "
                "beside it."
            )
        return text + _still_paused(lease)
    since = f"held by {printable(lease['holder'])} since {moment(lease['claimed_at'])}"
    if is_dead(lease["host"], lease["holder_process"]):
        when = "Its holder is gone. The next claim may come at once, with or without a break."
        return f"{name} is {since}.\n{when}{_still_paused(lease)}"
    if expires_in <= 0:
        what = f"{name} was {since} and expired {age(expires_in)} ago."
        when = "The next claim may come at once, with or without a break."
        group = group_of(lease["holder_process"])
        if group is not None:
            when = f"Without a break, claims on its host wait for process group {group} to end."
    elif at_once:
        what = f"{name} is {since} ({held_for(lease)})."
        when = "--now gives up exclusion: the next claim may come at once, beside that holder."
    else:
        what = f"{name} is {since} ({held_for(lease)})."
        when = f"The next claim may come in {age(expires_in)}, when the lease would have expired."
    return f"{what}\nIts holder may still be running. {when}{_still_paused(lease)}"


def after_break(lease: Row, broken: Broken, *, at_once: bool, tick_forgotten: bool) -> str:
    """What a break did; *lease* is how it left the lease."""
    name = printable(lease["name"])
    if not broken.was_held:
        text = f"{name}: it was free, so only its minimum hold was lifted."
    else:
        when = "at once, since the lease had expired."
        if at_once:
            when = "at once: exclusion is given up."
        elif lease["due_in"] is not None:
            when = f"in {age(lease['due_in'])}, at {moment(lease['not_before'])}."
        state = "may still be running"
        if broken.is_gone:
            state, when = "is gone", "at once."
        holder = printable(broken.holder)
        text = (
            f"{name}: broken. It was held by {holder}, which {state}.\n"
            f"The next claim may come {when}"
        )
    if tick_forgotten:
        text += " Its last tick may run again."
    return text + _still_paused(lease)


def _still_paused(lease: Row) -> str:
    return " It stays paused until it is resumed." if lease["paused"] else ""
