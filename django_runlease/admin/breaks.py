"""What a break will do, and for what a lease that was broken waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _

from .. import store
from ..holder import can_judge, group_of, is_dead, living_group, what_runs
from . import words


def effects(lease: Any) -> Iterator[object]:
    """In sentences."""
    if lease.token is None:
        yield from _lift_effects(lease)
    elif is_dead(lease.host, lease.holder_process):
        yield format_html(_("{who} held it; its process is gone."), who=words.name(lease.holder))
        yield from _what_is_ended(lease)
        yield _("The next tick may run at once, with or without a break.")
    elif lease.expires_epoch > lease.now:
        yield from _of_living(lease)
        yield from _what_is_ended(lease)
        left = words.age(lease.expires_epoch - lease.now)
        yield _("Without a renewal it expires in %(length)s.") % {"length": left}
    else:
        facts = {
            "who": words.name(lease.holder),
            "ago": words.when(lease.expires_epoch, lease.now),
        }
        yield format_html(_("{who} held it; it expired {ago}."), **facts)
        yield from _what_is_ended(lease)
        yield from _expired_effects(lease)


def why_not_yet(lease: Any) -> str | None:
    """Why a lease that nobody holds cannot be claimed before ``due``; None if it can be."""
    if lease.token is not None or lease.due is None or lease.due <= lease.now:
        return None
    if store.is_after_break(lease.name, lease._state.db):
        return _("it was broken, and its last holder may still be at work")
    return _("its minimum hold lasts until then")


def _of_living(lease: Any) -> Iterator[object]:
    facts = {"who": words.name(lease.holder), "ago": words.when(lease.renewed_epoch, lease.now)}
    yield format_html(_("{who} holds it now, and renewed it {ago}."), **facts)
    if what_runs(lease.holder_process):
        yield _("It is told that it lost the lease, and runjob stops its job.")
    else:
        yield _(
            "It is told that it lost the lease, and goes on until it asks: it holds it in code,"
            " which nothing can stop."
        )


def _what_is_ended(lease: Any) -> Iterator[object]:
    facts = {"old": lease.generation, "new": lease.generation + 1}
    yield (
        _(
            "The generation rises from %(old)s to %(new)s: what the holder writes through a"
            " fence is refused from then on. Other writes of it are not."
        )
        % facts
    )
    yield _("Its run is closed as lost.")


def _expired_effects(lease: Any) -> Iterator[object]:
    """What keeps the next run waiting, judged as far as it can be from here."""
    host, process = lease.host, lease.holder_process
    facts = {"group": group_of(process), "host": words.name(host)}
    if living_group(host, process) is not None:
        program = _("Its program still runs on {host}, as process group {group}.")
    elif facts["group"] is not None and not can_judge(host, process):
        program = _(
            "Its program, process group {group}, may still run on {host}: that cannot be seen"
            " from here."
        )
    else:
        yield _("Since it has expired, no run waits for its holder.")
        return
    yield format_html(program, **facts)
    yield _("Runs on that host wait until it has ended; elsewhere the next may start now.")
    yield _("After this it may start there too, beside that program: two at once.")


def _lift_effects(lease: Any) -> Iterator[object]:
    if not store.is_after_break(lease.name, lease._state.db):
        yield _("Nobody holds it. The next run does not wait for its minimum hold any more.")
        return
    yield _("It was taken from its last holder, which may still be at work: the next run waits.")
    yield _("After this it may start at once, beside that holder: two at once.")
