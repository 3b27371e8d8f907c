"""What a prune deletes, what it keeps, and that nothing which it deletes goes uncounted."""

import re
import signal
import subprocess
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_runlease import store
from django_runlease.clock import Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Alert, Measure, Outcome, Run, RunLease, Tally
from django_runlease.store import pruning
from django_runlease.tallies import totals

from .factories import RunLeaseFactory
from .past import ago, fresh, insert_runs, old, prune
from .plans import emptied
from .support import DEADLINE, elsewhere, granted, open_transaction, refused, spawn_python, together

DONE = store.Closing(outcome=Outcome.SUCCEEDED)


def left():
    return set(Run.objects.values_list("pk", flat=True))


def batch_of(name, *, latest, generation):
    """The parameters of one batch's statement."""
    places = {"start": float("-inf"), "id": 0, "batch": pruning.BATCH}
    cutoffs = dict.fromkeys(("latest", "runs", "declines"), latest)
    counted = {"counted": 2**62, "still_open": []}
    return {"name": name, "success": None, "generation": generation, **places, **cutoffs, **counted}


# -- what goes, and what stays


@pytest.mark.django_db
def test_runs_and_declined_ticks_go_each_after_its_own_time():
    fresh()
    gone = old(31, outcome=Outcome.FAILED) + old(8, declined=True) + old(31, declined=True)
    kept = old(29, outcome=Outcome.FAILED) + old(6, declined=True)
    done = prune()
    assert left().isdisjoint(gone)
    assert left() >= set(kept)
    assert (done.share, done.runs, done.declines, done.alerts) == (1.0, 1, 2, 0)


@pytest.mark.django_db
def test_declined_ticks_may_be_kept_for_longer_than_runs():
    fresh()
    (run,) = old(10, outcome=Outcome.FAILED)
    (declined,) = old(10, declined=True)
    prune(runs=5, declines=20)
    assert run not in left()
    assert declined in left()


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [o for o in Outcome if o != Outcome.RUNNING])
def test_however_a_run_ended_it_goes(outcome):
    fresh()
    old(31, outcome=outcome)
    prune()
    assert Run.objects.count() == 1


@pytest.mark.django_db
def test_a_running_run_stays_however_old():
    fresh()
    running = old(400, running=True, outcome=Outcome.RUNNING)
    assert prune().runs == 0
    assert left() >= set(running)


@pytest.mark.django_db
def test_a_run_is_kept_from_its_end_on():
    fresh()
    (long,) = old(40, outcome=Outcome.FAILED)
    Run.objects.filter(pk=long).update(finished_at=ago(20))
    assert prune().runs == 0
    Run.objects.filter(pk=long).update(finished_at=ago(31))
    assert prune().runs == 1


@pytest.mark.django_db
def test_the_last_success_stays_and_a_bypass_is_none():
    old(60, generation=1)
    (success,) = old(50, generation=2)
    bypass = old(40, trigger="bypass", generation=None)
    failures = old(35, outcome=Outcome.FAILED, generation=3)
    fresh(outcome=Outcome.FAILED)
    assert prune().runs == 3
    assert success in left()
    assert left().isdisjoint(bypass + failures)


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.ABANDONED])
def test_the_run_with_the_highest_generation_stays_and_declines_after_it_do_not(outcome):
    old(60, generation=6, outcome=outcome)
    (highest,) = old(50, generation=7, outcome=outcome)
    old(40, 3, declined=True)
    prune()
    assert left() == {highest}
    assert granted().generation == 8


@pytest.mark.django_db
def test_the_highest_generation_stays_where_the_clock_was_set_back():
    (highest,) = old(60, generation=7, outcome=Outcome.FAILED)
    (newest,) = old(50, generation=6, outcome=Outcome.FAILED)
    prune()
    assert left() == {highest, newest}
    assert granted().generation == 8


@pytest.mark.django_db
def test_each_name_keeps_its_own():
    for name in ("a", "b", "Ä", '"; --', "c"):
        old(60, 3, lease_name=name, outcome=Outcome.FAILED, generation=1)
        old(50, lease_name=name, generation=2)
    assert prune().runs == 15
    assert sorted(Run.objects.values_list("lease_name", flat=True)) == sorted(
        ["a", "b", "Ä", '"; --', "c"]
    )


@pytest.mark.django_db
def test_names_without_a_lease_are_pruned_too_down_to_what_their_generation_is_known_by():
    RunLeaseFactory(name="other")
    old(60, generation=6)
    (highest,) = old(50, generation=7)
    old(45, 2, declined=True)
    prune()
    assert left() == {highest}


@pytest.mark.django_db
def test_of_a_lease_that_was_removed_in_order_no_run_stays():
    store.release(granted(), DONE)
    store.remove("job", "default", by="ann", unclaimed_for=timedelta(0))
    Run.objects.update(started_at=ago(40), finished_at=ago(40))
    (running,) = old(50, outcome=Outcome.RUNNING, generation=0)
    prune()
    assert left() == {running}
    assert granted().generation == 2


@pytest.mark.django_db
def test_alerts_go_when_they_were_resolved_longer_ago_than_runs_are_kept():
    common = {"kind": "failing", "severity": "warning", "lease_name": "job", "opened_at": ago(90)}
    Alert.objects.create(**common, resolved_at=ago(31))
    kept = {
        Alert.objects.create(**common, resolved_at=ago(29)).pk,
        Alert.objects.create(**common).pk,
    }
    assert prune().alerts == 1
    assert set(Alert.objects.values_list("pk", flat=True)) == kept


@pytest.mark.django_db
def test_an_empty_history_is_pruned_in_one_step():
    assert prune() == store.Pruned(share=1.0)


# -- what is counted


@pytest.mark.django_db
def test_what_is_deleted_is_in_the_tallies_and_all_totals_stay():
    fresh()
    old(50, 3, waited=timedelta(seconds=5), lag=timedelta(seconds=0.25), took_over_from="x")
    old(45, outcome=Outcome.FAILED, waited=None)
    old(40, 2, declined=True, waited=timedelta(seconds=9))
    old(40, declined=True, reason="busy", waited=timedelta(0))
    before = totals("default")
    done = prune()
    assert (done.runs, done.declines) == (4, 3)
    assert totals("default") == before
    told = {
        (t.measure, t.outcome, t.reason): (t.count, round(float(t.seconds), 3))
        for t in Tally.objects.all()
    }
    assert told == {
        (Measure.DURATION, "succeeded", ""): (4, 4),
        (Measure.DURATION, "failed", ""): (1, 1),
        (Measure.DURATION, "declined", "held"): (2, 0),
        (Measure.DURATION, "declined", "busy"): (1, 0),
        (Measure.WAITED, "succeeded", ""): (4, 15),
        (Measure.WAITED, "declined", "held"): (2, 18),
        (Measure.LAG, "succeeded", ""): (3, 0.75),
        (Measure.TAKEOVER, "succeeded", ""): (3, 0),
    }


@pytest.mark.django_db
def test_bypasses_are_pruned_and_counted_nowhere():
    fresh()
    before = totals("default")
    old(40, trigger="bypass", generation=None)
    assert totals("default") == before
    assert prune().runs == 1
    assert totals("default") == before
    assert set(Tally.objects.values_list("count", flat=True)) == {1}


@pytest.mark.django_db
def test_sums_stay_exact_through_many_prunes():
    fresh()
    for n in range(40):
        (pk,) = old(40)
        Run.objects.filter(pk=pk).update(
            finished_at=ago(40) + Seconds(timedelta(microseconds=100_001 * n + 7))
        )
        before = totals("default")
        assert prune(batch=1).runs == 1
        assert totals("default") == before


# -- batches


@pytest.mark.django_db(transaction=True)
def test_each_batch_is_a_transaction_of_its_own_and_looks_at_no_more_rows_than_it_may():
    fresh()
    old(40, 7, outcome=Outcome.FAILED)
    counts = []
    for done in store.prune(
        "default", keep_runs=timedelta(days=30), keep_declines=timedelta(days=7), batch=3
    ):
        counts.append((done.runs, elsewhere(Run.objects.count)))
        assert 0.0 <= done.share <= 1.0
        assert not connection.in_atomic_block
    assert counts == [(3, 5), (6, 2), (7, 1), (7, 1)]


@pytest.mark.django_db
def test_a_batch_goes_on_past_rows_of_one_moment_and_rows_that_stay():
    moment = Run.objects.get(pk=old(40)[0]).started_at
    old(1, 6, outcome=Outcome.RUNNING, generation=None)
    old(1, 6, outcome=Outcome.FAILED, generation=1)
    Run.objects.update(started_at=moment, finished_at=moment)
    fresh()
    assert prune(batch=2).runs == 7


@pytest.mark.django_db
def test_a_prune_that_was_stopped_has_lost_nothing_and_the_next_goes_on():
    fresh()
    old(40, 9, outcome=Outcome.FAILED)
    before = totals("default")
    keep = {"keep_runs": timedelta(days=30), "keep_declines": timedelta(days=7)}
    stopped = store.prune("default", **keep, batch=4)
    assert next(stopped).runs == 4
    stopped.close()
    assert totals("default") == before
    assert prune(batch=4).runs == 5
    assert totals("default") == before


# It goes on for a while, and then waits to be killed.
KILLED = """
import itertools, sys
from datetime import timedelta
from django_runlease import store
day = timedelta(days=1)
steps = itertools.count()
for done in store.prune("default", keep_runs=day, keep_declines=day, batch=20):
    print(done.runs + done.declines, flush=True)
    if next(steps) == 50:
        sys.stdin.readline()
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_prune_that_is_killed_has_lost_nothing_and_the_next_goes_on(number):
    insert_runs(4000)
    before, rows = totals("default"), Run.objects.count()
    process = spawn_python(KILLED, stdin=subprocess.PIPE)
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(number)
    process.communicate(timeout=DEADLINE)
    assert process.returncode != 0
    assert totals("default") == before
    removed = rows - Run.objects.count()
    assert removed >= 60
    done = prune(runs=1, declines=1)
    assert removed + done.runs + done.declines == 4000
    assert totals("default") == before


# -- beside others


@pytest.mark.django_db(transaction=True)
def test_of_prunes_at_once_each_row_is_deleted_and_counted_by_one():
    insert_runs(2000, names=3)
    before = totals("default")
    done = together(*[lambda: prune(batch=50)] * 4)
    assert sum(each.runs for each in done) == 1000
    assert sum(each.declines for each in done) == 1000
    assert Run.objects.count() == 3
    assert totals("default") == before


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_has_locked_is_left_for_the_next_prune():
    fresh()
    (locked, _) = old(40, 2, outcome=Outcome.FAILED)
    with open_transaction("SELECT 1 FROM runlease_run WHERE id = %s FOR UPDATE", [locked]):
        assert prune().runs == 1
        assert locked in left()
    assert prune().runs == 1


@pytest.mark.django_db(transaction=True)
def test_claims_declines_and_releases_pass_a_batch_that_is_under_way():
    store.release(granted(), DONE)
    old(40, 5, outcome=Outcome.FAILED, generation=0)
    moment = pruning.database_clock("default")
    parameters = batch_of("job", latest=moment, generation=1)
    before = Run.objects.count()
    with open_transaction(pruning._DELETE, parameters):
        claimed = granted()
        assert refused().declined.reason == "held"
        assert store.renew(claimed, timedelta(minutes=1), None) is None
        store.pause("job", "default", by="ann")
        assert store.release(claimed, DONE) is None
    assert Run.objects.count() == before + 1


@pytest.mark.django_db(transaction=True)
def test_within_an_open_transaction_nothing_is_pruned():
    insert_runs(4)
    with transaction.atomic(), pytest.raises(RunLeaseError, match="within an open transaction"):
        prune()
    assert Run.objects.count() == 5


@pytest.mark.django_db
def test_names_and_batches_are_found_by_an_index():
    emptied("runlease_run")
    insert_runs(40_000, names=4)
    batch = batch_of("job-3", latest=1e10, generation=10**9)
    with connection.cursor() as cursor:
        for sql, parameters in ((pruning._NAMES, [1e10]), (pruning._DELETE, batch)):
            cursor.execute("EXPLAIN " + sql, parameters)
            plan = "\n".join(line for (line,) in cursor.fetchall())
            assert "runlease_run_history" in plan
            assert not re.search(r"Seq Scan on runlease_run\b", plan), plan


@pytest.mark.django_db
def test_the_tally_of_a_name_does_not_touch_its_lease():
    RunLeaseFactory(name="job", held=True)
    lease = RunLease.objects.values().get()
    fresh()
    old(40, 3)
    prune()
    assert RunLease.objects.values().get() == lease
