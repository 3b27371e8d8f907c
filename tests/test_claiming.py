import asyncio
import contextvars
import gc
import math
import os
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from unittest.mock import patch

import pytest
from asgiref.sync import sync_to_async
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from django_runlease import (
    Declined,
    HeldLease,
    LeaseDeclined,
    LeaseLost,
    RunLeaseError,
    claim,
    current_lease,
    lease,
    store,
)
from django_runlease.claiming import Claim
from django_runlease.clock import Now, Seconds
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.terms import resolve

from . import aio
from .factories import RunLeaseFactory
from .support import (
    DEADLINE,
    elsewhere,
    expire,
    granted,
    open_transaction,
    spawn_python,
    wait_for,
    wish,
)

pytestmark = pytest.mark.django_db(transaction=True)

DEAD = {"HOST": "127.0.0.1", "PORT": "1"}


def is_free(name="job"):
    return not RunLease.objects.filter(name=name, token__isnull=False).exists()


def outcomes(name="job"):
    return list(
        Run.objects.filter(lease_name=name).order_by("id").values_list("outcome", flat=True)
    )


class Background:
    """A call in a thread with its own connection."""

    def __init__(self, call):
        self.result = None
        self._thread = threading.Thread(target=self._run, args=[call])
        self._thread.start()

    def _run(self, call):
        try:
            self.result = elsewhere(call)
        except BaseException as error:
            self.result = error

    def join(self):
        self._thread.join(2 * DEADLINE)
        assert not self._thread.is_alive()
        return self.result


# -- claim()


def test_claim_gives_a_held_lease_or_a_falsy_decline():
    if held := claim("job"):
        assert isinstance(held, HeldLease)
    lease_row = RunLease.objects.get()
    declined = claim("job")
    assert isinstance(declined, Declined)
    assert not declined
    assert (declined.reason, declined.holder) == ("held", lease_row.holder)
    assert (declined.expires_at, declined.held_since) == (
        lease_row.expires_at,
        lease_row.claimed_at,
    )
    assert Run.objects.get(pk=declined.run_id).outcome == Outcome.DECLINED
    assert held.release()


def test_a_holder_cannot_claim_its_own_lease_again():
    with lease("job"):
        assert claim("job").reason == "held"
        with pytest.raises(LeaseDeclined), lease("job"):
            raise AssertionError
    assert is_free()


def test_two_names_are_two_leases():
    with lease("job") as one, lease("other") as two:
        assert (one.generation, two.generation) == (1, 1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("", {}, "empty"),
        (" job", {}, "no space at either end"),
        ("a" * 201, {}, "at most 200"),
        ("a\nb", {}, "printable"),
        (None, {}, "string"),
        ("job", {"ttl": 0}, "ttl: 0 is not a positive duration"),
        ("job", {"ttl": -5}, "positive"),
        ("job", {"ttl": "soon"}, "ttl: 'soon' is not a duration"),
        ("job", {"ttl": float("nan")}, "not a duration"),
        ("job", {"ttl": ""}, "not a duration"),
        ("job", {"ttl": True}, "not a duration"),
        ("job", {"wait": "0"}, "positive"),
        ("job", {"wait": math.inf}, "366 days"),
        ("job", {"every": "1m", "at_least": "1m"}, "at_least .* shorter than every"),
        ("job", {"timeout": "1m", "stall_after": "2m"}, "stall_after .* shorter than timeout"),
        ("job", {"tick": datetime(2030, 1, 1)}, "no UTC offset"),  # noqa: DTZ001  what is refused
        ("job", {"tick": "2030-01-01"}, "not a datetime"),
    ],
)
def test_a_bad_name_or_term_is_a_value_error_before_the_database_is_asked(
    name, options, message, django_assert_num_queries
):
    with django_assert_num_queries(0):
        with pytest.raises(ValueError, match=message):
            claim(name, **options)
        with pytest.raises(ValueError, match=message):
            lease(name, **options).__enter__()


def test_a_tick_far_ahead_of_the_databases_clock_is_a_value_error_and_leaves_no_lease():
    with pytest.raises(ValueError, match="ahead of the"):
        claim("job", tick=datetime.now(UTC) + timedelta(days=300))
    assert is_free()
    assert not Run.objects.exists()


@pytest.mark.parametrize("call", [claim, lease])
def test_an_unknown_option_is_a_type_error(call, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(TypeError, match="'tll'.*ttl"):
        call("job", tll=5)


def test_an_unknown_database_is_refused():
    with pytest.raises(RunLeaseError, match="no database 'elsewhere'"):
        claim("job", using="elsewhere")


def test_a_claim_within_an_open_transaction_raises_and_nothing_is_held():
    with transaction.atomic(), pytest.raises(RunLeaseError, match="open transaction"):
        claim("job")
    assert not RunLease.objects.exists()


@pytest.mark.parametrize(
    ("options", "ttl"),
    [
        ({"ttl": "1m"}, "1m"),
        ({}, "2m"),
        ({"ttl": None}, "2m"),
        ({"name": "other"}, "3m"),
    ],
)
def test_terms_come_from_the_call_else_the_entry_of_the_name_else_the_setting(options, ttl):
    settings = {"TTL": "3m", "JOBS": {"job": {"ttl": "2m", "every": "1h"}}}
    with override_settings(RUNLEASE=settings):
        held = claim(**{"name": "job", **options})
    assert held.ttl == resolve({"ttl": ttl}).ttl
    every = timedelta(hours=1) if held.name == "job" else None
    assert RunLease.objects.values_list("ttl", "every").get() == (held.ttl, every)
    held.release()


def test_without_any_setting_a_lease_lasts_five_minutes():
    with override_settings(RUNLEASE={}), lease("job") as held:
        assert held.ttl == timedelta(minutes=5)


def test_a_takeover_is_logged_with_the_one_that_never_released(caplog):
    granted()
    expire()
    with lease("job") as held:
        assert held.generation == 2
    holder = Run.objects.first().holder
    assert f"job: took over from {holder}" in caplog.text
    assert outcomes() == [Outcome.ABANDONED, Outcome.SUCCEEDED]


# -- declines in the history


def test_a_decline_is_recorded_with_its_reason_and_its_holder():
    RunLeaseFactory(name="job", held=True)
    declined = claim("job")
    run = Run.objects.get()
    assert (run.pk, run.outcome, run.reason) == (declined.run_id, Outcome.DECLINED, "held")
    assert (run.holder, run.waited, run.token) == ("elsewhere:4711", timedelta(0), None)
    assert run.trigger == "api"


def test_declines_are_not_recorded_where_the_setting_says_so():
    RunLeaseFactory(name="job", held=True)
    with override_settings(RUNLEASE={"RECORD_DECLINES": False}):
        declined = claim("job", wait=0.2)
    assert (declined.reason, declined.run_id) == ("held", None)
    assert not Run.objects.exists()


# -- waiting


def test_a_claim_that_waits_is_granted_once_the_holder_has_released():
    first = granted()
    waiting = Background(partial(claim, "job", wait=DEADLINE))
    wait_for(lambda: connections_reading_leases() or waiting.result)
    store.release(first, store.Closing(outcome=Outcome.SUCCEEDED))
    held = waiting.join()
    assert held.generation == 2
    run = Run.objects.get(pk=held.run_id)
    assert timedelta(0) < run.waited < timedelta(seconds=DEADLINE)
    assert outcomes() == [Outcome.SUCCEEDED, Outcome.RUNNING]
    assert held.release()


def connections_reading_leases():
    """Whether another connection of this database has looked at a lease."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database() AND query LIKE '%COMMIT%'"
        )
        return cursor.fetchone()[0]


def test_a_claim_that_waits_in_vain_gives_up_at_its_deadline_with_one_decline():
    RunLeaseFactory(name="job", held=True)
    began = time.monotonic()
    declined = claim("job", wait=0.6)
    assert 0.6 <= time.monotonic() - began < DEADLINE
    assert declined.reason == "held"
    run = Run.objects.get()
    assert run.pk == declined.run_id
    assert timedelta(seconds=0.5) < run.waited < timedelta(seconds=DEADLINE)


def test_the_polls_of_a_claim_that_waits_grow_apart_with_jitter_and_end_at_the_deadline():
    RunLeaseFactory(name="job", held=True)
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        time.sleep(seconds / 50)

    attempt = Claim.from_options("job", {"wait": 60, "ttl": 60})
    attempts = attempt.start()
    for _ in range(12):
        assert attempts.once() is None
        sleep(attempts.pause())
    assert 0.02 < pauses[0] <= 0.05
    assert all(0.5 <= pause <= 1.0 for pause in pauses[6:])
    assert len(set(pauses)) == len(pauses)
    attempts.began -= 59.9
    assert attempts.pause() <= 0.1


def test_a_claim_that_waits_takes_a_lease_that_expires_meanwhile():
    granted(ttl=0.6)
    held = claim("job", wait=DEADLINE)
    assert held.generation == 2
    assert held.release()


def test_a_busy_lease_is_waited_for():
    RunLeaseFactory(name="job")
    sql = "SELECT 1 FROM runlease_runlease FOR UPDATE"
    with open_transaction(sql) as finish:
        assert claim("job").reason == "busy"
        waiting = Background(partial(claim, "job", wait=DEADLINE))
        assert waiting.result is None
        finish.set()
        held = waiting.join()
    assert held.generation == 2
    assert held.release()


def test_a_paused_lease_declines_a_waiting_claim_at_once():
    RunLeaseFactory(name="job", paused=True)
    attempts = Claim.from_options("job", {"wait": 60}).start()
    assert attempts.once().reason == "paused"
    assert Run.objects.get().reason == "paused"


def test_a_lease_that_is_paused_while_held_says_paused():
    RunLeaseFactory(name="job", paused=True, held=True)
    assert claim("job").reason == "paused"


def test_a_tick_that_has_had_its_run_declines_a_waiting_claim_at_once():
    tick = datetime.now(UTC)
    claim("job", tick=tick).release()
    attempts = Claim.from_options("job", {"wait": 60, "tick": tick}).start()
    assert attempts.once().reason == "same_tick"
    assert Run.objects.last().reason == "same_tick"
    assert claim("job", tick=tick + timedelta(seconds=1)).release()


def test_a_minimum_hold_is_waited_for_only_if_it_ends_in_time():
    claim("job", at_least=600).release()
    # Without a second try.
    assert Claim.from_options("job", {"wait": 300}).start().once().reason == "not_due"
    in_a_moment = Now() + Seconds(timedelta(seconds=1))
    RunLease.objects.update(not_before=in_a_moment)
    due = RunLease.objects.get().not_before
    held = claim("job", wait=DEADLINE)
    _, declined, second = Run.objects.order_by("id")
    assert declined.reason == "not_due"
    assert second.started_at >= due
    assert held.release()


def test_a_standby_waits_through_a_pause_and_a_holder_and_a_minimum_hold():
    first = granted()
    store.pause("job", "default", by="ops")
    standby = Claim(name="job", terms=resolve({}), wait=math.inf, standby=True)
    sleeps = []

    def sleep(seconds):
        sleeps.append(seconds)
        if len(sleeps) == 2:
            store.resume("job", "default", by="ops")
        if len(sleeps) == 4:
            store.release(
                first,
                store.Closing(outcome=Outcome.SUCCEEDED),
                at_least=timedelta(minutes=10),
            )
        if len(sleeps) == 6:
            RunLease.objects.update(not_before=Now())
        time.sleep(seconds)

    held = standby.run(sleep)
    assert len(sleeps) == 6
    assert outcomes() == [Outcome.SUCCEEDED, Outcome.RUNNING]
    assert Run.objects.last().started_at >= RunLease.objects.get().claimed_at
    assert held.release()


def test_an_error_while_waiting_leaves_no_lease_and_is_raised():
    RunLeaseFactory(name="job", held=True)

    def sleep(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Claim.from_options("job", {"wait": 60}).run(sleep)
    assert not Run.objects.exists()


# -- with lease()


def test_the_lease_is_held_in_the_block_and_released_after_it():
    with lease("job", ttl="1m") as held:
        assert RunLease.objects.get().token == held.token
        assert held.ttl == timedelta(minutes=1)
    assert is_free()
    assert outcomes() == [Outcome.SUCCEEDED]


def test_a_declined_lease_raises_with_who_holds_it_and_since_when():
    RunLeaseFactory(name="job", held=True)
    with pytest.raises(LeaseDeclined, match="job: held by elsewhere:4711 since") as caught:
        with lease("job"):
            raise AssertionError
    declined = caught.value.declined
    assert (caught.value.name, declined.reason, declined.holder) == (
        "job",
        "held",
        "elsewhere:4711",
    )
    assert declined.expires_at == RunLease.objects.get().expires_at


def test_an_exception_of_the_block_is_raised_as_it_is_and_recorded():
    problem = ZeroDivisionError("odd € number")
    with pytest.raises(ZeroDivisionError) as caught, lease("job"):
        raise problem
    assert caught.value is problem
    assert not hasattr(problem, "__notes__")
    run = Run.objects.get()
    assert (run.outcome, run.reason) == (Outcome.FAILED, "ZeroDivisionError: odd € number")
    assert "Traceback" in run.error
    assert "raise problem" in run.error
    assert run.error.rstrip().endswith("ZeroDivisionError: odd € number")
    assert is_free()


@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (KeyboardInterrupt(), Outcome.TERMINATED),
        (SystemExit(3), Outcome.FAILED),
        (SystemExit(0), Outcome.SUCCEEDED),
        (asyncio.CancelledError(), Outcome.TERMINATED),
    ],
)
def test_what_ends_the_program_in_the_block_is_recorded_and_passes(problem, outcome):
    with pytest.raises(type(problem)) as caught, lease("job"):
        raise problem
    assert caught.value is problem
    assert outcomes() == [outcome]
    assert is_free()


def test_an_exception_that_postgresql_cannot_store_is_recorded_all_the_same():
    with pytest.raises(ValueError, match="a"), lease("job"):
        raise ValueError("a\0b\ud800" + "x" * 20_000)
    assert len(Run.objects.get().error) == 8_000
    assert is_free()


@pytest.mark.parametrize("problem", [ZeroDivisionError("mine"), KeyboardInterrupt()])
def test_the_blocks_exception_is_not_masked_by_a_release_that_fails(problem):
    with pytest.raises(type(problem)) as caught, patch.dict(connection.settings_dict):
        with lease("job", ttl=60) as held:
            connection.settings_dict.update(DEAD)
            raise problem
    assert caught.value is problem
    assert "could not be released" in problem.__notes__[0]
    assert held.release()


def test_a_release_that_fails_after_a_good_block_raises():
    with pytest.raises(OperationalError), patch.dict(connection.settings_dict):
        with lease("job", ttl=60) as held:
            connection.settings_dict.update(DEAD)
    assert held.release()


def test_the_blocks_exception_is_not_masked_by_a_fence_that_it_left_open():
    problem = ZeroDivisionError()
    with ExitStack() as fences:
        with pytest.raises((ZeroDivisionError, RunLeaseError)) as caught, lease("job") as held:
            fences.enter_context(held.fence())
            raise problem
    assert held.release()
    assert caught.value is problem


def test_the_blocks_exception_is_not_masked_by_a_loss():
    problem = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught, lease("job"):
        expire()
        elsewhere(granted)
        raise problem
    assert caught.value is problem
    run = Run.objects.first()
    assert run.outcome == Outcome.LOST
    assert "ZeroDivisionError" in run.error
    assert RunLease.objects.get().generation == 2


def test_a_block_whose_lease_was_lost_raises_at_its_end():
    with pytest.raises(LeaseLost, match="job: the lease was lost: .*took it over"):
        with lease("job"):
            expire()
            taken = elsewhere(granted)
    assert RunLease.objects.get().token == taken.token
    assert outcomes() == [Outcome.LOST, Outcome.RUNNING]


def test_a_block_whose_lease_was_broken_raises_at_its_end():
    with pytest.raises(LeaseLost, match="broken by ops"), lease("job"):
        store.break_lease("job", "default", by="ops")
    assert outcomes() == [Outcome.LOST]


def test_a_block_that_swallows_the_loss_of_its_lease_raises_at_its_end():
    with pytest.raises(LeaseLost, match="not renewed"):
        with lease("job", ttl=0.3, heartbeat=False) as held:
            wait_for(lambda: not held.remaining())
            with suppress(LeaseLost):
                held.check()
    assert is_free()
    assert outcomes() == [Outcome.LOST]


def test_a_block_that_finds_its_lease_lost_raises_that_once():
    with pytest.raises(LeaseLost, match="the lease is lost") as caught:
        with lease("job", ttl=60, heartbeat=False) as held:
            store.break_lease("job", "default", by="ops")
            held.renew()
    assert caught.value.__context__ is None


def test_a_lease_that_the_block_has_released_is_well():
    with lease("job") as held:
        assert held.release()
        assert is_free()
    assert outcomes() == [Outcome.SUCCEEDED]


def test_a_lease_object_can_be_entered_again_and_not_within_itself():
    again = lease("job")
    for generation in (1, 2):
        with again as held:
            assert held.generation == generation
            with pytest.raises(LeaseDeclined), again:
                raise AssertionError
        assert is_free()


def test_a_lease_object_used_by_two_at_once_releases_each_ones_own():
    """A module-level object is shared by threads; one that lost its lease ends its own."""
    shared = lease("job", ttl=60, heartbeat=False)
    context = contextvars.copy_context()
    first = context.run(shared.__enter__)
    expire()

    def take_over():
        with shared as second:
            entered.set()
            left.wait(DEADLINE)
        return second

    entered, left = threading.Event(), threading.Event()
    taking = Background(take_over)
    wait_for(lambda: entered.is_set() or taking.result)
    try:
        with pytest.raises(LeaseLost):
            context.run(shared.__exit__, None, None, None)
        still_held = not is_free()
    finally:
        left.set()
        second = taking.join()
        first.release()
    assert isinstance(second, HeldLease), second
    assert still_held
    assert (first.lost_reason, second.lost_reason) == ("taken", None)


def test_a_block_that_ends_in_another_context_is_released_too():
    """As a generator does that a server moves from one context to another."""
    context = lease("job")
    held = contextvars.copy_context().run(context.__enter__)
    try:
        contextvars.copy_context().run(context.__exit__, None, None, None)
        assert is_free()
    finally:
        held.release()


# -- current_lease()


def test_current_lease_is_the_innermost_lease_and_none_outside():
    assert current_lease() is None
    with lease("job") as outer:
        assert current_lease() is outer
        with lease("other") as inner:
            assert current_lease() is inner
            held = claim("third")
            assert current_lease() is inner
            held.release()
        assert current_lease() is outer
        assert elsewhere(current_lease) is None
    assert current_lease() is None


def test_current_lease_is_none_after_a_block_that_raised():
    with pytest.raises(ZeroDivisionError), lease("job"):
        raise ZeroDivisionError
    assert current_lease() is None


# -- async with lease()


def test_async_with_holds_releases_and_knows_the_current_lease():
    async def main():
        assert current_lease() is None
        async with lease("job", ttl="1m") as held:
            assert current_lease() is held
            assert await sync_to_async(current_lease)() is held
            assert not await sync_to_async(is_free)()
            async with lease("other") as inner:
                assert current_lease() is inner
            assert current_lease() is held
        assert current_lease() is None

    aio.run(main)
    assert is_free()
    assert outcomes() == [Outcome.SUCCEEDED]


def test_async_with_raises_what_with_raises():
    async def main():
        problem = ZeroDivisionError()
        with pytest.raises(ZeroDivisionError) as caught:
            async with lease("job"):
                raise problem
        assert caught.value is problem
        with pytest.raises(LeaseLost, match="broken by ops"):
            async with lease("job"):
                await sync_to_async(store.break_lease)("job", "default", by="ops")
        with pytest.raises(ValueError, match="tick"):
            await lease("job", tick="soon").__aenter__()

    aio.run(main)
    assert outcomes() == [Outcome.FAILED, Outcome.LOST]


def test_async_with_a_declined_lease_raises():
    RunLeaseFactory(name="job", held=True)

    async def main():
        with pytest.raises(LeaseDeclined, match="elsewhere:4711"):
            async with lease("job"):
                raise AssertionError

    aio.run(main)


def test_a_task_that_waits_for_another_ones_lease_does_not_block_the_event_loop():
    async def main():
        order, turns = [], 0

        async def work(name):
            async with lease("job", ttl=60, wait=DEADLINE) as held:
                assert current_lease() is held
                order.append(name)
                end = turns + 40
                while turns < end:
                    await asyncio.sleep(0.005)
                assert current_lease() is held
                order.append(name)

        async def spin():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.005)

        spinning = asyncio.create_task(spin())
        await asyncio.gather(work("a"), work("b"))
        spinning.cancel()
        return order

    order = aio.run(main)
    assert order in (["a", "a", "b", "b"], ["b", "b", "a", "a"])
    assert outcomes() == [Outcome.SUCCEEDED] * 2
    assert is_free()


async def enter_for_ever(entered=None, **options):
    async with lease("job", ttl=60, **options):
        if entered is not None:
            entered.append(True)
        await asyncio.sleep(60)


def test_a_task_cancelled_in_the_block_releases():
    async def main():
        entered = []
        task = asyncio.create_task(enter_for_ever(entered))
        while not entered:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    aio.run(main)
    assert is_free()
    assert outcomes() == [Outcome.TERMINATED]


def test_a_task_cancelled_while_it_waits_leaves_no_lease_and_no_decline():
    held = claim("job")

    async def main():
        task = asyncio.create_task(enter_for_ever(wait=60))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await sync_to_async(held.release)()
        await asyncio.sleep(0.2)

    aio.run(main)
    assert is_free()
    assert outcomes() == [Outcome.SUCCEEDED]


@pytest.fixture
def slow_claims():
    """Claims of this process that take a while after they were granted; the event that it is so."""
    original, claimed = store.claim, threading.Event()

    def claim_and_dawdle(*args, **kwargs):
        result = original(*args, **kwargs)
        claimed.set()
        time.sleep(0.3)
        return result

    with patch("django_runlease.store.claim", claim_and_dawdle):
        yield claimed
    aio.close_connections()


async def until(event):
    while not event.is_set():
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("cancellations", [1, 2])
def test_a_task_cancelled_while_it_claims_leaves_no_lease_behind(slow_claims, cancellations):
    """Twice, as when a time limit and then the end of the program cancel it."""

    async def main():
        task = asyncio.create_task(enter_for_ever())
        await until(slow_claims)
        for _ in range(cancellations):
            task.cancel()
            await asyncio.sleep(0.02)
        with pytest.raises(asyncio.CancelledError):
            await task

    aio.run(main)
    wait_for(is_free)
    wait_for(lambda: outcomes() == [Outcome.TERMINATED])
    gc.collect()


def test_a_program_that_ends_while_a_task_claims_leaves_no_lease_behind(slow_claims):
    async def main():
        task = asyncio.create_task(enter_for_ever())
        await until(slow_claims)
        return task

    task = asyncio.run(main())
    assert task.cancelled()
    wait_for(is_free)
    gc.collect()


def test_a_task_whose_time_limit_passes_while_it_claims_gets_the_time_out(slow_claims):
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await enter_for_ever()

    aio.run(main)
    wait_for(is_free)


def test_a_task_cancelled_during_the_release_has_released(slow_claims):
    async def main():
        original, releasing = store.release, threading.Event()

        def release_slowly(*args, **kwargs):
            releasing.set()
            time.sleep(0.2)
            return original(*args, **kwargs)

        async def work():
            async with lease("job"):
                pass

        with patch("django_runlease.store.release", release_slowly):
            task = asyncio.create_task(work())
            await until(releasing)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    aio.run(main)
    wait_for(is_free)


def test_claim_in_a_coroutine_is_refused_by_django_and_leaves_no_lease():
    from django.core.exceptions import SynchronousOnlyOperation

    async def main():
        with pytest.raises(SynchronousOnlyOperation):
            claim("job")

    aio.run(main)
    assert is_free()


# -- what is left


LEAVINGS = """
import gc, os, sys, threading, time
from django.db import connection
from django_runlease import claim, lease

def left():
    return len(os.listdir("/proc/self/fd")), threading.active_count()

def backends():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend' AND application_name = 'leavings'"
        )
        return cursor.fetchone()[0]

def cycle(count):
    for _ in range(count):
        assert claim("job", ttl=60).release()
        with lease("job"):
            assert not claim("job")

cycle(5)
end = time.monotonic() + 20
while (before := (*left(), backends())) != (before[0], 1, 1) and time.monotonic() < end:
    time.sleep(0.05)
cycle(100)
end = time.monotonic() + 20
while (after := (*left(), backends())) != before and time.monotonic() < end:
    time.sleep(0.05)
assert after == before, (before, after)
"""


def test_200_claims_and_releases_leave_no_thread_no_connection_and_no_descriptor():
    process = spawn_python(LEAVINGS, env={"PGAPPNAME": "leavings", "PATH": os.environ["PATH"]})
    out, err = process.communicate(timeout=3 * DEADLINE)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_request_may_be_made_without_asking_anything(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert wish().name == "job"
        lease("job")
        Claim.from_options("job", {})


def test_a_waiting_claim_outlasts_the_loss_of_its_connection():
    """As a hot spare has to, when the database restarts."""
    held = claim("job", ttl=60, heartbeat=False)
    waiting = Background(lambda: claim("job", wait=DEADLINE, heartbeat=False))
    wait_for(lambda: Run.objects.count() == 1 and len(others()) >= 1)
    for pid in others():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
    held.release()
    claimed = waiting.join()
    assert isinstance(claimed, HeldLease), claimed
    assert claimed.release()


def others():
    """The idle sessions that have tried to claim."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND state = 'idle' AND query LIKE '%COMMIT%'"
        )
        return [pid for (pid,) in cursor.fetchall()]
