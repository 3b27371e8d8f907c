import gc
import re
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import OperationalError, connection

from django_runlease import (
    HeldLease,
    JobTimeout,
    LeaseLost,
    RunLeaseError,
    claim,
    clock,
    heartbeat,
    store,
)
from django_runlease.clock import Epoch, Now, Seconds
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store.connection import database_clock

from .support import (
    DEADLINE,
    elsewhere,
    expire,
    granted,
    later,
    spawn_python,
    together,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


def held_lease(name="job", **options):
    """A lease that the test renews itself, released or not by the test."""
    held = claim(name, **{"ttl": 60, "heartbeat": False, **options})
    assert isinstance(held, HeldLease), held
    return held


def expires_in():
    """Seconds until the lease expires, on the database's clock."""
    row = RunLease.objects.annotate(left=Epoch("expires_at") - Epoch(Now())).get()
    return row.left


def row():
    return RunLease.objects.values("token", "generation", "expires_at", "not_before").get()


@pytest.fixture
def held():
    held = held_lease()
    yield held
    held.release()


# -- what it is


def test_it_says_what_it_holds(held):
    lease = RunLease.objects.get()
    assert (held.name, held.token, held.generation) == ("job", lease.token, 1)
    assert held.ttl == timedelta(seconds=60)
    assert (held.lost.is_set(), held.lost_reason) == (False, None)
    assert Run.objects.get(pk=held.run_id).token == held.token


def test_its_text_shows_the_name_and_the_state_and_never_the_token(held):
    assert repr(held) == str(held) == "<HeldLease 'job' generation 1 (held)>"
    held.release()
    assert repr(held) == "<HeldLease 'job' generation 1 (released)>"


def test_the_token_is_in_no_log_and_no_message(caplog, held):
    caplog.set_level("DEBUG")
    expire()
    second = held_lease()
    texts = []
    for act in (held.renew, held.check, lambda: held.fence().__enter__()):
        with pytest.raises(LeaseLost) as caught:
            act()
        texts += [str(caught.value), repr(caught.value)]
    declined = claim("job")
    texts += [str(declined), repr(declined)]
    store.break_lease("job", "default", by="ops")
    with pytest.raises(LeaseLost) as caught:
        second.renew()
    texts += [str(caught.value), repr(second), caplog.text]
    assert not second.release()
    assert "took over" in caplog.text
    for token in (held.token, second.token):
        assert not re.search(f"{token}|{token.hex}", "\n".join(texts))


# -- time, without asking the database


def test_it_can_be_trusted_for_its_ttl_less_a_tenth_from_before_the_claim():
    before = clock.local()
    held = held_lease()
    after = clock.local()
    assert before + 54 <= held.trusted_until <= after + 54
    left = held.remaining()
    assert held.trusted_until - clock.local() <= left <= 54
    with later(54):
        assert held.remaining() == 0
    held.release()


def test_check_asks_nothing_of_the_database(held, django_assert_num_queries):
    with django_assert_num_queries(0):
        held.check()
        held.check(at_least=30)
        held.check(at_least="30s")


def test_check_at_least_raises_when_less_can_be_trusted_and_the_lease_stays(held):
    with pytest.raises(LeaseLost, match="less than 55s"):
        held.check(at_least="55s")
    assert not held.lost.is_set()
    held.check()


@pytest.mark.parametrize("bad", [0, -1, "", "soon", float("nan")])
def test_check_at_least_takes_no_bad_duration(held, bad):
    with pytest.raises(ValueError, match="duration"):
        held.check(at_least=bad)


def test_a_lease_that_is_not_renewed_is_lost_a_tenth_before_its_ttl(django_assert_num_queries):
    held = held_lease(ttl=600)
    with django_assert_num_queries(0):
        with later(500):
            assert held.remaining()
            held.check()
        with later(540):
            assert not held.remaining()
            with pytest.raises(LeaseLost, match="not renewed"):
                held.check()
    assert (held.lost.is_set(), held.lost_reason) == (True, "expired")
    assert expires_in() > 0
    assert held.remaining() == 0
    held.release()


def test_check_raises_when_the_job_has_outrun_its_timeout_and_the_lease_stays():
    held = held_lease(ttl="1h", timeout="10m")
    with later(500):
        held.check()
        held.progress(1)
    with later(600), pytest.raises(JobTimeout, match="timeout of 10m") as caught:
        held.check()
    assert (caught.value.stalled, held.lost.is_set()) == (False, False)
    assert held.release()


# -- renew


def test_renew_lets_it_last_another_ttl_from_now(held):
    in_a_moment = Now() + Seconds(timedelta(seconds=30))
    RunLease.objects.update(expires_at=in_a_moment, renewed_at=None)
    held.trusted_until -= 30
    before = clock.local(), database_clock("default")
    held.renew()
    after = clock.local(), database_clock("default")
    assert before[0] + 54 <= held.trusted_until <= after[0] + 54
    lease = RunLease.objects.get()
    assert before[1] <= lease.renewed_at.timestamp() <= after[1]
    assert before[1] + 60 <= lease.expires_at.timestamp() <= after[1] + 60


def test_renew_works_for_a_ttl_too_short_for_a_heartbeat():
    held = held_lease(ttl=0.05)
    with pytest.raises(LeaseLost):
        wait_for(held.check)
    held.release()
    with pytest.raises(ValueError, match="heartbeat=False"):
        claim("job", ttl=0.05)


def test_progress_is_stored_by_the_next_renewal_and_gone_after_the_release(held):
    held.progress(3, 10, "invoices")
    assert RunLease.objects.get().progress is None
    held.renew()
    expected = {"done": 3, "total": 10, "message": "invoices"}
    assert RunLease.objects.get().progress == expected
    held.renew()
    assert RunLease.objects.get().progress == expected
    held.release()
    assert RunLease.objects.get().progress is None


def test_renew_after_a_takeover_says_who_took_it_and_changes_nothing(held):
    expire()
    taken = elsewhere(granted)
    before = row()
    with pytest.raises(LeaseLost, match="took it over"):
        held.renew()
    assert (held.lost.is_set(), held.lost_reason) == (True, "taken")
    assert row() == before
    assert before["token"] == taken.token


def test_renew_after_a_break_says_who_broke_it(held):
    store.break_lease("job", "default", by="ops")
    with pytest.raises(LeaseLost, match="broken by ops"):
        held.renew()
    assert held.lost_reason == "broken"


def test_renew_after_its_row_was_deleted_says_so(held):
    RunLease.objects.all().delete()
    with pytest.raises(LeaseLost, match="row was deleted"):
        held.renew()
    assert held.lost_reason == "broken"


def test_renew_revives_no_expired_lease_even_if_nobody_has_claimed_it(held):
    expire()
    before = row()
    with pytest.raises(LeaseLost, match="expired before it was renewed"):
        held.renew()
    assert held.lost_reason == "expired"
    assert row() == before


def test_a_renewal_whose_time_is_over_leaves_the_lease_as_it_is(held):
    """Its holder stops, so the lease must not last any longer."""
    before = row()
    held.trusted_until -= 60
    with pytest.raises(LeaseLost):
        held.renew()
    assert row() == before


def test_a_renewal_that_the_database_does_not_answer_raises_and_may_be_tried_again(held, dead_port):
    with patch.dict(connection.settings_dict, PORT=dead_port, HOST="127.0.0.1"):
        with pytest.raises(OperationalError):
            held.renew()
    assert not held.lost.is_set()
    held.renew()
    held.check()


@pytest.fixture
def dead_port():
    """A port on which nobody listens."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


# -- release


def test_release_frees_it_once_and_says_so_once():
    held = held_lease()
    assert held.release() is True
    assert row() == {"token": None, "generation": 1, "expires_at": None, "not_before": None}
    run = Run.objects.get()
    assert (run.outcome, run.error, run.reason) == (Outcome.SUCCEEDED, "", "")
    assert run.finished_at >= run.started_at
    assert held.release() is False


def test_release_with_a_minimum_hold_counts_it_from_the_claim():
    held = held_lease(at_least=30)
    claimed_at = RunLease.objects.get().claimed_at
    held.release()
    assert RunLease.objects.get().not_before - claimed_at == timedelta(seconds=30)
    declined = claim("job")
    assert (declined.reason, declined.expires_at) == ("not_due", RunLease.objects.get().not_before)


def test_a_late_release_says_false_changes_no_lease_and_writes_the_loss_into_its_own_run():
    held = held_lease()
    expire()
    elsewhere(granted)
    before = row()
    assert held.release() is False
    assert row() == before
    assert (held.lost.is_set(), held.lost_reason) == (True, "taken")
    own = Run.objects.get(pk=held.run_id)
    assert own.outcome == Outcome.LOST
    assert "took it over" in own.reason


def test_a_release_whose_lease_was_known_to_be_lost_frees_it_and_says_false():
    held = held_lease()
    held.trusted_until -= 60
    with pytest.raises(LeaseLost):
        held.check()
    assert held.release() is False
    assert row()["token"] is None
    assert Run.objects.get().outcome == Outcome.LOST


def test_another_thread_may_release_it():
    held = held_lease()
    assert elsewhere(held.release) is True
    assert row()["token"] is None


def test_of_threads_that_release_at_once_one_does():
    held = held_lease()
    assert sorted(together(*[held.release] * 6)) == [False] * 5 + [True]


def test_release_while_a_fence_is_open_raises_and_the_lease_stays():
    held = held_lease()
    with held.fence(), pytest.raises(RunLeaseError, match="fence of this lease is open"):
        held.release()
    assert row()["token"] == held.token
    assert held.release() is True


def test_a_fence_that_failed_is_not_open(held):
    with pytest.raises(ZeroDivisionError), held.fence():
        raise ZeroDivisionError
    assert held.release() is True


def test_a_release_that_the_database_does_not_answer_raises_and_may_be_tried_again(dead_port):
    held = held_lease()
    with patch.dict(connection.settings_dict, PORT=dead_port, HOST="127.0.0.1"):
        with pytest.raises(OperationalError):
            held.release()
    assert held.release() is True


def test_release_does_not_depend_on_the_state_of_the_jobs_own_connection():
    for spoil in (
        lambda: connection.set_autocommit(False),
        lambda: connection.close(),
        lambda: connection.connection.close(),
    ):
        held = held_lease()
        spoil()
        try:
            assert held.release() is True
        finally:
            connection.close()
            connection.set_autocommit(True)
        assert row()["token"] is None


def test_a_released_lease_can_neither_be_renewed_nor_checked_nor_fence():
    held = held_lease()
    held.release()
    for use in (held.renew, held.check, lambda: held.fence().__enter__()):
        with pytest.raises(RunLeaseError, match="released"):
            use()
    assert held.remaining() == 0


# -- dropped, forked


def test_one_that_is_dropped_unreleased_gives_a_warning_and_its_row_stays():
    held = held_lease()
    with pytest.warns(ResourceWarning, match="'job' generation 1 .* without release"):
        del held
        gc.collect()
    assert row()["token"] is not None


def test_one_that_is_dropped_after_its_release_gives_none():
    held = held_lease()
    held.release()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del held
        gc.collect()


AT_THE_END = """
import os, sys
from django_runlease import claim
held = claim("job", ttl=60, heartbeat=sys.argv[1] == "True")
PLACE
"""


@pytest.mark.parametrize("heartbeat", [True, False])
@pytest.mark.parametrize(
    "place",
    [
        "pass",
        # Where it outlives the names of its module.
        "sys._kept = held; del held",
        "os._kept = held; del held",
        "held.itself = held; del held",
    ],
)
def test_one_that_is_dropped_at_the_interpreters_end_prints_no_traceback(place, heartbeat):
    environment = {"PYTHONWARNINGS": "ignore"}
    process = spawn_python(AT_THE_END.replace("PLACE", place), str(heartbeat), env=environment)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 0


class Signalled(BaseException):
    """What a signal handler raises."""


def test_a_signal_at_any_step_into_or_out_of_a_fence_leaves_no_fence_open(held, monkeypatch):
    """Handlers run when a function begins, and when one has returned."""
    steps = 0

    def look(frame, event, argument):
        nonlocal steps
        steps -= event in ("call", "c_return")
        if not steps:
            sys.setprofile(None)
            raise Signalled

    @contextmanager
    def fenced(*arguments, **options):
        yield

    def stopped_at(step):
        nonlocal steps
        steps = step
        sys.setprofile(look)
        try:
            with held.fence():
                pass
        except Signalled:
            return True
        finally:
            sys.setprofile(None)
        return False

    monkeypatch.setattr("django_runlease.held.fenced", fenced)
    step = 1
    while stopped_at(step):
        # What is left with the exception ends with it.
        gc.collect()
        assert held._open_fences == 0, f"step {step}"
        step += 1
    assert step > 15
    assert held.release()


def test_a_fence_whose_wait_for_a_release_is_interrupted_is_not_counted(held):
    """Another thread releases, and its database hangs."""

    class Interrupted:
        waits = 0

        def __enter__(self):
            self.waits += 1
            if self.waits == 1:
                raise Signalled

        def __exit__(self, *exception):
            pass

    lock, held._lock = held._lock, Interrupted()
    with pytest.raises(Signalled), held.fence():
        raise AssertionError
    held._lock = lock
    assert held._open_fences == 0
    assert held.release()


FORK = """
import gc, os, sys, warnings
from django_runlease import claim
from django_runlease.models import RunLease

# A fork beside other threads (the heartbeat) is deprecated, for their locks; it is no rarer.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
held = claim("job", ttl=60, heartbeat=sys.argv[1] == "True")
child = os.fork()
if not child:
    released = held.release()
    del held
    gc.collect()
    os._exit(7 if released is False else 8)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert RunLease.objects.get().token == held.token
held.check()
assert held.release() is True
"""


@pytest.mark.parametrize("heartbeat", [True, False])
def test_a_forked_child_neither_releases_nor_warns_and_the_parent_goes_on(heartbeat):
    process = spawn_python(FORK, str(heartbeat))
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "", "")


FORK_AND_LEAVE = FORK.replace("released = held.release()", "released = False").replace(
    "os._exit(7 if released is False else 8)", "os._exit(7)"
)


def test_a_forked_child_that_drops_it_does_not_warn():
    process = spawn_python(FORK_AND_LEAVE, "False")
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "", "")


def test_fences_of_one_holder_run_side_by_side(held):
    def fence():
        with held.fence():
            barrier.wait(DEADLINE)

    barrier = threading.Barrier(3)
    together(*[fence] * 3)


def test_a_fence_in_another_database_than_the_leases_is_refused(held):
    with ExitStack() as stack, pytest.raises(RunLeaseError, match="'other'"):
        stack.enter_context(held.fence(using="other"))


def test_a_beat_that_meets_the_release_does_not_report_a_loss(monkeypatch):
    """It was asked before, and answered after: what it finds then is the release's row lock."""
    beating, released = threading.Event(), threading.Event()

    def skipped(beats, alias):
        beating.set()
        released.wait(DEADLINE)
        return dict.fromkeys((beat.claimed.token for beat in beats), "skipped")

    monkeypatch.setattr("django_runlease.store.beat", skipped)
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 200)
    held = claim("job", ttl=60)
    assert beating.wait(DEADLINE)
    assert held.release()
    held.trusted_until = clock.local()
    released.set()
    wait_for(lambda: not [t for t in threading.enumerate() if "runlease-heartbeat" in t.name])
    assert not held.lost.is_set()


def test_a_watch_that_looks_at_a_released_lease_does_not_report_a_loss():
    held = held_lease()
    assert held.release()
    held.trusted_until = clock.local()
    held.raise_if_lost(within=10)
    assert held.lost_reason is None


def test_a_fence_that_finds_the_lease_taken_makes_it_lost():
    held = held_lease()
    expire()
    elsewhere(granted)
    with pytest.raises(LeaseLost), held.fence():
        raise AssertionError
    assert held.lost.is_set()
    assert not held.release()
    assert held.lost_reason == "taken"
    assert not held.release()


@pytest.mark.parametrize("tool", ["fence", "effect"])
def test_a_fence_that_finds_the_lease_broken_says_who_broke_it(tool):
    held = held_lease()
    store.break_lease("job", "default", by="ops")
    with pytest.raises(LeaseLost), held.fence() if tool == "fence" else held.effect("charge"):
        raise AssertionError
    assert held.lost_reason == "broken"
    with pytest.raises(LeaseLost, match="broken by ops"):
        held.check()
    assert not held.release()
    assert "broken by ops" in Run.objects.get(generation=held.generation).reason


@pytest.mark.parametrize("heartbeat", [None, "no", 1, []])
def test_a_heartbeat_is_on_or_off(heartbeat):
    with pytest.raises(ValueError, match="heartbeat: .* is neither True nor False"):
        claim("job", heartbeat=heartbeat)


def test_a_check_in_a_fence_that_wants_more_time_does_not_lose_the_lease():
    held = held_lease()
    with pytest.raises(LeaseLost, match="only"), held.fence():
        held.check(at_least="2m")
    assert held.lost_reason is None
    assert held.release()


def test_an_effect_does_not_begin_under_a_lease_that_cannot_be_trusted():
    held = held_lease()
    held.trusted_until = clock.local()
    with pytest.raises(LeaseLost), held.effect("charge", 1):
        raise AssertionError
    held.release()


def test_an_effect_that_is_refused_makes_the_lease_lost():
    held = held_lease()
    expire()
    elsewhere(granted)
    with pytest.raises(LeaseLost), held.effect("charge", 1):
        raise AssertionError
    assert held.lost.is_set()
    assert not held.release()
