"""Open runs whose holders are gone are closed, with their true end, and no others."""

import subprocess
from datetime import timedelta

import pytest
from django.db import transaction

from django_runlease import LeaseLost, claim, lease, signals, store
from django_runlease.clock import Now, Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Closing
from django_runlease.testing import expire_now

from .factories import RunFactory
from .support import expire, granted, open_transaction, spawn_python, together

pytestmark = pytest.mark.django_db(transaction=True)


def hold(name="job"):
    held = claim(name, ttl=60, heartbeat=False)
    assert held, held
    return held


def close(name=None):
    return store.close_dead_runs("default", name)


def row(held):
    return Run.objects.get(pk=held.run_id)


def test_the_run_of_a_live_holder_stays_open():
    held = hold()
    assert close() == []
    assert row(held).outcome == Outcome.RUNNING
    held.release()


def test_the_run_of_an_expired_lease_ends_when_it_expired():
    held = hold()
    Run.objects.update(started_at=Now() - Seconds(timedelta(minutes=9)))
    RunLease.objects.update(expires_at=Now() - Seconds(timedelta(minutes=5)))
    (closed,) = close()
    lease_row, run = RunLease.objects.get(), row(held)
    assert (run.outcome, run.finished_at) == (Outcome.ABANDONED, lease_row.expires_at)
    assert run.reason == closed.reason == "never released; its lease had expired"
    assert closed.duration == pytest.approx(240, abs=60)
    assert (closed.run_id, closed.generation, closed.name) == (run.pk, 1, "job")
    assert lease_row.token is not None
    assert close() == []
    held.release()


def test_the_run_of_a_killed_holder_is_closed_at_once():
    code = """
import sys
from django_runlease import claim
held = claim("job", ttl="10m")
print("up", flush=True)
sys.stdin.read()
"""
    process = spawn_python(code, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "up\n"
        assert close() == []
    finally:
        process.kill()
        process.communicate()
    (closed,) = close()
    run = Run.objects.get()
    assert run.reason == closed.reason == "never released; its process is gone"
    assert run.finished_at < RunLease.objects.get().expires_at


def test_a_run_whose_lease_somebody_else_has_claimed_ended_before_that_claim():
    RunFactory(lease_name="job", running=True, started_at=Now() - Seconds(timedelta(hours=1)))
    old = Run.objects.get()
    held = hold()
    Run.objects.filter(pk=old.pk).update(outcome=Outcome.RUNNING, finished_at=None)
    (closed,) = close()
    old.refresh_from_db()
    assert closed.reason == "never closed; its lease has changed hands"
    assert old.finished_at == RunLease.objects.get().claimed_at
    assert row(held).outcome == Outcome.RUNNING
    held.release()


def test_a_run_whose_lease_was_removed_is_closed():
    held = hold()
    RunLease.objects.all().delete()
    (closed,) = close()
    assert closed.reason == "never closed; its lease has changed hands"
    assert row(held).finished_at is not None
    held.release()


def test_those_of_one_name_can_be_closed():
    for name in ("a", "b"):
        granted(name)
        expire(name)
    assert [run.name for run in close("b")] == ["b"]
    assert Run.objects.running().get().lease_name == "a"


def test_of_many_that_close_one_does_and_tells():
    for name in "abcd":
        granted(name)
        expire(name)
    told = []

    def receive(run_id, outcome, **facts):
        told.append((run_id, outcome))

    signals.run_finished.connect(receive)
    try:
        closed = together(*[close] * 5)
    finally:
        signals.run_finished.disconnect(receive)
    assert sum(map(len, closed)) == len(told) == 4
    assert set(told) == {(run.pk, Outcome.ABANDONED) for run in Run.objects.all()}


def test_a_run_that_is_being_closed_by_somebody_else_is_left_to_them():
    held = hold()
    expire_now(held)
    with open_transaction("SELECT * FROM runlease_run FOR UPDATE"):
        assert close() == []
    assert row(held).outcome == Outcome.RUNNING
    held.release()


def test_a_holder_that_wakes_amends_its_run_to_lost():
    held = hold()
    expire_now(held)
    close()
    assert row(held).outcome == Outcome.ABANDONED
    with pytest.raises(LeaseLost):
        held.check()
    assert not held.release()
    assert row(held).outcome == Outcome.LOST
    assert RunLease.objects.get().token is None


def test_a_holder_whose_lease_is_still_its_own_has_the_last_word():
    """As when a renewal was under way while its lease looked expired."""
    held = hold()
    expires_at = RunLease.objects.get().expires_at
    store.expire("job", "default")
    close()
    RunLease.objects.update(expires_at=expires_at)
    assert held.end(Closing(outcome=Outcome.FAILED, reason="as it was"))
    assert (row(held).outcome, row(held).reason) == (Outcome.FAILED, "as it was")


def test_without_open_runs_nothing_is_written(django_assert_num_queries):
    with lease("job"):
        pass
    with django_assert_num_queries(4):
        close()


def test_within_an_open_transaction_it_is_refused():
    with transaction.atomic(), pytest.raises(RunLeaseError, match="open transaction"):
        close()
