"""Retention: what is older than it is kept for leaves the history, in many short transactions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from django.db import connections

from ..models import Outcome, Run, RunLease, TallyMark
from . import counting, tallying
from .connection import database_clock, in_transaction

BATCH = 5_000
"""How many rows one transaction looks at."""


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What has been deleted so far, and how much of the work that is."""

    share: float = 0.0
    """From 0 to 1, of the time that the history spans."""
    runs: int = 0
    declines: int = 0
    alerts: int = 0
    actions: int = 0


def prune(
    alias: str, *, keep_runs: timedelta, keep_declines: timedelta, batch: int = BATCH
) -> Iterator[Pruned]:
    """Delete from the history the runs that ended, the declined ticks, the alerts that were
    resolved, and what operators did, longer ago than they are kept for; the last two as long as
    runs. Whatever run or tick goes is in the tallies before.

    Gives the progress after every transaction; nothing is undone if nobody asks for the rest, and
    the next prune goes on from there. What is kept, however old: a running run, the last success,
    the run by which a name's highest generation is known, and who paused a lease that still is. No
    lease is locked; what somebody else has locked is left for the next time. Raises RunLeaseError
    within an open transaction, and Django's database errors.
    """
    counting.count_runs(alias)
    now = database_clock(alias)
    cutoffs = _Cutoffs(
        runs=now - keep_runs.total_seconds(),
        declines=now - keep_declines.total_seconds(),
        mark=TallyMark.objects.using(alias).first() or TallyMark(),
    )
    runs = declines = 0
    names = _names(alias, cutoffs.latest)
    for place, (name, oldest) in enumerate(names):
        for gone, share in _prune_name(name, oldest, cutoffs, alias, batch):
            runs, declines = runs + gone.runs, declines + gone.declines
            yield Pruned(share=(place + share) / len(names), runs=runs, declines=declines)
    alerts = _delete_all(_DELETE_ALERTS, alias, cutoffs.runs, batch)
    actions = _delete_all(_DELETE_ACTIONS, alias, cutoffs.runs, batch)
    yield Pruned(share=1.0, runs=runs, declines=declines, alerts=alerts, actions=actions)


@dataclass(frozen=True, kw_only=True)
class _Cutoffs:
    """Before when runs and declined ticks go, in epoch seconds, if they have been counted."""

    runs: float
    declines: float
    mark: TallyMark

    @property
    def latest(self) -> float:
        return max(self.runs, self.declines)


@dataclass(frozen=True, kw_only=True)
class _Kept:
    """What stays of a name however old it is."""

    success: int | None
    generation: int | None
    """Runs of this generation and any higher one."""


@dataclass(frozen=True, kw_only=True)
class _Batch:
    seen: int
    runs: int
    declines: int
    last: tuple[float, int] | None
    """Start and primary key of the last row that was looked at."""


# One descent of the index for each name, however many runs it has.
_NAMES = """
    WITH RECURSIVE names AS (
        (SELECT lease_name FROM runlease_run ORDER BY lease_name LIMIT 1)
        UNION ALL
        SELECT (SELECT run.lease_name FROM runlease_run AS run
                 WHERE run.lease_name > names.lease_name ORDER BY run.lease_name LIMIT 1)
          FROM names WHERE names.lease_name IS NOT NULL)
    SELECT lease_name, extract(epoch FROM oldest.started_at)::double precision
      FROM names
      CROSS JOIN LATERAL (SELECT started_at FROM runlease_run AS run
                           WHERE run.lease_name = names.lease_name
                           ORDER BY started_at LIMIT 1) AS oldest
     WHERE oldest.started_at < to_timestamp(%s)
"""


def _names(alias: str, before: float) -> list[tuple[str, float]]:
    """The names with runs from *before* that time, and when the first of them started."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_NAMES, [before])
        return list(cursor.fetchall())


def _prune_name(
    name: str, oldest: float, cutoffs: _Cutoffs, alias: str, batch: int
) -> Iterator[tuple[_Batch, float]]:
    kept = _kept(name, alias)
    after = (float("-inf"), 0)
    while True:
        work = partial(_delete_batch, name, after, kept, cutoffs, alias, batch)
        done = in_transaction(alias, work)
        if done.last is None or done.seen < batch:
            yield done, 1.0
            return
        after = done.last
        yield done, (after[0] - oldest) / (cutoffs.latest - oldest)


def _kept(name: str, alias: str) -> _Kept:
    runs = Run.objects.using(alias).filter(lease_name=name)
    # Generations rise with time but where the clock was set back, and then more is kept. It need
    # not be known from a run if the lease was removed in order, and then nothing is kept.
    newest = runs.exclude(generation=None).order_by("-started_at", "-pk")
    generation = newest.values_list("generation", flat=True).first()
    removed = not RunLease.objects.using(alias).filter(name=name).exists()
    if removed and tallying.generation_kept(name, alias) >= (generation or 0):
        return _Kept(success=None, generation=None)
    succeeded = runs.filter(outcome=Outcome.SUCCEEDED).exclude(trigger="bypass")
    success = succeeded.order_by("-started_at", "-pk").values_list("pk", flat=True).first()
    return _Kept(success=success, generation=generation)


_OLD = """
    outcome <> 'running'
    AND (outcome = 'declined' AND started_at < to_timestamp(%(declines)s)
         OR outcome <> 'declined' AND started_at < to_timestamp(%(runs)s)
            AND coalesce(finished_at < to_timestamp(%(runs)s), true))
    AND id <= %(counted)s AND id <> ALL (%(still_open)s::bigint[])
    AND id IS DISTINCT FROM %(success)s
    AND (generation IS NULL OR %(generation)s IS NULL OR generation < %(generation)s)
"""

# A row is locked as it is now, not as it was, or skipped. So of two at once, one deletes it. An
# array of keys is looked up by the index, where a join might read the whole table each time.
_DELETE = f"""
    WITH seen AS MATERIALIZED (
        SELECT id, started_at, {_OLD} AS is_old FROM runlease_run
         WHERE lease_name = %(name)s AND started_at < to_timestamp(%(latest)s)
           AND started_at >= to_timestamp(%(start)s)
           AND (started_at, id) > (to_timestamp(%(start)s), %(id)s)
         ORDER BY started_at, id LIMIT %(batch)s),
    old AS MATERIALIZED (
        SELECT id FROM runlease_run
         WHERE id = ANY (ARRAY(SELECT id FROM seen WHERE is_old)) AND {_OLD}
           FOR UPDATE SKIP LOCKED),
    gone AS (
        DELETE FROM runlease_run WHERE id = ANY (ARRAY(SELECT id FROM old)) RETURNING outcome)
    SELECT count(*),
           (SELECT count(*) FROM gone WHERE outcome <> 'declined'),
           (SELECT count(*) FROM gone WHERE outcome = 'declined'),
           (SELECT extract(epoch FROM started_at)::double precision FROM seen
             ORDER BY started_at DESC, id DESC LIMIT 1),
           (SELECT id FROM seen ORDER BY started_at DESC, id DESC LIMIT 1)
      FROM seen
"""  # noqa: S608  made of texts of ours


def _delete_batch(
    name: str, after: tuple[float, int], kept: _Kept, cutoffs: _Cutoffs, alias: str, batch: int
) -> _Batch:
    parameters: dict[str, str | int | float | list[int] | None] = {
        "name": name,
        "start": after[0],
        "id": after[1],
        "latest": cutoffs.latest,
        "runs": cutoffs.runs,
        "declines": cutoffs.declines,
        "counted": cutoffs.mark.up_to,
        "still_open": cutoffs.mark.still_open,
        "success": kept.success,
        "generation": kept.generation,
        "batch": batch,
    }
    with connections[alias].cursor() as cursor:
        cursor.execute(_DELETE, parameters)
        seen, runs, declines, last_start, last_id = cursor.fetchone()
    last = None if last_start is None else (last_start, last_id)
    return _Batch(seen=seen, runs=runs, declines=declines, last=last)


_DELETE_ALERTS = """
    DELETE FROM runlease_alert WHERE id IN (
        SELECT id FROM runlease_alert WHERE resolved_at < to_timestamp(%s)
         LIMIT %s FOR UPDATE SKIP LOCKED)
"""


# Of a lease that is paused, all that was said of it since its last resume.
_DELETE_ACTIONS = """
    DELETE FROM runlease_operatoraction WHERE id IN (
        SELECT action.id FROM runlease_operatoraction AS action
         WHERE action.at < to_timestamp(%s)
           AND NOT (action.kind = 'paused'
                    AND EXISTS (SELECT FROM runlease_runlease AS lease
                                 WHERE lease.name = action.lease_name AND lease.paused)
                    AND NOT EXISTS (SELECT FROM runlease_operatoraction AS later
                                     WHERE later.lease_name = action.lease_name
                                       AND later.kind = 'resumed'
                                       AND (later.at, later.id) > (action.at, action.id)))
         LIMIT %s FOR UPDATE OF action SKIP LOCKED)
"""


def _delete_all(statement: str, alias: str, before: float, batch: int) -> int:
    def delete() -> int:
        with connections[alias].cursor() as cursor:
            cursor.execute(statement, [before, batch])
            return int(cursor.rowcount)

    total = 0
    while gone := in_transaction(alias, delete):
        total += gone
    return total
