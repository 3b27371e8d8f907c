"""What the history of a lease, or of all leases, comes to in a period.

Each lease is one dict, ready for JSON; lengths of time are seconds, instants ISO 8601 in UTC::

    lease_name, since, until    the period; runs count where they started
    every                       the declared interval, or None
    runs                        how many there were, the running one among them
    outcomes                    {outcome: how many}, those that occurred
    success_rate                successes / (successes + failures); None where there is neither
    duration, waited, lag       {min, median, p95, max}, each None where there is none
    share                       the same of duration / every
    held                        how long the lease was held by these runs
    declined                    ticks that were declined
    declines                    {reason: how many}
    declined_in_a_row           those at the end of the period that no run has followed
    last_outcome                of the newest run of the period that has ended
    last_success                when the last success started, within the period or before

A run that was terminated is neither a success nor a failure; a bypass of a fence is no run.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import get_args

from django.db import connections

from .exceptions import DeclineReason
from .history import Row, iso
from .models import Outcome, Run, RunLease
from .search import Moment, check_period
from .situation import FAILURES

PERIOD = timedelta(days=7)
"""How far a period goes back where nothing else is asked for."""

FIGURES = ("min", "median", "p95", "max")
_SHARES = "ARRAY[0, 0.5, 0.95, 1]::float8[]"

_OUTCOMES = [outcome for outcome in Outcome.values if outcome != Outcome.DECLINED]
_REASONS = get_args(DeclineReason)


def _counts(column: str, values: list[str] | tuple[str, ...], condition: str) -> str:
    each = (f"count(*) FILTER (WHERE {condition} AND {column} = '{value}')" for value in values)
    return f"ARRAY[{', '.join(each)}]"


_STATISTICS = """
    WITH clock AS MATERIALIZED (
        SELECT now, coalesce(
                   to_timestamp(%(until)s), now - make_interval(secs => %(until_ago)s), now
               ) AS until
          FROM clock_timestamp() AS now
    ), period AS MATERIALIZED (
        SELECT now, until, coalesce(
                   to_timestamp(%(since)s), now - make_interval(secs => %(since_ago)s),
                   until - make_interval(secs => %(length)s)
               ) AS since
          FROM clock
    )
    SELECT lease.name AS lease_name,
           extract(epoch FROM CASE WHEN total.counted >= %(most)s THEN total.oldest
                                   ELSE period.since END)::float8 AS since,
           extract(epoch FROM period.until)::float8 AS until,
           lease.every, total.*,
           extract(epoch FROM success.started_at)::float8 AS last_success
      FROM period
     CROSS JOIN ({leases}) AS lease (name, every)
      LEFT JOIN LATERAL (
        SELECT run.started_at FROM {run} run
         WHERE run.lease_name = lease.name AND run.started_at < period.until
           AND run.outcome = 'succeeded' AND run.trigger <> 'bypass'
         ORDER BY run.started_at DESC LIMIT 1
     ) success ON true
     CROSS JOIN LATERAL (
        WITH counted AS MATERIALIZED (
            SELECT run.outcome, run.reason, run.started_at AS at, ran,
                   CASE WHEN ran THEN greatest(0, extract(
                       epoch FROM coalesce(run.finished_at, period.now) - run.started_at
                   ))::float8 END AS held,
                   CASE WHEN ran AND run.finished_at IS NOT NULL THEN greatest(0, extract(
                       epoch FROM run.finished_at - run.started_at
                   ))::float8 END AS duration,
                   CASE WHEN ran THEN extract(epoch FROM run.waited)::float8 END AS waited,
                   CASE WHEN ran THEN extract(epoch FROM run.lag)::float8 END AS lag
              FROM (
                SELECT run.*, run.outcome <> 'declined' AS ran FROM {run} run
                 WHERE run.lease_name = lease.name AND run.trigger <> 'bypass'
                   AND run.started_at >= period.since AND run.started_at < period.until
                {newest}
              ) run
        )
        SELECT count(*) AS counted, min(at) AS oldest, count(*) FILTER (WHERE ran) AS runs,
               {outcomes} AS outcomes,
               percentile_cont({shares}) WITHIN GROUP (ORDER BY duration) AS duration,
               percentile_cont({shares}) WITHIN GROUP (ORDER BY waited) AS waited,
               percentile_cont({shares}) WITHIN GROUP (ORDER BY lag) AS lag,
               coalesce(sum(held), 0) AS held,
               count(*) FILTER (WHERE NOT ran) AS declined,
               {declines} AS declines,
               count(*) FILTER (
                   WHERE NOT ran AND at > coalesce(
                       (SELECT max(at) FILTER (WHERE ran) FROM counted), '-infinity'
                   )
               ) AS declined_in_a_row,
               (array_agg(outcome ORDER BY at DESC)
                   FILTER (WHERE ran AND outcome <> 'running'))[1] AS last_outcome
          FROM counted
     ) total
     ORDER BY lease.name
"""

_ALL = "SELECT name, extract(epoch FROM every)::float8 FROM {lease}"
# The planner, not knowing how many, reads the index backwards until there are so many.
_NEWEST = "ORDER BY run.started_at DESC LIMIT (SELECT %(most)s::bigint)"
# By its name, because the history outlives the row.
_ONE = """
    SELECT %(name)s::text,
           (SELECT extract(epoch FROM every)::float8 FROM {lease} WHERE name = %(name)s)
"""


def statistics(
    alias: str, name: str, *, since: Moment | None = None, until: Moment | None = None
) -> Row:
    """What the history of *name* comes to from *since* to before *until*, in one query.

    *until* is now where it is not given, and *since* seven days before. Raises ValueError for a
    moment without its UTC offset, or a period that ends before it begins.
    """
    return _read(_ONE, alias, since, until, name)[0]


def statistics_of_newest(alias: str, name: str, most: int, *, since: Moment | None = None) -> Row:
    """The same up to now; but of more than *most* runs and declined ticks the newest are counted,
    and ``since`` of the row is when the first of these started."""
    return _read(_ONE, alias, since, None, name, most)[0]


def statistics_of_all(
    alias: str, *, since: Moment | None = None, until: Moment | None = None
) -> list[Row]:
    """The same of each lease that has a row, by name, in one query."""
    return _read(_ALL, alias, since, until)


def _read(
    leases: str,
    alias: str,
    since: Moment | None,
    until: Moment | None,
    name: str = "",
    most: int | None = None,
) -> list[Row]:
    check_period(since, until)
    connection = connections[alias]
    run, lease = (connection.ops.quote_name(model._meta.db_table) for model in (Run, RunLease))
    params = {
        **_bound("since", since),
        **_bound("until", until),
        "length": PERIOD.total_seconds(),
        "name": name,
        "most": most,
    }
    statement = _STATISTICS.format(
        leases=leases.format(lease=lease),
        run=run,
        outcomes=_counts("outcome", _OUTCOMES, "ran"),
        declines=_counts("reason", _REASONS, "NOT ran"),
        shares=_SHARES,
        newest="" if most is None else _NEWEST,
    )
    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        columns = [column.name for column in cursor.description]
        return [_finish(dict(zip(columns, row, strict=True))) for row in cursor.fetchall()]


def _bound(name: str, moment: Moment | None) -> dict[str, float | None]:
    """A moment as parameters: one for an instant, and one for how long ago."""
    return {
        name: moment.timestamp() if isinstance(moment, datetime) else None,
        f"{name}_ago": moment.total_seconds() if isinstance(moment, timedelta) else None,
    }


def _finish(row: Row) -> Row:
    duration = _figures(row["duration"])
    outcomes = dict(zip(_OUTCOMES, row["outcomes"], strict=True))
    return {
        "lease_name": row["lease_name"],
        "since": iso(row["since"]),
        "until": iso(row["until"]),
        "every": row["every"],
        "runs": row["runs"],
        "outcomes": _those_that_occurred(outcomes),
        "success_rate": _success_rate(outcomes),
        "duration": duration,
        "share": {key: _share(value, row["every"]) for key, value in duration.items()},
        "waited": _figures(row["waited"]),
        "lag": _figures(row["lag"]),
        "held": row["held"],
        "declined": row["declined"],
        "declines": _those_that_occurred(dict(zip(_REASONS, row["declines"], strict=True))),
        "declined_in_a_row": row["declined_in_a_row"],
        "last_outcome": row["last_outcome"],
        "last_success": iso(row["last_success"]),
    }


def _figures(values: list[float] | None) -> dict[str, float | None]:
    return dict(zip(FIGURES, values or (None, None, None, None), strict=True))


def _share(length: float | None, every: float | None) -> float | None:
    return length / every if length is not None and every else None


def _those_that_occurred(counts: dict[str, int]) -> dict[str, int]:
    return {key: count for key, count in counts.items() if count}


def _success_rate(outcomes: dict[str, int]) -> float | None:
    successes = outcomes[Outcome.SUCCEEDED]
    decided = successes + sum(outcomes[failure] for failure in FAILURES)
    return successes / decided if decided else None
