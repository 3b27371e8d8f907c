"""The history is counted ahead of its deletion: each run one time, and nobody reads it again."""

import signal
import subprocess
import threading
from datetime import timedelta
from io import StringIO
from itertools import pairwise

import psutil
import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_runlease import store
from django_runlease.clock import Now, Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Measure, Outcome, Run, Tally, TallyMark
from django_runlease.store import connection as store_connection
from django_runlease.store import counting
from django_runlease.tallies import totals

from .factories import RunFactory, RunLeaseFactory
from .past import fresh, insert_runs, old, prune
from .plans import emptied, work
from .support import (
    DEADLINE,
    backends,
    elsewhere,
    expire,
    granted,
    open_transaction,
    spawn_python,
    together,
    wait_for,
)

DONE = store.Closing(outcome=Outcome.SUCCEEDED)


def count(**more):
    store.count_runs("default", **more)


def counted(measure=Measure.DURATION):
    """What the tallies have counted, by outcome."""
    found = {}
    for tally in Tally.objects.filter(measure=measure):
        found[tally.outcome] = found.get(tally.outcome, 0) + tally.count
    return found


def known(measure=Measure.DURATION):
    """What is known in all, by outcome."""
    found = {}
    for key, total in totals("default").items():
        if key.measure == measure:
            found[key.outcome] = found.get(key.outcome, 0) + total.count
    return found


def fallen(before, after):
    """The totals of *before* that are lower, or missing, *after*."""

    def by_reader(told):
        merged = {}
        for key, total in told.items():
            outcome = key.outcome if key.measure == Measure.DURATION else ""
            merged.setdefault((key.lease_name, key.measure, outcome, key.reason), []).append(total)
        return {
            key: (sum(t.count for t in found), sum(t.seconds for t in found))
            for key, found in merged.items()
        }

    was, now = by_reader(before), by_reader(after)
    return {key: was[key] for key in was if not now.get(key, (-1, -1)) >= was[key]}


# -- what is counted


@pytest.mark.django_db
@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_counting_changes_no_total_and_happens_one_time(batch):
    insert_runs(10, names=2)
    old(3, took_over_from="x", lag=timedelta(seconds=2))
    old(3, trigger="bypass", generation=None)
    before = totals("default")
    for _ in range(2):
        count(batch=batch)
        assert totals("default") == before
        assert sum(counted().values()) == 13


@pytest.mark.django_db
def test_what_is_counted_is_not_read_again():
    emptied("runlease_run")
    insert_runs(4000)
    count()
    RunFactory.create_batch(3, lease_name="job-0")
    # The newest are found by the primary key, past all others.
    plan, in_vain = work(lambda: totals("default"))
    assert "Seq Scan on runlease_run" not in plan
    assert "runlease_run_pkey" in plan
    assert in_vain == 0


@pytest.mark.django_db
def test_a_run_counts_when_it_has_ended_and_its_wait_from_its_start_on():
    claimed = granted()
    count()
    (pk,) = TallyMark.objects.get().still_open
    assert pk == claimed.run_id
    assert (counted(), counted(Measure.WAITED)) == ({}, {})
    assert sum(known(Measure.WAITED).values()) == 1
    old(1, 3, waited=None)
    count()
    assert counted() == {"succeeded": 3}
    store.release(claimed, store.Closing(outcome=Outcome.FAILED))
    assert known() == {"succeeded": 3, "failed": 1}
    count()
    assert counted() == known() == {"succeeded": 3, "failed": 1}
    assert sum(counted(Measure.WAITED).values()) == 1
    assert TallyMark.objects.get().still_open == []


@pytest.mark.django_db
def test_a_run_from_before_a_clock_that_was_set_back_counts():
    old(1, 2)
    count()
    old(400)
    assert known() == {"succeeded": 3}
    count()
    assert counted() == {"succeeded": 3}


@pytest.mark.django_db
def test_a_check_counts():
    granted()
    old(1)
    call_command("runlease", "check", stdout=StringIO())
    assert counted() == {"succeeded": 1}


@pytest.mark.django_db(transaction=True)
def test_within_an_open_transaction_nothing_is_counted():
    old(1)
    with transaction.atomic(), pytest.raises(RunLeaseError, match="within an open transaction"):
        count()
    assert counted() == {}


# -- runs that change after they were counted


@pytest.mark.django_db
@pytest.mark.parametrize("when", ["running", "before", "after", "never"])
def test_a_run_that_is_lost_after_it_was_abandoned_counts_as_both_and_its_wait_once(when):
    claimed = granted()
    if when == "running":
        count()
    expire()
    granted()
    if when == "before":
        count()
    before = totals("default")
    store.release(claimed, DONE)
    if when == "after":
        count()
    assert known() == {"abandoned": 1, "lost": 1}
    assert sum(known(Measure.WAITED).values()) == 2
    assert not fallen(before, totals("default"))


@pytest.mark.django_db
@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_a_run_that_was_given_up_and_yet_succeeds_counts_with_its_duration(when):
    claimed = granted()
    Run.objects.update(outcome=Outcome.ABANDONED, started_at=Now() - Seconds(timedelta(seconds=9)))
    if when == "before":
        count()
    store.release(claimed, DONE)
    if when == "after":
        count()
    assert known() == {"abandoned": 1, "succeeded": 1}
    (took,) = [t for key, t in totals("default").items() if key.outcome == "succeeded"][:1]
    assert took.seconds >= 9
    assert sum(took.buckets) == 1


@pytest.mark.django_db(transaction=True)
def test_a_holder_that_wakes_while_its_run_is_being_counted_waits_for_that():
    claimed = granted()
    expire()
    granted()
    counting_now, released = threading.Event(), threading.Event()

    def count_slowly():
        def hold():
            more = counting._count_batch("default", claimed.run_id, 100)
            counting_now.set()
            wait_for(lambda: elsewhere(lambda: backends("wait_event_type = 'Lock'")))
            return more

        store_connection.in_transaction("default", hold)

    def wake():
        assert counting_now.wait(DEADLINE)
        store.release(claimed, DONE)
        released.set()

    together(count_slowly, wake)
    assert released.is_set()
    assert known() == {"abandoned": 1, "lost": 1}
    count()
    assert known() == {"abandoned": 1, "lost": 1}


@pytest.mark.django_db(transaction=True)
def test_what_a_holder_is_changing_is_counted_by_the_next():
    old(1, lease_name="other")
    count()
    claimed = granted()
    expire()
    granted()
    count_while = []

    def amend():
        store.runs.amend_to_lost(claimed.run_id, claimed.token, DONE, "default")
        elsewhere(lambda: store_connection.in_transaction("default", look))

    def look():
        count_while.append(counting._count_batch("default", claimed.run_id, 100))

    store_connection.in_transaction("default", amend)
    assert count_while == [False]
    assert known() == {"succeeded": 1, "abandoned": 1, "lost": 1}
    count()
    assert known() == {"succeeded": 1, "abandoned": 1, "lost": 1}


# -- beside others


INSERT = """
    INSERT INTO runlease_run (lease_name, holder, host, trigger, started_at, finished_at, outcome,
                              reason, error, output)
    VALUES ('job', '', '', '', now(), now(), 'failed', '', '', '')
"""


@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_committed_after_those_with_higher_keys_counts(monkeypatch):
    monkeypatch.setattr(counting, "PATIENCE", 0.1)
    old(1)

    def insert_late():
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute(INSERT)
            elsewhere(lambda: old(1, 2))
            elsewhere(count)

    elsewhere(insert_late)
    assert known() == {"succeeded": 3, "failed": 1}
    count()
    assert counted() == {"succeeded": 3, "failed": 1}


@pytest.mark.django_db(transaction=True)
def test_counting_waits_for_a_transaction_that_is_about_to_end(monkeypatch):
    monkeypatch.setattr(counting, "PATIENCE", DEADLINE)
    old(1)
    with open_transaction(INSERT) as finish:

        def end():
            wait_for(lambda: backends("query LIKE '%pg_locks%'"))
            finish.set()

        together(count, end)
    assert counted() == {"succeeded": 1}


@pytest.mark.django_db(transaction=True)
def test_what_could_not_be_counted_is_not_pruned(monkeypatch):
    monkeypatch.setattr(counting, "PATIENCE", 0.1)
    fresh()
    (gone,) = old(40, generation=1)
    count()
    (stays,) = old(40, generation=1)
    before = totals("default")
    with open_transaction(INSERT):
        assert prune().runs == 1
        assert set(Run.objects.values_list("pk", flat=True)) >= {stays}
        assert not Run.objects.filter(pk=gone).exists()
    assert totals("default") == before
    assert prune().runs == 1
    assert totals("default") == before


@pytest.mark.django_db(transaction=True)
def test_who_finds_somebody_counting_leaves_it_to_them():
    old(1)
    count()
    old(1)
    with open_transaction("SELECT 1 FROM runlease_tallymark FOR UPDATE"):
        count()
        assert counted() == {"succeeded": 1}
    count()
    assert counted() == {"succeeded": 2}


@pytest.mark.django_db(transaction=True)
def test_no_total_falls_and_none_is_counted_twice_whatever_happens_at_once():
    names = [f"job-{n}" for n in range(3)]
    insert_runs(600, names=3)
    seen, ended = [totals("default")], threading.Event()
    at_work = [3]

    def work_as(name):
        """Succeed, or be taken over while at work and wake then."""
        try:
            for turn in range(20):
                claimed = granted(name)
                if turn % 2:
                    expire(name)
                    store.close_dead_runs("default", name)
                    successor = granted(name)
                    store.release(claimed, DONE)
                    claimed = successor
                store.release(claimed, DONE)
        finally:
            at_work[0] -= 1
            if not at_work[0]:
                ended.set()

    def repeatedly(call):
        def until_ended():
            while not ended.is_set():
                call()

        return until_ended

    together(
        *[lambda name=name: work_as(name) for name in names],
        repeatedly(lambda: count(batch=7)),
        repeatedly(lambda: count(batch=50)),
        repeatedly(lambda: prune(batch=20)),
        repeatedly(lambda: seen.append(totals("default"))),
    )
    seen.append(totals("default"))
    for before, after in pairwise(seen):
        assert not fallen(before, after)
    count()
    assert totals("default") == seen[-1]
    # 300 and one of each name were there; each had 30 runs, and 10 of them were taken over.
    assert known() == {"declined": 300, "succeeded": 303 + 60, "abandoned": 30, "lost": 30}
    assert known(Measure.TAKEOVER) == {"succeeded": 30}


# It goes on for a while, and then waits to be killed.
KILLED = """
import itertools, sys
from django_runlease import store
from django_runlease.store import counting
whole = counting._count_batch
batches = itertools.count()
def told(*arguments):
    print("batch", flush=True)
    more = whole(*arguments)
    if next(batches) == 50:
        sys.stdin.readline()
    return more
counting._count_batch = told
store.count_runs("default", batch=20)
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_count_that_is_killed_has_counted_nothing_twice_and_the_next_goes_on(number):
    insert_runs(4000)
    before = totals("default")
    process = spawn_python(KILLED, stdin=subprocess.PIPE)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode != 0
    assert totals("default") == before
    wait_for(lambda: not backends("xact_start IS NOT NULL"))
    count()
    assert totals("default") == before
    assert sum(counted().values()) == 4001


FROZEN = """
import os, signal
from django_runlease import store
from django_runlease.store import counting
counting.IDLE = 5.0
add = counting.tallying.add
def freeze(*arguments):
    add(*arguments)
    os.kill(os.getpid(), signal.SIGSTOP)
counting.tallying.add = freeze
store.count_runs("default")
"""


@pytest.mark.django_db(transaction=True)
def test_who_is_frozen_while_it_counts_keeps_nobody_from_counting():
    insert_runs(40)
    before = totals("default")
    with spawn_python(FROZEN) as process:
        try:
            wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
            wait_for(lambda: not backends("xact_start IS NOT NULL"))
            count()
            assert totals("default") == before
            assert sum(counted().values()) == 41
            process.send_signal(signal.SIGCONT)
            process.communicate(timeout=DEADLINE)
            assert process.returncode != 0
        finally:
            process.kill()
    assert totals("default") == before


@pytest.mark.django_db
def test_the_mark_is_the_only_one():
    RunLeaseFactory(name="job")
    for _ in range(3):
        old(1)
        count()
    assert TallyMark.objects.count() == 1
