"""Histories that go back for weeks, and their end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import connection

from django_runlease import store
from django_runlease.clock import Now, Seconds
from django_runlease.models import Outcome

from .factories import RunFactory, RunLeaseFactory


def ago(days: float) -> Any:
    return Now() - Seconds(timedelta(days=days))


def old(days: float, count: int = 1, **more: Any) -> list[int]:
    """Runs of ``job`` that started so many days ago, and took a second."""
    times = {"started_at": ago(days)}
    if more.get("outcome") != Outcome.RUNNING:
        times["finished_at"] = ago(days) + Seconds(timedelta(seconds=1))
    made = RunFactory.create_batch(count, **{"lease_name": "job", **times, **more})
    return [run.pk for run in made]


def fresh(**more: Any) -> list[int]:
    """A run of today that is the last success, and has the highest generation."""
    return old(0.1, generation=10**9, **more)


def prune(runs: float = 30, declines: float = 7, **more: Any) -> store.Pruned:
    """The end of a prune that keeps runs and declined ticks for so many days."""
    lengths = {"keep_runs": timedelta(days=runs), "keep_declines": timedelta(days=declines)}
    return list(store.prune("default", **lengths, **more))[-1]


def insert_runs(count: int, names: int = 1) -> None:
    """Many old runs, half of them declined ticks, and a fresh success of each name."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                   started_at, finished_at, outcome, reason, waited, lag, error, output)
            SELECT 'job-' || n %% %s, gen_random_uuid(), CASE WHEN n %% 4 < 2 THEN n END, 'h', 'h',
                   'api', now() - make_interval(days => 40, secs => -n),
                   now() - make_interval(days => 40, secs => -n - n %% 100 - 0.1),
                   CASE WHEN n %% 4 < 2 THEN 'succeeded' ELSE 'declined' END,
                   CASE WHEN n %% 4 < 2 THEN '' ELSE 'held' END,
                   make_interval(secs => n %% 7 * 0.1), make_interval(secs => 0.1), '', ''
              FROM generate_series(1, %s) AS n
            """,
            [names, count],
        )
        cursor.execute("ANALYZE runlease_run")
    for n in range(names):
        RunLeaseFactory(name=f"job-{n}")
        fresh(lease_name=f"job-{n}")
