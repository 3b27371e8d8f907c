"""What an operator does to a lease: break it, pause it, resume it, remove it.

Whatever changes something leaves an ``OperatorAction``, in the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Least

from .. import log
from ..clock import Epoch, Instant, Now
from ..exceptions import RunLeaseError
from ..history import iso
from ..holder import is_dead, living_group
from ..models import ActionKind, Outcome, Run, RunLease
from ..phrases import Phrase
from ..phrases import gettext as _
from ..terms import short
from ..text import check_name, storable
from . import rows, tallying
from .actions import checked_reason, note_action
from .blocking import Blocked, Changed, unless_blocked
from .claims import AFTER_BREAK, true_or_false
from .connection import apart
from .records import Closed
from .runs import BROKEN, close_all, tell_closed


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What a break found and did."""

    was_held: bool
    """Whether anybody held it; if not, only what the next claim waits for was lifted."""
    holder: str
    free_at: float | None
    """When the next claim may come, in epoch seconds; None for at once."""
    is_gone: bool = False
    """Whether the holder was seen to be gone, so that nobody is waited for."""
    closed: tuple[Closed, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What an operator saw who wants to break a lease."""

    generation: int
    is_held: bool
    """Whether it has a holder, be it an expired one."""


def break_lease(
    name: str,
    alias: str,
    *,
    by: str,
    reason: str = "",
    at_once: bool = False,
    force: bool = False,
    forget_tick: bool = False,
    seen: Seen | None = None,
) -> Broken:
    """Take the lease away from its holder, on behalf of *by*, and say why in its Run.

    The next claim has to wait until the broken lease would have expired, when ``runjob`` has
    stopped its job, unless the holder is seen to be gone; *at_once* gives up that safety, as does
    a break of a lease that nobody holds. *force*
    ends the database connections that keep the row locked, such as a frozen holder's.
    *forget_tick* lets the last tick run again. With *seen*, only what was seen is broken, and no
    connection of a later holder is ended.

    Raises ValueError for a reason of over 500 characters, Changed if it is not what was seen,
    Blocked if the row stays locked for two seconds, RunLeaseError for an unknown name.
    """
    ended: set[int] = set()
    order = _BreakOrder(
        by=by,
        reason=checked_reason(reason),
        at_once=at_once,
        forget_tick=forget_tick,
        seen=seen,
        ended=ended,
    )
    change = partial(
        unless_blocked,
        name,
        alias,
        partial(_break, name, alias, order),
        ended=ended if force else None,
        check=partial(_refuse_unseen, name, alias, seen),
        remedy=_("--force ends them"),
    )
    # Apart, so that it works in the middle of somebody's transaction, too.
    broken = apart(alias, change)
    if broken.was_held:
        facts = {"lease": name, "by": by, "holder": broken.holder, "reason": reason}
        text = "%s: broken by %s%s; it was held by %s"
        log.warning("lease_broken", text, name, by, log.because(reason), broken.holder, **facts)
    tell_closed(broken.closed, alias)
    return broken


def is_after_break(name: str, alias: str) -> bool:
    """Whether the next claim waits because the lease was broken: its last holder may still be at
    work."""
    return RunLease.objects.using(alias).filter(AFTER_BREAK, name=name, token=None).exists()


def pause(name: str, alias: str, *, by: str, reason: str = "") -> bool:
    """Make every claim of *name* decline until it is resumed; return whether that changed anything.
    A running holder goes on.

    A pause of a lease that is paused says anew who and why; one that says the same changes
    nothing. Raises ValueError for a bad name or a reason of over 500 characters, Blocked if the
    row stays locked.
    """
    check_name(name)
    said = {"paused_by": storable(by), "paused_reason": checked_reason(reason)}
    unless_blocked(name, alias, partial(rows.create, name, alias))
    lease = RunLease.objects.using(alias).filter(name=name)
    another = lease.exclude(paused=True, **said)

    def work() -> bool:
        changed = another.update(paused=True, **said)
        return _noted(changed, ActionKind.PAUSED, name, alias, by, said["paused_reason"])

    is_new = unless_blocked(name, alias, work)
    if is_new:
        facts = {"lease": name, "by": by, "reason": reason}
        log.info("lease_paused", "%s: paused by %s%s", name, by, log.because(reason), **facts)
    return is_new


def resume(
    name: str, alias: str, *, by: str, reason: str = "", pause: Sequence[str] | None = None
) -> bool:
    """Let *name* be claimed again; return whether it was paused. With *pause*, by whom and why,
    only that pause is ended.

    Raises ValueError for a reason of over 500 characters, Changed if it is paused otherwise than
    *pause* says, Blocked if the row stays locked, RunLeaseError for an unknown name.
    """
    why = checked_reason(reason)
    paused = RunLease.objects.using(alias).filter(name=name, paused=True)
    said = paused.select_for_update(no_key=True).values_list("paused_by", "paused_reason")

    def work() -> bool:
        for found in said.all():
            if pause is not None and found != tuple(pause):
                raise Changed(_not_as_seen(name))
        changed = paused.update(paused=False, paused_by="", paused_reason="")
        return _noted(changed, ActionKind.RESUMED, name, alias, by, why)

    was_paused = unless_blocked(name, alias, work)
    if was_paused:
        facts = {"lease": name, "by": by, "reason": reason}
        log.info("lease_resumed", "%s: resumed by %s%s", name, by, log.because(reason), **facts)
    return was_paused


def _noted(changed: int, kind: ActionKind, name: str, alias: str, by: str, reason: str) -> bool:
    """Whether *changed* is a row, and then written down."""
    if changed:
        note_action(kind, name, alias, by=by, reason=reason)
    elif not RunLease.objects.using(alias).filter(name=name).exists():
        raise _unknown(name)
    return bool(changed)


def remove(name: str, alias: str, *, by: str, unclaimed_for: timedelta) -> int:
    """Delete the row of a lease that nobody has claimed for *unclaimed_for*; return its generation.

    That is kept: if the name is claimed once more, its generation goes on from there. The history
    stays until it is pruned. Raises Blocked if the lease is not free, is paused, waits for its
    minimum hold, was claimed since, or its row stays locked; RunLeaseError for an unknown name.
    """
    generation = unless_blocked(name, alias, partial(_remove, name, alias, by, unclaimed_for))
    facts = {"lease": name, "by": by, "generation": generation}
    log.info("lease_removed", "%s: removed by %s", name, by, **facts)
    return generation


def _remove(name: str, alias: str, by: str, unclaimed_for: timedelta) -> int:
    lock = RunLease.objects.using(alias).select_for_update().filter(name=name)
    if not list(lock.values_list("pk")):
        raise _unknown(name)
    lease = RunLease.objects.using(alias).filter(name=name)
    found = lease.annotate(now=Epoch(Now()), claimed=Epoch("claimed_at"), due=Epoch("not_before"))
    found = found.annotate(taken=true_or_false(Q(token__isnull=False)))
    row = found.values("taken", "holder", "paused", "generation", "now", "claimed", "due").get()
    if reason := _why_in_use(row, unclaimed_for):
        raise Blocked(f"{name} was not removed: {reason}")
    generation: int = row["generation"]
    tallying.keep_generation(name, generation, alias)
    lease.delete()
    note_action(ActionKind.REMOVED, name, alias, by=by, generation=generation)
    return generation


def _why_in_use(row: Mapping[str, Any], unclaimed_for: timedelta) -> str | None:
    if row["taken"]:
        return (
            f"{row['holder']} has not released it. Let it end, or take the lease away with "
            "`manage.py runlease break`"
        )
    if row["paused"]:
        return "it is paused, which a removal would undo: `manage.py runlease resume` it first"
    if row["due"] is not None and row["due"] > row["now"]:
        until = short(row["due"] - row["now"])
        return f"its minimum hold lasts for another {until}, and its last holder may be at work"
    if row["claimed"] is not None and row["now"] - row["claimed"] < unclaimed_for.total_seconds():
        ago = short(row["now"] - row["claimed"])
        return (
            f"it was claimed {ago} ago, and is unused after {short(unclaimed_for)}: if nothing "
            "claims it any more, give a shorter time with --keep-runs"
        )
    return None


def _refuse_unseen(name: str, alias: str, seen: Seen | None) -> None:
    """Raises Changed if *name* is not what was *seen*."""
    if seen is None:
        return
    lease = RunLease.objects.using(alias).filter(name=name)
    for generation, token in lease.values_list("generation", "token"):
        if seen != Seen(generation=generation, is_held=token is not None):
            raise Changed(_not_as_seen(name))


def _not_as_seen(name: str) -> Phrase:
    return _(
        "%(lease)s: it has changed meanwhile, so nothing was done: look again with %(command)s",
        lease=name,
        command="`manage.py runlease show`",
    )


def _unknown(name: str) -> RunLeaseError:
    return RunLeaseError(
        _(
            "there is no lease %(lease)s: %(command)s shows them all",
            lease=repr(name),
            command="`manage.py runlease list`",
        )
    )


@dataclass(frozen=True, kw_only=True)
class _BreakOrder:
    by: str
    reason: str
    at_once: bool
    forget_tick: bool
    seen: Seen | None
    ended: set[int]
    """The backends that had to be ended for it, so far."""


def _break(name: str, alias: str, order: _BreakOrder) -> Broken:
    # Once more when it is locked; before that, nobody has to be waited for, or ended.
    _refuse_unseen(name, alias, order.seen)
    lock = RunLease.objects.using(alias).select_for_update().filter(name=name)
    if not list(lock.values_list("pk")):
        raise _unknown(name)
    _refuse_unseen(name, alias, order.seen)
    lease = RunLease.objects.using(alias).filter(name=name)
    instants = {"expires": "expires_at", "due": "not_before", "tick": "last_tick"}
    read = lease.annotate(
        now=Epoch(Now()),
        taken=true_or_false(Q(token__isnull=False)),
        **{key: Epoch(of) for key, of in instants.items()},
    )
    fields = ("taken", "holder", "host", "holder_process", "generation", "now", *instants)
    found = read.values(*fields).get()
    values: dict[str, Any] = {"last_tick": None} if order.forget_tick else {}
    if found["taken"]:
        broken = _broken(name, alias, lease, found, order, values)
    else:
        lease.update(not_before=None, **values)
        broken = Broken(was_held=False, holder="", free_at=None)
    _note_break(name, alias, order, found, broken)
    return broken


def _broken(
    name: str,
    alias: str,
    lease: QuerySet[RunLease],
    found: Mapping[str, Any],
    order: _BreakOrder,
    values: Mapping[str, Any],
) -> Broken:
    host, process = found["host"], found["holder_process"]
    is_gone = is_dead(host, process)
    at_once = order.at_once or is_gone
    lease.update(
        generation=F("generation") + 1,
        not_before=None if at_once else F("expires_at"),
        **rows.FREED,
        **values,
    )
    running = Run.objects.using(alias).filter(lease_name=name, outcome=Outcome.RUNNING)
    why = f": {order.reason}" if order.reason else ""
    reason = f"{BROKEN}{order.by}{why}"
    # A program that has outlived its lease is still at it.
    end = Now() if living_group(host, process) else Least(Now(), Instant(found["expires"]))
    closed = close_all(running, outcome=Outcome.LOST, end=end, reason=reason)
    return Broken(
        was_held=True,
        holder=found["holder"],
        free_at=None if at_once else found["expires"],
        is_gone=is_gone,
        closed=tuple(closed),
    )


def _note_break(
    name: str, alias: str, order: _BreakOrder, found: Mapping[str, Any], broken: Broken
) -> None:
    """Of a free lease only if something was lifted."""
    was_due_later = found["due"] is not None and found["due"] > found["now"]
    tick_forgotten = order.forget_tick and found["tick"] is not None
    if broken.was_held or was_due_later or tick_forgotten:
        note_action(
            ActionKind.BROKEN,
            name,
            alias,
            by=order.by,
            reason=order.reason,
            was_held=broken.was_held,
            holder=broken.holder,
            generation=found["generation"],
            at_once=broken.free_at is None,
            free_at=iso(broken.free_at),
            connections_ended=len(order.ended),
            tick_forgotten=tick_forgotten,
        )
