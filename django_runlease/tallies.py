"""What the history comes to: counts, seconds and buckets, of what is in it and what ever was.

Sums of seconds are decimal, as exact as the instants in the rows. With floats a sum would change
in its last digits when rows move from the history into a tally, and a counter that falls by so
little is a counter that was reset, to whoever reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import connections

from .models import Measure, Outcome, TallyMark

BUCKETS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)
"""Seconds, each the inclusive upper bound of a bucket. A last one has no bound."""

TIMED = (
    Outcome.SUCCEEDED,
    Outcome.FAILED,
    Outcome.TIMED_OUT,
    Outcome.STALLED,
    Outcome.TERMINATED,
)
"""Outcomes of runs whose end was seen. That of an abandoned or lost run is a guess, which its
holder may correct when it wakes; a duration that is corrected would make a counter fall."""


class Key(NamedTuple):
    """What is counted together. The reason is that of a declined tick, else empty."""

    lease_name: str
    measure: str
    outcome: str
    reason: str = ""


@dataclass(kw_only=True)
class Total:
    """How many, and of what has a length: how long in all, and how many in each bucket."""

    count: int = 0
    seconds: Decimal = Decimal(0)
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))

    def add(self, other: Total) -> None:
        self.count += other.count
        self.seconds += other.seconds
        self.buckets = [own + more for own, more in zip(self.buckets, other.buckets, strict=True)]


Totals = dict[Key, Total]


def add_up(parts: Iterable[tuple[Key, Total]], totals: Totals | None = None) -> Totals:
    """The *parts*, those of one key added up, and added to *totals* if there are any."""
    totals = {} if totals is None else totals
    for key, total in parts:
        totals.setdefault(key, Total()).add(total)
    return totals


# The bounds are inclusive, those of width_bucket are not: so both are negated.
_BOUNDS = f"ARRAY[{', '.join(str(-bound) for bound in reversed(BUCKETS))}]::double precision[]"


def _bucket(seconds: str) -> str:
    return f"{len(BUCKETS)} - width_bucket(-{seconds}, {_BOUNDS}) AS {seconds}_bucket"


def _sum(seconds: str) -> str:
    # In whole microseconds, which is what the instants have, and which add up without an error.
    return f"sum(round({seconds} * 1e6)::bigint) / 1e6"


_TIMED = ", ".join(f"'{outcome.value}'" for outcome in TIMED)


def sums(source: str) -> str:
    """SQL that groups the Runs of *source* for :func:`parts`. Bypasses are no runs of a job."""
    # OFFSET 0 keeps the planner from the columns' own statistics. It would expect a group for
    # nearly every row, and sort them all on disk.
    return f"""
        SELECT lease_name, outcome, reason, duration_bucket, waited_bucket, lag_bucket, count(*),
               {_sum("duration")}, {_sum("waited")}, {_sum("lag")},
               count(*) FILTER (WHERE took_over)
          FROM (SELECT *, {_bucket("duration")}, {_bucket("waited")}, {_bucket("lag")}
                  FROM (SELECT lease_name, outcome,
                               CASE outcome WHEN 'declined' THEN left(reason, 20) ELSE '' END
                                   AS reason,
                               took_over_from <> '' AS took_over,
                               CASE WHEN outcome IN ({_TIMED}) THEN
                                   greatest(date_part('epoch', finished_at - started_at), 0) END
                                   AS duration,
                               CASE WHEN outcome <> 'declined' OR waited > interval '0' THEN
                                   date_part('epoch', waited) END AS waited,
                               CASE WHEN outcome <> 'declined' THEN date_part('epoch', lag) END
                                   AS lag
                          FROM {source}
                         WHERE trigger <> 'bypass') AS measured
                OFFSET 0) AS sorted
         GROUP BY lease_name, outcome, reason, duration_bucket, waited_bucket, lag_bucket"""  # noqa: S608  made of texts of ours


def parts(row: tuple[Any, ...]) -> Iterable[tuple[Key, Total]]:
    """The parts that a row of :func:`sums` adds to the totals.

    A run counts by its outcome once it has one. What it waited, and its lag, are known from its
    start on. A declined tick has no lag, since nothing started; it counts among those that waited
    if it did, in vain.
    """
    name, outcome, reason, *row_buckets = row[:6]
    count, *row_seconds, takeovers = row[6:]
    lengths = zip(
        (Measure.DURATION, Measure.WAITED, Measure.LAG), row_buckets, row_seconds, strict=True
    )
    for measure, bucket, seconds in lengths:
        if bucket is not None or (measure == Measure.DURATION and outcome != Outcome.RUNNING):
            total = Total(count=count, seconds=seconds or Decimal(0))
            if bucket is not None:
                total.buckets[bucket] = count
            yield Key(name, measure, outcome, reason), total
    if takeovers:
        yield Key(name, Measure.TAKEOVER, outcome, reason), Total(count=takeovers)


# What is counted already, known from a moment ago, is given as a number, for the planner to see how
# little is left. It may have become more since then.
_UNCOUNTED = """
    (SELECT * FROM runlease_run
      WHERE id > %s AND id > coalesce((SELECT up_to FROM runlease_tallymark), 0)
      UNION ALL
     SELECT * FROM runlease_run
      WHERE id = ANY (ARRAY(SELECT jsonb_array_elements_text(still_open)::bigint
                              FROM runlease_tallymark))) AS uncounted
"""
_ALL = f"""
    WITH live AS ({sums(_UNCOUNTED)})
    SELECT NULL AS measure, live.*, NULL::text AS buckets FROM live
     UNION ALL
    SELECT measure, lease_name, outcome, reason, NULL, NULL, NULL, count, seconds, NULL, NULL,
           NULL, buckets::text
      FROM runlease_tally WHERE measure <> '{Measure.GENERATION.value}'
"""  # noqa: S608  made of texts of ours


def totals(alias: str) -> Totals:
    """All that has ever happened: the tallies, and the Runs that they have not counted.

    One statement sees one moment, so a Run that is being counted is among the Runs or in the
    tallies, and never in both or none.
    """
    mark = TallyMark.objects.using(alias).values_list("up_to", flat=True).first() or 0
    found: Totals = {}
    with connections[alias].cursor() as cursor:
        cursor.execute(_ALL, [mark])
        for measure, *row, buckets in cursor:
            if measure is None:
                add_up(parts(tuple(row)), found)
            else:
                key = Key(row[0], measure, row[1], row[2])
                total = Total(count=row[6], seconds=row[7], buckets=json.loads(buckets))
                add_up([(key, total)], found)
    return found
