"""What an operator does to a lease: break it, pause it, resume it, remove it."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from django.db import OperationalError, connections
from django.db.models import F

from .. import log
from ..clock import Epoch, Now
from ..exceptions import RunLeaseError
from ..models import Outcome, Run, RunLease
from ..terms import short
from ..text import check_name, storable
from . import rows, tallying
from .connection import in_test_case, in_transaction, is_contention, start_apart
from .records import Closed
from .runs import BROKEN, close_all, tell_closed

Result = TypeVar("Result")

REASON_LENGTH = 500
POLL = 0.05
"""Seconds between two looks at what keeps a break waiting."""

_BLOCKERS = """
    SELECT pid,
           format('process %%s (%%s, %%s, in its transaction for %%s s)', pid,
                  coalesce(nullif(application_name, ''), usename), coalesce(state, 'unknown'),
                  extract(epoch FROM clock_timestamp() - xact_start)::int)
      FROM pg_stat_activity
     WHERE pid = ANY(pg_blocking_pids(%s))
"""


class Blocked(RunLeaseError):
    """The lease was not changed: its row is locked (the message names by which backends), it has
    changed hands, or it is in use."""


@dataclass(frozen=True, kw_only=True)
class Broken:
    """What a break found and did."""

    was_held: bool
    """Whether anybody held it; if not, only its minimum hold was lifted."""
    holder: str
    free_at: float | None
    """When the next claim may come, in epoch seconds; None for at once."""
    closed: tuple[Closed, ...] = ()


def break_lease(
    name: str,
    alias: str,
    *,
    by: str,
    at_once: bool = False,
    force: bool = False,
    forget_tick: bool = False,
    generation: int | None = None,
) -> Broken:
    """Take the lease away from its holder, on behalf of *by*.

    The next claim has to wait until the broken lease would have expired, when its holder has
    stopped; *at_once* gives up that safety. *force* ends the database connections that keep the
    row locked, such as a frozen holder's. *forget_tick* lets the last tick run again. With
    *generation*, only that claim is broken.

    Raises Blocked if the row stays locked for two seconds or another generation holds it,
    RunLeaseError for an unknown name.
    """
    work = partial(
        _break,
        name,
        alias,
        by=by,
        at_once=at_once,
        forget_tick=forget_tick,
        generation=generation,
    )
    if in_test_case(connections[alias]):
        broken = in_transaction(alias, work)
    else:
        broken = _break_watched(name, alias, work, force=force)
    if broken.was_held:
        facts = {"lease": name, "by": by, "holder": broken.holder}
        text = "%s: broken by %s; it was held by %s"
        log.warning("lease_broken", text, name, by, broken.holder, **facts)
    tell_closed(broken.closed, alias)
    return broken


def pause(name: str, alias: str, *, by: str, reason: str = "") -> None:
    """Make every claim of *name* decline until it is resumed. A running holder goes on.

    Raises ValueError for a bad name or a reason of over 500 characters, Blocked if the row stays
    locked.
    """
    check_name(name)
    if len(reason) > REASON_LENGTH:
        raise ValueError(f"the reason of a pause has at most {REASON_LENGTH} characters")
    _unless_blocked(name, alias, partial(rows.create, name, alias))
    _update(name, alias, paused=True, paused_by=storable(by), paused_reason=storable(reason))
    why = f" ({reason})" if reason else ""
    facts = {"lease": name, "by": by, "reason": reason}
    log.info("lease_paused", "%s: paused by %s%s", name, by, why, **facts)


def resume(name: str, alias: str, *, by: str) -> None:
    """Let *name* be claimed again. Raises RunLeaseError for an unknown name."""
    _update(name, alias, paused=False, paused_by="", paused_reason="")
    log.info("lease_resumed", "%s: resumed by %s", name, by, lease=name, by=by)


def remove(name: str, alias: str, *, by: str, unclaimed_for: timedelta) -> int:
    """Delete the row of a lease that nobody has claimed for *unclaimed_for*; return its generation.

    That is kept: if the name is claimed once more, its generation goes on from there. The history
    stays until it is pruned. Raises Blocked if the lease is not free, is paused, waits for its
    minimum hold, was claimed since, or its row stays locked; RunLeaseError for an unknown name.
    """
    generation = _unless_blocked(name, alias, partial(_remove, name, alias, unclaimed_for))
    facts = {"lease": name, "by": by, "generation": generation}
    log.info("lease_removed", "%s: removed by %s", name, by, **facts)
    return generation


def _remove(name: str, alias: str, unclaimed_for: timedelta) -> int:
    lock = RunLease.objects.using(alias).select_for_update().filter(name=name)
    if not list(lock.values_list("pk")):
        raise _unknown(name)
    lease = RunLease.objects.using(alias).filter(name=name)
    found = lease.annotate(now=Epoch(Now()), claimed=Epoch("claimed_at"), due=Epoch("not_before"))
    row = found.values("token", "holder", "paused", "generation", "now", "claimed", "due").get()
    if reason := _why_in_use(row, unclaimed_for):
        raise Blocked(f"{name} was not removed: {reason}")
    generation: int = row["generation"]
    tallying.keep_generation(name, generation, alias)
    lease.delete()
    return generation


def _why_in_use(row: Mapping[str, Any], unclaimed_for: timedelta) -> str | None:
    if row["token"] is not None:
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


def _update(name: str, alias: str, **values: Any) -> None:
    rows_of_name = RunLease.objects.using(alias).filter(name=name)
    if not _unless_blocked(name, alias, lambda: rows_of_name.update(**values)):
        raise _unknown(name)


def _unless_blocked(name: str, alias: str, work: Callable[[], Result]) -> Result:
    try:
        return in_transaction(alias, work)
    except OperationalError as error:
        if is_contention(error):
            raise Blocked(f"{name}: its row is locked; try again") from error
        raise


def _unknown(name: str) -> RunLeaseError:
    return RunLeaseError(f"there is no lease {name!r}: `manage.py runlease list` shows them all")


def _break(
    name: str, alias: str, *, by: str, at_once: bool, forget_tick: bool, generation: int | None
) -> Broken:
    lock = RunLease.objects.using(alias).select_for_update().filter(name=name)
    if not list(lock.values_list("pk")):
        raise _unknown(name)
    lease = RunLease.objects.using(alias).filter(name=name)
    found = lease.values("token", "holder", "generation", expires=Epoch("expires_at")).get()
    if generation not in (None, found["generation"]):
        raise Blocked(
            f"{name}: it changed hands meanwhile, so nothing was broken: look again with "
            "`manage.py runlease show`"
        )
    values: dict[str, Any] = {"last_tick": None} if forget_tick else {}
    if found["token"] is None:
        lease.update(not_before=None, **values)
        return Broken(was_held=False, holder="", free_at=None)
    lease.update(
        generation=F("generation") + 1,
        not_before=None if at_once else F("expires_at"),
        **rows.FREED,
        **values,
    )
    running = Run.objects.using(alias).filter(lease_name=name, outcome=Outcome.RUNNING)
    closed = close_all(running, outcome=Outcome.LOST, end=Now(), reason=f"{BROKEN}{by}")
    return Broken(
        was_held=True,
        holder=found["holder"],
        free_at=None if at_once else found["expires"],
        closed=tuple(closed),
    )


def _break_watched(name: str, alias: str, work: partial[Broken], *, force: bool) -> Broken:
    pids: queue.SimpleQueue[int] = queue.SimpleQueue()

    def tell_and_work() -> Broken:
        with connections[alias].cursor() as cursor:
            # Not libpq's idea of it: behind a pooler that is another process.
            cursor.execute("SELECT pg_backend_pid()")
            pids.put(cursor.fetchone()[0])
        return work()

    breaking = start_apart(alias, partial(in_transaction, alias, tell_and_work))
    blockers: dict[int, str] = {}
    pid = None
    while not wait([breaking], timeout=POLL).done:
        pid = pid if pids.empty() else pids.get()
        if pid is not None:
            found = _blockers(alias, pid)
            blockers = found or blockers
            if force:
                _terminate(alias, found)
    try:
        return breaking.result()
    except OperationalError as error:
        if not is_contention(error):
            raise
        who = "; ".join(blockers.values()) or "a transaction that has just ended"
        raise Blocked(f"{name}: its row is locked by {who}. --force ends them") from error


def _blockers(alias: str, pid: int) -> dict[int, str]:
    with connections[alias].cursor() as cursor:
        cursor.execute(_BLOCKERS, [pid])
        return dict(cursor.fetchall())


def _terminate(alias: str, pids: dict[int, str]) -> None:
    with connections[alias].cursor() as cursor:
        for pid in pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
