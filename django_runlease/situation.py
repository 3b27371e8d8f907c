"""What the rules of the alerts look at: the situation of each lease, all read in one statement."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.db import connections

from .holder import is_dead, living_group
from .models import Effect, Outcome, Run, RunLease

FAILURES = (
    Outcome.FAILED,
    Outcome.LOST,
    Outcome.TIMED_OUT,
    Outcome.STALLED,
    Outcome.ABANDONED,
)
"""The outcomes of a job that went wrong. Terminated is neither a success nor a failure."""

MOST_FAILURES = 1_000
"""How many failures since the last success are looked at."""

MOST_TICKS = 10_000
"""How many runs and declined ticks are looked at to count those that were declined. A job that
ticks each second and is paused for a week has half a million."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """One lease and its history as one statement saw them. Ages and lengths are seconds on the
    database's clock; None where there is none."""

    name: str
    using: str = ""
    """The alias that a command has to name, of a database that commands do not ask by default."""
    paused: bool = False
    every: float | None = None
    ttl: float | None = None
    heartbeat: bool = True
    holder: str = ""
    """Who claimed it and has not released; else empty."""
    expires_in: float | None = None
    """None when it is free; negative once it has expired."""
    is_dead: bool = False
    """Its holder's process is seen to be gone."""
    left_group: int | None = None
    """The process group of a program that is seen to have outlived the lease: claims decline."""
    started_ago: float | None = None
    """The last start, also of a run that has ended."""
    renewed_ago: float | None = None
    last_duration: float | None = None
    """Of the newest run that has ended, however it did."""
    contended: int = 0
    """Ticks of the window that were declined as held or busy, and have had no run on any host."""
    starved: int = 0
    """Such ticks since the last start."""
    paused_tick_ago: float | None = None
    """The newest tick since the last start that was declined because of a pause."""
    succeeded_ago: float | None = None
    """The start of the last run that succeeded."""
    failures: int = 0
    """Failures since then, at most ``MOST_FAILURES``."""
    lost_ago: float | None = None
    """The start of the newest run since then that lost its lease."""
    uncertain: int = 0
    """External actions that were begun and not confirmed, and nobody is at them."""

    @property
    def is_held(self) -> bool:
        """Whether somebody holds it who is not seen to be gone."""
        return self.expires_in is not None and self.expires_in > 0 and not self.is_dead


# Of a tick that several hosts tried, one decline counts, and none if one of them ran it: the run
# may have begun before the window in which the others were declined. For a limit that it does not
# know, the planner reads an index backwards instead of sorting all.
_SITUATIONS = """
    WITH clock AS MATERIALIZED (
        SELECT clock_timestamp() AS now
    ), own AS MATERIALIZED (
        SELECT * FROM unnest(%(own)s::text[], %(windows)s::float8[]) AS own (name, seconds)
    )
    SELECT lease.name, lease.paused, lease.heartbeat, lease.holder, lease.host,
           lease.holder_process::text, lease.token IS NOT NULL AS taken,
           extract(epoch FROM clock.now)::float8 AS now,
           extract(epoch FROM lease.every)::float8 AS every,
           extract(epoch FROM lease.ttl)::float8 AS ttl,
           extract(epoch FROM lease.expires_at)::float8 AS expires_at,
           extract(epoch FROM lease.claimed_at)::float8 AS claimed_at,
           extract(epoch FROM lease.renewed_at)::float8 AS renewed_at,
           extract(epoch FROM ended.started_at)::float8 AS ended_from,
           extract(epoch FROM ended.finished_at)::float8 AS ended_at,
           contended.count AS contended,
           declined.starved,
           extract(epoch FROM declined.paused_at)::float8 AS paused_tick_at,
           extract(epoch FROM success.started_at)::float8 AS succeeded_at,
           failures.count AS failures,
           extract(epoch FROM failures.lost_at)::float8 AS lost_at,
           effects.count AS effects,
           effects.own AS effects_of_holder
      FROM clock
     CROSS JOIN {lease} lease
      LEFT JOIN own ON own.name = lease.name
     CROSS JOIN LATERAL (
        SELECT coalesce(lease.claimed_at, '-infinity') AS since,
               coalesce(lease.claimed_at, 'infinity') AS until,
               make_interval(secs => coalesce(own.seconds, %(window)s)) AS span
     ) bounds
      LEFT JOIN LATERAL (
        SELECT run.started_at, run.finished_at
          FROM {run} run
         WHERE run.lease_name = lease.name AND run.started_at <= bounds.until
           AND run.finished_at IS NOT NULL AND run.outcome NOT IN ('declined', 'running')
           AND run.trigger <> 'bypass'
         ORDER BY run.started_at DESC LIMIT 1
     ) ended ON true
      LEFT JOIN LATERAL (
        SELECT run.started_at
          FROM {run} run
         WHERE run.lease_name = lease.name AND run.outcome = 'succeeded'
           AND run.trigger <> 'bypass'
         ORDER BY run.started_at DESC LIMIT 1
     ) success ON true
     CROSS JOIN LATERAL (
        SELECT count(*), max(recent.started_at) FILTER (WHERE recent.outcome = 'lost') AS lost_at
          FROM (
            SELECT run.started_at, run.outcome
              FROM {run} run
             WHERE run.lease_name = lease.name AND run.started_at <= bounds.until
               AND run.started_at > coalesce(success.started_at, '-infinity')
               AND run.outcome = ANY(%(failures)s)
             ORDER BY run.started_at DESC LIMIT %(most)s
          ) recent
     ) failures
     CROSS JOIN LATERAL (
        SELECT count(*) FROM (
            SELECT 1 FROM (
                SELECT run.* FROM {run} run
                 WHERE run.lease_name = lease.name
                   AND run.started_at > clock.now - 2 * bounds.span
                 ORDER BY run.started_at DESC LIMIT (SELECT %(ticks)s::bigint)
            ) run
             GROUP BY coalesce(run.tick::text, run.id::text)
            HAVING bool_and(run.outcome = 'declined')
               AND bool_or(run.reason IN ('held', 'busy')
                           AND run.started_at > clock.now - bounds.span)
        ) ticks
     ) contended
     CROSS JOIN LATERAL (
        SELECT count(DISTINCT coalesce(run.tick::text, run.id::text)) FILTER (
                   WHERE run.reason IN ('held', 'busy')
                     AND (run.tick > lease.last_tick) IS NOT FALSE
               ) AS starved,
               max(run.started_at) FILTER (WHERE run.reason = 'paused') AS paused_at
          FROM (
            SELECT run.* FROM {run} run
             WHERE run.lease_name = lease.name AND run.started_at > bounds.since
               AND run.outcome = 'declined'
             ORDER BY run.started_at DESC LIMIT (SELECT %(ticks)s::bigint)
          ) run
     ) declined
     CROSS JOIN LATERAL (
        SELECT count(*),
               count(*) FILTER (WHERE effect.generation = lease.generation) AS own
          FROM {effect} effect
         WHERE effect.lease_name = lease.name AND effect.state = 'started'
     ) effects
"""


def situations(
    alias: str,
    names: Collection[str] | None = None,
    *,
    window: float,
    windows: Mapping[str, float] | None = None,
) -> list[Situation]:
    """The situation of each lease, or of those of *names* that have a row, by name.

    *window* is the length, in seconds, of the time in which ticks count as contended; *windows*
    has the leases for which it is another.
    """
    own, lengths = zip(*windows.items(), strict=True) if windows else ((), ())
    params: dict[str, Any] = {
        "own": list(own),
        "windows": list(lengths),
        "window": window,
        "failures": [outcome.value for outcome in FAILURES],
        "most": MOST_FAILURES,
        "ticks": MOST_TICKS,
        "names": None if names is None else list(names),
    }
    condition = "" if names is None else " WHERE lease.name = ANY(%(names)s)"
    connection = connections[alias]
    tables = {
        key: connection.ops.quote_name(model._meta.db_table)
        for key, model in {"lease": RunLease, "run": Run, "effect": Effect}.items()
    }
    statement = _SITUATIONS.format(**tables) + condition + " ORDER BY lease.name"
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        columns = [column.name for column in cursor.description]
        return [_situation(dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]


def _situation(row: dict[str, Any]) -> Situation:
    taken, now = row["taken"], row["now"]
    expired = taken and row["expires_at"] <= now
    process = json.loads(row["holder_process"]) if row["holder_process"] else None

    def ago(column: str) -> float | None:
        return None if row[column] is None else now - row[column]

    found = Situation(
        name=row["name"],
        paused=row["paused"],
        every=row["every"],
        ttl=row["ttl"],
        heartbeat=row["heartbeat"],
        holder=row["holder"],
        expires_in=row["expires_at"] - now if taken else None,
        is_dead=taken and is_dead(row["host"], process),
        left_group=living_group(row["host"], process) if expired else None,
        started_ago=ago("claimed_at"),
        renewed_ago=ago("renewed_at"),
        last_duration=None if row["ended_at"] is None else row["ended_at"] - row["ended_from"],
        contended=row["contended"],
        starved=row["starved"],
        paused_tick_ago=ago("paused_tick_at"),
        succeeded_ago=ago("succeeded_at"),
        failures=row["failures"],
        lost_ago=ago("lost_at"),
    )
    # Whoever holds the lease with the generation of an effect is still at it.
    uncertain = row["effects"] - (row["effects_of_holder"] if found.is_held else 0)
    return replace(found, uncertain=uncertain)
