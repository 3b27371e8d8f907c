"""The history's rows, written in the transactions of the lease operations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.db.models.functions import Greatest, Least

from .. import signals
from ..clock import Epoch, Instant, Now
from ..models import Outcome, Run
from ..text import storable, tail
from . import counting
from .connection import database_clock, in_transaction
from .records import ClaimRequest, Closed, Closing, Refusal

BROKEN = "broken by "
"""How the reason of a Run begins that an operator closed by breaking its lease."""


def open_run(
    request: ClaimRequest,
    alias: str,
    *,
    generation: int,
    now: float,
    waiting_since: float | None,
    took_over_from: str,
) -> int:
    """Open the Run of a claim made at *now* (epoch seconds); return its primary key."""
    run = Run.objects.using(alias).create(
        lease_name=request.name,
        token=request.token,
        generation=generation,
        holder=request.holder.name,
        host=request.holder.host,
        trigger=storable(request.trigger),
        took_over_from=took_over_from,
        tick=Instant(request.tick.timestamp()) if request.tick else None,
        started_at=Instant(now),
        outcome=Outcome.RUNNING,
        waited=_between(waiting_since, now),
        lag=_lag(request, now),
    )
    return int(run.pk)


def record_decline(
    request: ClaimRequest, refusal: Refusal, alias: str, *, waiting_since: float | None = None
) -> int:
    """Leave a declined tick in the history: who held the lease, and where the tick came.

    Returns the Run's primary key.
    """
    now = refusal.now

    def insert() -> Run:
        moment = Instant(database_clock(alias) if now is None else now)
        return Run.objects.using(alias).create(
            lease_name=request.name,
            holder=refusal.declined.holder,
            host=request.holder.host,
            trigger=storable(request.trigger),
            tick=Instant(request.tick.timestamp()) if request.tick else None,
            started_at=moment,
            finished_at=moment,
            outcome=Outcome.DECLINED,
            reason=refusal.declined.reason,
            waited=_between(waiting_since, now),
            lag=_lag(request, now),
        )

    return int(in_transaction(alias, insert).pk)


def abandon_open_runs(
    request: ClaimRequest, alias: str, *, now: float, expired_at: float | None
) -> list[Closed]:
    """Close what a dead holder left open. It held the lease no longer than until *expired_at*."""
    end = Instant(now) if expired_at is None else Least(Instant(now), Instant(expired_at))
    found = Run.objects.using(alias).filter(lease_name=request.name, outcome=Outcome.RUNNING)
    reason = f"never released; {request.holder.name} took over"
    return close_all(found, outcome=Outcome.ABANDONED, end=end, reason=reason)


def close_all(found: QuerySet[Run], *, outcome: Outcome, end: Any, reason: str) -> list[Closed]:
    """Close the Runs of *found*, which their holders have not; say which."""
    finish = Greatest(F("started_at"), end)
    rows = found.annotate(length=Epoch(finish) - Epoch("started_at")).values_list(
        "pk", "lease_name", "generation", "holder", "length"
    )
    closed = [
        Closed(
            name=name,
            run_id=pk,
            generation=generation,
            holder=holder,
            outcome=outcome,
            reason=reason,
            duration=length,
        )
        for pk, name, generation, holder, length in rows
    ]
    if closed:
        pks = [run.run_id for run in closed]
        found.filter(pk__in=pks).update(
            outcome=outcome, finished_at=finish, reason=storable(reason)
        )
    return closed


def tell_closed(closed: Iterable[Closed], alias: str) -> None:
    """Send ``run_finished`` for Runs that were not closed by their holders."""
    for run in closed:
        signals.send(
            signals.run_finished,
            Run,
            lease=run.name,
            using=alias,
            generation=run.generation,
            holder=run.holder,
            run_id=run.run_id,
            outcome=run.outcome,
            reason=run.reason,
            exit_code=None,
            duration=run.duration,
        )


def close(run_id: int, token: UUID, closing: Closing, alias: str) -> None:
    """Close a Run as its holder says."""
    _close(run_id, token, closing, alias, (Outcome.RUNNING,))


def close_held(run_id: int, token: UUID, closing: Closing, alias: str) -> None:
    """Close the Run of a lease that is still its holder's, also if a check had given it up."""
    _close(run_id, token, closing, alias, (Outcome.RUNNING, Outcome.ABANDONED))


def amend_to_lost(run_id: int, token: UUID, closing: Closing, alias: str) -> None:
    """Let a holder that lost its lease write down when it really stopped."""
    lost = replace(closing, outcome=Outcome.LOST)
    _close(run_id, token, lost, alias, (Outcome.RUNNING, Outcome.ABANDONED, Outcome.LOST))


def _close(
    run_id: int, token: UUID, closing: Closing, alias: str, replaced: tuple[Outcome, ...]
) -> None:
    run = Run.objects.using(alias).filter(pk=run_id, token=token)
    told: dict[str, Any] = {
        "outcome": closing.outcome,
        "finished_at": Greatest(F("started_at"), Now()),
        "reason": storable(closing.reason),
        "exit_code": closing.exit_code,
        "error": tail(closing.error),
        "output": tail(closing.output),
    }
    if run.filter(outcome=Outcome.RUNNING).update(**told) or replaced == (Outcome.RUNNING,):
        return
    amended = run.filter(outcome__in=replaced)
    found = list(amended.select_for_update().values_list("lease_name", "outcome"))
    amended.update(**told)
    for name, outcome in found:
        if outcome == Outcome.ABANDONED:
            counting.recount_abandoned(name, run_id, token, alias)


def is_closed_by(run_id: int, token: UUID, closing: Closing, alias: str) -> bool:
    """Whether the Run was closed with *closing*, and not by a break."""
    run = Run.objects.using(alias).filter(pk=run_id, token=token, outcome=closing.outcome)
    broken = Q(outcome=Outcome.LOST, reason__startswith=BROKEN)
    return run.filter(reason=storable(closing.reason)).exclude(broken).exists()


def _between(start: float | None, end: float | None) -> timedelta | None:
    """The time from *start* to *end*, never negative; none at all where nobody waited."""
    if end is None:
        return None
    return timedelta(seconds=max(end - start, 0.0)) if start is not None else timedelta(0)


def _lag(request: ClaimRequest, now: float | None) -> timedelta | None:
    return _between(request.tick.timestamp(), now) if request.tick else None
