"""A long history, and how queries read it."""

import re
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_runlease.clock import Now, Seconds

from .factories import RunFactory


def emptied(*tables: str) -> None:
    """Tables and indexes of their least size: what other tests have rolled back still fills them,
    some more than others, and the planner goes by that."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)}")


@pytest.fixture
def long_history(db: None) -> None:
    """20 leases with 40,000 runs that succeeded, 2,000 newer declines of one, and before them all
    one failure of another."""
    emptied("runlease_run")
    RunFactory(
        lease_name="job-7",
        outcome="failed",
        generation=0,
        started_at=Now() - Seconds(timedelta(days=2)),
    )
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                                      started_at, outcome, reason, error, output)
            SELECT 'job-' || CASE WHEN n > 40000 THEN 3 ELSE n %% 20 END, %s::uuid, n, 'h:1', 'h',
                   'api', now() - make_interval(secs => (42000 - n) * 2),
                   CASE WHEN n > 40000 THEN 'declined' ELSE 'succeeded' END, '', '', ''
              FROM generate_series(1, 42000) AS n
            """,
            [uuid.uuid4()],
        )
        cursor.execute("ANALYZE runlease_run")


def count_queries(read: Callable[[], object]) -> int:
    with CaptureQueriesContext(connection) as captured:
        read()
    return len(captured)


def work(read: Callable[[], object]) -> tuple[str, int]:
    """The plans of all queries of *read*, and how many rows they read in vain."""
    with CaptureQueriesContext(connection) as captured:
        read()
    lines = []
    with connection.cursor() as cursor:
        for query in captured:
            cursor.execute("EXPLAIN (ANALYZE, TIMING OFF) " + query["sql"])
            lines += [line for (line,) in cursor.fetchall()]
    plan = "\n".join(lines)
    return plan, sum(map(int, re.findall(r"Rows Removed by Filter: (\d+)", plan)))


def rows_read(read: Callable[[], object]) -> Counter[str]:
    """How many rows all queries of *read* look at, by table, whether they are wanted or not."""
    with CaptureQueriesContext(connection) as captured:
        read()
    found: Counter[str] = Counter()
    with connection.cursor() as cursor:
        for query in captured:
            if query["sql"].lstrip().startswith(("SELECT", "WITH")):
                cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + query["sql"])
                _count(cursor.fetchone()[0][0]["Plan"], found)
    return found


def _count(node: dict[str, Any], found: Counter[str]) -> None:
    if "Relation Name" in node:
        in_vain = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
        rows = node["Actual Rows"] + sum(node.get(key, 0) for key in in_vain)
        found[node["Relation Name"]] += round(rows * node["Actual Loops"])
    for below in node.get("Plans", ()):
        _count(below, found)
