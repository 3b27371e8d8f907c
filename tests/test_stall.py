"""A job that hangs: what becomes of its lease after ``stall_after``."""

import asyncio
import re
import threading
import time

import pytest

from django_runlease import (
    JobTimeout,
    LeaseLost,
    claim,
    clock,
    current_lease,
    heartbeat,
    lease,
    leased,
    runner,
    store,
)
from django_runlease.claiming import Claim
from django_runlease.jobs import Job
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Loss
from django_runlease.terms import resolve

from . import aio
from .support import (
    DEADLINE,
    backends,
    elsewhere,
    granted,
    open_transaction,
    spawn_manage,
    spawn_python,
    wait_for,
)

committed = pytest.mark.django_db(transaction=True)

TEXT = r"no progress since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, for longer than its stall_after of "


def row(name="job"):
    return RunLease.objects.get(name=name)


def state(name="job"):
    return RunLease.objects.with_state().get(name=name).state


def beating():
    return [t for t in threading.enumerate() if t.name.startswith("runlease-heartbeat")]


def hang():
    """What a job does that never ends, as far as its lease can tell."""
    assert current_lease().lost.wait(DEADLINE)


def be_silent(held, seconds):
    """Let the last progress lie that much further back."""
    held._progressed -= seconds


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_for(lambda: not beating())


# -- with a heartbeat


@committed
def test_the_lease_of_a_hung_job_expires_and_another_claims_it():
    held = claim("job", ttl=6, stall_after=600)
    first = row()
    # Renewed while it has not stalled.
    wait_for(lambda: row().expires_at > first.expires_at)
    be_silent(held, 900)
    assert held.lost.wait(DEADLINE)
    assert (held.lost_reason, held.remaining()) == ("stalled", 0)
    wait_for(lambda: state() == "expired")
    heir = elsewhere(granted)
    assert heir.generation == 2
    with pytest.raises(LeaseLost, match=f"job: the lease is lost: the job has made {TEXT}10m"):
        held.check()
    assert not held.release()
    assert row().token == heir.token
    run = Run.objects.get(pk=held.run_id)
    assert run.outcome == Outcome.LOST
    assert re.search(f"took it over; .* {TEXT}10m", run.reason)


@committed
def test_another_process_claims_while_the_hung_one_lives():
    hung = spawn_python(
        "import time; from django_runlease import claim\n"
        "held = claim('job', ttl=1, stall_after=1); print('held', flush=True); time.sleep(600)"
    )
    try:
        assert hung.stdout.readline() == "held\n"
        heir = claim("job", ttl=60, wait=DEADLINE)
        assert heir.generation == 2
        assert hung.poll() is None
        assert heir.release()
    finally:
        hung.kill()
        hung.communicate()


def in_a_block():
    with lease("job", ttl=600, stall_after=0.3):
        hang()


async def in_an_async_block():
    async with lease("job", ttl=600, stall_after=0.3) as held:
        while not held.lost.is_set():
            await asyncio.sleep(0.01)


@leased("job", ttl=600, stall_after=0.3)
def in_a_function():
    hang()


@leased("job", ttl=600, stall_after=0.3)
async def in_an_async_function():
    await asyncio.to_thread(current_lease().lost.wait, DEADLINE)


@committed
@pytest.mark.parametrize(
    "work",
    [
        in_a_block,
        lambda: aio.run(in_an_async_block),
        in_a_function,
        lambda: aio.run(in_an_async_function),
    ],
    ids=["lease", "async lease", "leased", "async leased"],
)
def test_at_the_end_a_stall_raises_lease_lost_and_the_lease_is_free(work):
    with pytest.raises(LeaseLost, match=f"job: the lease was lost: the job has made {TEXT}300ms"):
        work()
    assert state() == "free"
    run = Run.objects.get()
    assert run.outcome == Outcome.STALLED
    assert re.search(f"{TEXT}300ms", run.reason)


@committed
def test_a_claim_that_has_stalled_is_freed_by_its_release_which_says_false():
    held = claim("job", ttl=600, stall_after=0.3)
    assert held.lost.wait(DEADLINE)
    assert row().token == held.token
    assert held.release() is False
    assert (state(), Run.objects.get().outcome) == ("free", Outcome.STALLED)


@committed
def test_an_exception_of_the_body_is_not_masked_by_its_stall():
    with pytest.raises(ZeroDivisionError), lease("job", ttl=600, stall_after=0.3):
        hang()
        raise ZeroDivisionError
    run = Run.objects.get()
    assert run.outcome == Outcome.STALLED
    assert re.search(TEXT, run.reason)
    assert "ZeroDivisionError" in run.error
    assert state() == "free"


@committed
def test_the_check_of_a_stalled_job_ends_its_block():
    with pytest.raises(LeaseLost, match=TEXT), lease("job", ttl=600, stall_after=0.3) as held:
        while True:
            held.check()
    assert (state(), Run.objects.get().outcome) == ("free", Outcome.STALLED)


@committed
def test_progress_keeps_the_lease_and_it_is_renewed(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 60)
    held = claim("job", ttl=60, stall_after=600)
    for _ in range(3):
        be_silent(held, 500)
        held.progress(1)
        seen = row().renewed_at
        wait_for(lambda seen=seen: row().renewed_at > seen)
    assert held.lost_reason is None
    assert held.release()


@committed
def test_progress_costs_no_beat():
    held = claim("job", ttl=600, stall_after=6)
    began = clock.local()
    while clock.local() < began + 8:
        held.progress(1)
        time.sleep(0.02)
    held.check()
    assert row().renewed_at == row().claimed_at
    assert held.release()


@committed
def test_the_other_leases_of_its_process_are_renewed():
    other = claim("other", ttl=6)
    held = claim("job", ttl=6, stall_after=600)
    be_silent(held, 900)
    assert held.lost.wait(DEADLINE)
    wait_for(lambda: state() == "expired")
    other.check()
    renewed = row("other").renewed_at
    wait_for(lambda: row("other").renewed_at > renewed)
    assert other.release()
    held.release()


@committed
def test_a_stall_is_noticed_while_a_beat_hangs():
    other = claim("other", ttl=2)
    held = claim("job", ttl=600, stall_after=4)
    with open_transaction("LOCK TABLE runlease_runlease IN ACCESS EXCLUSIVE MODE"):
        wait_for(lambda: backends("wait_event_type = 'Lock' AND query LIKE '%WITH wanted%'"))
        assert held.lost.wait(DEADLINE / 2)
        assert held.lost_reason == "stalled"
    held.release()
    other.release()


@committed
def test_a_stall_ends_the_renewals_of_a_lease_that_was_lost_before():
    """A loss alone does not: a job that is told cleans up under its lease."""
    held = claim("job", ttl=1, stall_after=2)
    held.lose(Loss(reason="unreachable", detail="the database is gone"))
    wait_for(lambda: not beating())
    wait_for(lambda: state() == "expired")
    assert held.lost_reason == "unreachable"
    held.release()


@committed
def test_progress_after_a_stall_comes_too_late():
    held = claim("job", ttl=6, stall_after=600)
    be_silent(held, 900)
    with pytest.raises(LeaseLost, match=TEXT):
        held.check()
    held.progress(1)
    wait_for(lambda: not beating())
    wait_for(lambda: state() == "expired")
    assert held.lost_reason == "stalled"
    held.release()


@committed
def test_a_stall_that_is_seen_in_the_moment_of_the_release_comes_too_late(monkeypatch):
    release = store.release

    def release_and_notice(*args, **kwargs):
        loss = release(*args, **kwargs)
        be_silent(held, 120)
        assert held.is_stalled()
        return loss

    monkeypatch.setattr("django_runlease.store.release", release_and_notice)
    with lease("job", ttl=60, stall_after=60) as held:
        pass
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


# -- without one


@committed
def test_renew_refuses_after_a_stall_and_leaves_the_row_as_it_is():
    held = claim("job", ttl=60, stall_after=30, heartbeat=False)
    held.renew()
    before = row()
    be_silent(held, 60)
    with pytest.raises(LeaseLost, match=f"{TEXT}30s"):
        held.renew()
    held.progress(1)
    with pytest.raises(LeaseLost, match=f"{TEXT}30s"):
        held.renew()
    assert (row().expires_at, row().renewed_at) == (before.expires_at, before.renewed_at)
    assert held.release() is False
    assert (state(), Run.objects.get().outcome) == ("free", Outcome.STALLED)


@committed
def test_check_loses_the_lease_after_a_stall_and_progress_puts_that_off():
    held = claim("job", ttl=600, stall_after=30, heartbeat=False)
    for _ in range(3):
        be_silent(held, 20)
        held.check()
        held.progress(1)
    be_silent(held, 31)
    with pytest.raises(LeaseLost, match=TEXT):
        held.check()
    assert (held.lost.is_set(), held.lost_reason) == (True, "stalled")
    assert repr(held) == "<HeldLease 'job' generation 1 (stalled)>"
    held.release()
    held.is_stalled()


@pytest.mark.django_db
def test_within_a_test_case_check_notices_it():
    with pytest.raises(LeaseLost, match=TEXT), lease("job", ttl=600, stall_after=30) as held:
        be_silent(held, 60)
        held.check()
    assert (state(), Run.objects.get().outcome) == ("free", Outcome.STALLED)


@committed
def test_one_that_was_released_in_time_is_not_lost_later():
    held = claim("job", ttl=60, stall_after=30, heartbeat=False)
    assert held.release()
    be_silent(held, 60)
    assert not held.is_stalled()
    assert held.lost_reason is None


# -- under runjob, which ends the job


@committed
def test_under_runjob_check_raises_job_timeout_and_the_lease_is_not_lost():
    def work(held):
        kept.append(held)
        wait_for(held.check)

    kept = []
    wish = Claim(name="job", terms=resolve({"ttl": 60, "stall_after": 0.3}))
    job = Job(name="job", function=work)
    # In a thread nothing but check() can stop a job.
    report = elsewhere(lambda: runner.run(job, wish, grace=10, own_process=False))
    assert (report.outcome, report.exit_code) == ("stalled", 124)
    assert isinstance(report.error, JobTimeout)
    assert report.error.stalled
    assert kept[0].lost_reason is None
    assert (state(), Run.objects.get().outcome) == ("free", Outcome.STALLED)


CLEAN_UP = """
    import time
    try:
        time.sleep(60)
    finally:
        time.sleep(6)
        held.raise_if_lost()
        say((held.lost_reason, held.remaining() > 0))
"""


@committed
def test_under_runjob_the_lease_is_renewed_until_the_stalled_job_is_dead():
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_jobs", "CODE": CLEAN_UP}
    options = ("--ttl", "8", "--stall-after", "5")
    process = spawn_manage("runjob", "code", *options, env=env)

    def over():
        # Read first: it may end in between.
        lives = process.poll() is None
        assert not RunLease.objects.with_state().filter(state="expired").exists()
        return not lives

    try:
        wait_for(over)
        out, err = process.communicate()
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (124, "(None, True)\n")
    assert err.endswith("\ncode: made no progress for 5s\n")
    run = Run.objects.get()
    assert (run.outcome, run.generation) == (Outcome.STALLED, 1)
    assert state("code") == "free"
