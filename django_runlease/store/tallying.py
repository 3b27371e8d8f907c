"""What is added to the tallies, and what they know of generations."""

from __future__ import annotations

import json

from django.db import connections

from ..models import Measure, Tally
from ..tallies import Totals

# In the order of their key, so that two who add at once do not wait for each other in a circle.
_ADD = """
    INSERT INTO runlease_tally AS tally
           (lease_name, measure, outcome, reason, count, seconds, buckets)
    SELECT *
      FROM jsonb_to_recordset(%s::jsonb) AS more (lease_name text, measure text, outcome text,
           reason text, count bigint, seconds numeric, buckets jsonb)
     ORDER BY lease_name, measure, outcome, reason
        ON CONFLICT (lease_name, measure, outcome, reason) DO UPDATE
       SET count = tally.count + excluded.count,
           seconds = tally.seconds + excluded.seconds,
           buckets = (SELECT jsonb_agg(own.n::bigint + more.n::bigint ORDER BY place)
                        FROM jsonb_array_elements_text(tally.buckets)
                                 WITH ORDINALITY AS own (n, place)
                        JOIN jsonb_array_elements_text(excluded.buckets)
                                 WITH ORDINALITY AS more (n, place) USING (place))
"""

_KEEP_GENERATION = """
    INSERT INTO runlease_tally AS tally
           (lease_name, measure, outcome, reason, count, seconds, buckets)
    VALUES (%s, %s, '', '', %s, 0, '[]')
        ON CONFLICT (lease_name, measure, outcome, reason) DO UPDATE
       SET count = greatest(tally.count, excluded.count)
"""


def add(totals: Totals, alias: str) -> None:
    """Add *totals* to the tallies."""
    if not totals:
        return
    rows = [
        {
            **key._asdict(),
            "count": total.count,
            "seconds": str(total.seconds),
            "buckets": total.buckets,
        }
        for key, total in totals.items()
    ]
    with connections[alias].cursor() as cursor:
        cursor.execute(_ADD, [json.dumps(rows)])


def keep_generation(name: str, generation: int, alias: str) -> None:
    """Note that *name* has had *generation*, for the time when no lease and no Run tells it."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_KEEP_GENERATION, [name, Measure.GENERATION, generation])


def generation_kept(name: str, alias: str) -> int:
    """The highest generation that was noted of *name*; 0 if none was."""
    kept = Tally.objects.using(alias).filter(lease_name=name, measure=Measure.GENERATION)
    return kept.values_list("count", flat=True).first() or 0
