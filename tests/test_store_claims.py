import json
import threading
import uuid
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import ProgrammingError, connection, connections, transaction
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.db.models.functions import Now as StatementNow
from django.test import TestCase, override_settings

from django_runlease import lease, store
from django_runlease.clock import Epoch, Instant, Now, Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Claimed, Closing, Refusal
from django_runlease.store import connection as store_connection
from django_runlease.text import NAME_LENGTH

from .factories import RunFactory, RunLeaseFactory
from .support import (
    backends,
    elsewhere,
    expire,
    granted,
    open_transaction,
    refused,
    spawn_python,
    together,
    wait_for,
    wish,
)

LOCK_ROW = "SELECT 1 FROM runlease_runlease WHERE name = 'job' {}"
DONE = Closing(outcome=Outcome.SUCCEEDED)

RACE = """
import json, multiprocessing, sys, traceback
from datetime import timedelta
from django.db import connection
from django_runlease import store
from django_runlease.models import Outcome, RunLease
from django_runlease.terms import Terms

count, rounds, name, deleting = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], len(sys.argv) > 4
context = multiprocessing.get_context("fork")
barrier = context.Barrier(count)

def race(results):
    try:
        connection.ensure_connection()
        for number in range(rounds):
            request = store.ClaimRequest(
                name=name.format(number), terms=Terms(ttl=timedelta(minutes=1))
            )
            barrier.wait(120)
            result = store.claim(request, "default")
            barrier.wait(120)
            if isinstance(result, store.Claimed):
                results.send([number, result.generation])
                store.release(result, store.Closing(outcome=Outcome.SUCCEEDED))
                if deleting:
                    RunLease.objects.all().delete()
            else:
                assert result.declined.reason in ("held", "busy"), result
    except BaseException:
        barrier.abort()
        traceback.print_exc()
        raise SystemExit(1)

pipes = [context.Pipe(duplex=False) for _ in range(count)]
racers = [context.Process(target=race, args=[pipe]) for _, pipe in pipes]
for racer in racers:
    racer.start()
for _, pipe in pipes:
    pipe.close()
wins = []
for pipe, _ in pipes:
    try:
        while True:
            wins.append(pipe.recv())
    except EOFError:
        pass
for racer in racers:
    racer.join()
print(json.dumps(sorted(wins)))
sys.exit(any(racer.exitcode for racer in racers))
"""


def race(count, rounds, name, *flags):
    """The wins, as pairs of the round and the generation, of processes that meet every round."""
    process = spawn_python(RACE, str(count), str(rounds), name, *flags)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return [tuple(win) for win in json.loads(out)]


# -- races


@pytest.mark.django_db(transaction=True)
def test_of_processes_that_claim_at_once_exactly_one_wins_every_round():
    assert race(8, 200, "job") == [(n, n + 1) for n in range(200)]
    assert RunLease.objects.get().generation == 200
    runs = Run.objects.order_by("id").values_list("generation", "outcome")
    assert list(runs) == [(n + 1, "succeeded") for n in range(200)]


@pytest.mark.django_db(transaction=True)
def test_of_processes_that_claim_an_absent_row_at_once_one_wins_with_generation_1():
    assert race(20, 5, "job-{}") == [(n, 1) for n in range(5)]


@pytest.mark.django_db(transaction=True)
def test_of_processes_that_claim_a_deleted_row_at_once_one_wins_above_its_history():
    assert race(8, 20, "job", "delete") == [(n, n + 1) for n in range(20)]


@pytest.mark.django_db(transaction=True)
def test_of_threads_that_claim_an_absent_row_at_once_one_wins_and_the_others_decline():
    results = together(*[lambda: store.claim(wish(), "default")] * 20)
    assert [result.generation for result in results if isinstance(result, Claimed)] == [1]
    reasons = {result.declined.reason for result in results if isinstance(result, Refusal)}
    assert reasons <= {"held", "busy"}


@pytest.mark.django_db(transaction=True)
def test_of_threads_that_claim_an_expired_lease_at_once_one_takes_it_over():
    RunLeaseFactory(name="job", expired=True, generation=4)
    results = together(*[lambda: store.claim(wish(), "default")] * 8)
    assert [result.generation for result in results if isinstance(result, Claimed)] == [5]
    assert Run.objects.running().count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_row_deleted_again_and_again_while_it_is_claimed_never_repeats_a_generation(monkeypatch):
    monkeypatch.setattr(store.claims, "CREATIONS", 1000)

    def work():
        generations = []
        for _ in range(40):
            result = store.claim(wish(), "default")
            if isinstance(result, Claimed):
                generations.append(result.generation)
                RunLease.objects.filter(token=result.token).update(token=None, expires_at=None)
                RunLease.objects.filter(token=None).delete()
        return generations

    generations = [generation for found in together(*[work] * 6) for generation in found]
    assert len(generations) > 10
    assert len(generations) == len(set(generations)), sorted(generations)


@pytest.mark.django_db(transaction=True)
def test_the_history_is_read_when_nobody_else_can_claim_the_row_that_is_inserted():
    interleaved = []

    def live_a_whole_life(execute, sql, params, many, context):
        if sql.startswith('INSERT INTO "runlease_runlease"') and not interleaved:
            interleaved.append(elsewhere(lambda: store.release(granted(), DONE)))
            elsewhere(lambda: RunLease.objects.all().delete())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(live_a_whole_life):
        assert granted().generation == 2
    assert interleaved == [None]


# -- what a claim writes


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Pacific/Kiritimati"])
def test_a_lease_lasts_its_ttl_on_the_database_clock_in_any_time_zone(use_tz, zone):
    with override_settings(USE_TZ=use_tz, TIME_ZONE=zone):
        claimed = elsewhere(lambda: granted(ttl=300.25, at_least=7, every=86_400))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM expires_at - claimed_at), extract(epoch FROM claimed_at),"
            "       extract(epoch FROM renewed_at), extract(epoch FROM ttl),"
            "       abs(extract(epoch FROM clock_timestamp() - claimed_at)) < 30"
            "  FROM runlease_runlease"
        )
        lasts, claimed_at, renewed_at, ttl, is_now = cursor.fetchone()
    assert float(lasts) == pytest.approx(300.25, abs=0.001)
    assert float(claimed_at) == float(renewed_at) == pytest.approx(claimed.claimed_at, abs=1e-6)
    assert float(ttl) == 300.25
    assert is_now


@pytest.mark.django_db(transaction=True)
def test_a_session_time_zone_of_its_own_does_not_shift_a_lease(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "TIME_ZONE", "Pacific/Kiritimati")
    claimed = elsewhere(lambda: granted(ttl=90, at_least=30))
    lease = RunLease.objects.get()
    assert lease.expires_at - lease.claimed_at == timedelta(seconds=90)
    assert store.release(claimed, DONE, at_least=timedelta(seconds=30)) is None
    lease.refresh_from_db()
    assert lease.not_before - lease.claimed_at == timedelta(seconds=30)


@pytest.mark.django_db
def test_a_claim_opens_a_run_that_says_who_when_and_why():
    request = wish(trigger="runjob", tick=datetime.now(UTC) - timedelta(seconds=10))
    claimed = store.claim(request, "default")
    lease, run = RunLease.objects.get(), Run.objects.get()
    assert (run.lease_name, run.token, run.generation) == ("job", claimed.token, 1)
    assert (run.holder, run.host) == (lease.holder, lease.host)
    assert (run.holder, run.host) == (request.holder.name, request.holder.host)
    age = lease.holder_process.pop("age")
    assert lease.holder_process == request.holder.process
    assert age > 0
    assert (run.trigger, run.tick, run.outcome) == ("runjob", request.tick, Outcome.RUNNING)
    assert run.started_at == lease.claimed_at
    assert run.finished_at is None
    assert run.waited == timedelta(0)
    assert run.lag == run.started_at - run.tick
    assert lease.last_tick == request.tick
    assert (claimed.run_id, claimed.took_over_from) == (run.pk, "")


@pytest.mark.django_db
def test_neither_lag_nor_waited_is_negative():
    ahead = datetime.now(UTC) + timedelta(seconds=30)
    request = wish(tick=ahead)
    assert isinstance(store.claim(request, "default", waiting_since=ahead.timestamp()), Claimed)
    run = Run.objects.get()
    assert (run.lag, run.waited) == (timedelta(0), timedelta(0))


@pytest.mark.django_db
def test_waited_is_the_time_since_the_first_refusal_on_the_database_clock():
    granted()
    since = refused().now
    expire()
    store.claim(wish(), "default", waiting_since=since - 5)
    run = Run.objects.running().get()
    waited = run.started_at.timestamp() - since + 5
    assert run.waited.total_seconds() == pytest.approx(waited, abs=1e-5)


@pytest.mark.django_db
def test_a_declined_tick_is_recorded_with_its_reason_and_the_holder():
    holder = granted()
    request = wish(tick=datetime.now(UTC) - timedelta(seconds=3), trigger="celery")
    refusal = store.claim(request, "default")
    store.record_decline(request, refusal, "default", waiting_since=refusal.now - 2)
    run = Run.objects.exclude(pk=holder.run_id).get()
    assert (run.outcome, run.reason) == (Outcome.DECLINED, "held")
    assert run.holder == RunLease.objects.get().holder
    assert (run.token, run.generation, run.trigger) == (None, None, "celery")
    assert run.started_at == run.finished_at
    assert run.waited == timedelta(seconds=2)
    assert run.lag == run.started_at - run.tick
    assert Run.objects.get(pk=holder.run_id).outcome == Outcome.RUNNING


# -- expiry and takeover


@pytest.mark.django_db
def test_a_takeover_raises_the_generation_and_abandons_the_dead_holders_run():
    dead = granted()
    expire()
    expired_at = RunLease.objects.get().expires_at
    # It began before the lease expired, as it does when nobody moves the clock.
    Run.objects.update(started_at=Now() - Seconds(timedelta(seconds=5)))
    heir = granted()
    assert (heir.generation, heir.token != dead.token) == (2, True)
    assert heir.took_over_from == RunLease.objects.get().holder
    run = Run.objects.get(pk=dead.run_id)
    assert run.outcome == Outcome.ABANDONED
    assert run.finished_at == expired_at
    assert RunLease.objects.get().holder in run.reason
    assert Run.objects.running().get().pk == heir.run_id


@pytest.mark.django_db
def test_an_abandoned_run_never_ends_before_it_started():
    dead = granted()
    expire()
    granted()
    run = Run.objects.get(pk=dead.run_id)
    assert run.finished_at == run.started_at


@pytest.mark.django_db
def test_a_lease_is_held_until_the_database_says_that_its_ttl_has_passed():
    first = granted(ttl=60)
    early = refused()
    assert early.declined.reason == "held"
    assert early.declined.expires_at.timestamp() == pytest.approx(first.claimed_at + 60)
    assert early.declined.held_since.timestamp() == pytest.approx(first.claimed_at)
    assert early.declined.holder == RunLease.objects.get().holder
    RunLease.objects.update(expires_at=Now() + Seconds(timedelta(seconds=0.5)))
    expires_at = RunLease.objects.get().expires_at
    second = wait_for(lambda: isinstance(got := store.claim(wish(), "default"), Claimed) and got)
    assert second.claimed_at >= expires_at.timestamp()
    assert Run.objects.get(pk=first.run_id).finished_at == expires_at


@pytest.mark.django_db
def test_a_claim_closes_every_run_of_its_name_that_was_left_open_and_no_other():
    left, other = RunFactory(lease_name="job", running=True), RunFactory(running=True)
    granted()
    left.refresh_from_db()
    other.refresh_from_db()
    assert (left.outcome, other.outcome) == (Outcome.ABANDONED, Outcome.RUNNING)
    assert left.finished_at > left.started_at


# -- blockers


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("mode", ["UPDATE", "NO KEY UPDATE", "SHARE", "KEY SHARE"])
@pytest.mark.parametrize("traits", [{}, {"expired": True}], ids=["free", "expired"])
def test_a_locked_row_makes_a_claim_decline_as_busy_without_waiting(mode, traits, monkeypatch):
    # Who waited for the row's lock would get it in the end.
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 600_000)
    lease = RunLeaseFactory(name="job", **traits)
    with open_transaction(LOCK_ROW.format(f"FOR {mode}")):
        declined = refused().declined
    assert (declined.reason, declined.holder) == ("busy", lease.holder)
    assert RunLease.objects.get().generation == 1
    assert granted().generation == 2


@pytest.mark.django_db(transaction=True)
def test_a_decline_takes_no_row_lock_and_so_passes_a_locked_row():
    RunLeaseFactory(name="job", held=True)
    with open_transaction(LOCK_ROW.format("FOR UPDATE")):
        assert refused().declined.reason == "held"


@pytest.mark.django_db(transaction=True)
def test_a_locked_table_makes_a_claim_decline_as_busy_after_the_lock_timeout(monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)
    RunLeaseFactory(name="job")
    with open_transaction("LOCK TABLE runlease_runlease IN ACCESS EXCLUSIVE MODE"):
        request = wish()
        refusal = store.claim(request, "default")
        assert (refusal.declined.reason, refusal.declined.holder) == ("busy", "")
        assert refusal.now is None
        store.record_decline(request, refusal, "default")
    run = Run.objects.get()
    assert (run.reason, run.waited, run.started_at) == ("busy", None, run.finished_at)
    assert granted().generation == 2


@pytest.mark.django_db(transaction=True)
def test_an_absent_row_that_somebody_is_inserting_makes_a_claim_decline_as_busy(monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)
    insert = (
        "INSERT INTO runlease_runlease (name, generation, holder, host, paused, paused_by,"
        " paused_reason) VALUES ('job', 0, '', '', false, '', '')"
    )
    with open_transaction(insert):
        assert refused().declined.reason == "busy"
    assert granted().generation == 1


@pytest.mark.django_db(transaction=True)
def test_a_row_that_somebody_is_deleting_makes_a_claim_decline_as_busy():
    RunLeaseFactory(name="job", generation=7)
    with open_transaction("DELETE FROM runlease_runlease"):
        assert refused().declined.reason == "busy"
    assert granted().generation == 8


@pytest.mark.django_db
def test_a_row_deleted_by_hand_starts_above_the_highest_generation_of_its_history():
    RunFactory(lease_name="job", generation=41)
    RunFactory(lease_name="job", generation=7)
    RunFactory(lease_name="other", generation=99)
    assert granted().generation == 42


@pytest.mark.django_db(transaction=True)
def test_a_row_deleted_while_it_is_held_makes_way_for_a_claim_that_abandons_the_run():
    first = granted()
    RunLease.objects.all().delete()
    second = granted()
    assert second.generation == 2
    assert Run.objects.get(pk=first.run_id).outcome == Outcome.ABANDONED
    loss = store.release(first, DONE)
    assert loss
    assert RunLease.objects.get().token == second.token


@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_not_there_after_its_insert_gives_a_clear_error():
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql"
            " AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER nothing BEFORE INSERT ON runlease_runlease"
            " FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing()"
        )
        try:
            with pytest.raises(RunLeaseError, match="not there after inserting it"):
                store.claim(wish(), "default")
        finally:
            cursor.execute("DROP TRIGGER nothing ON runlease_runlease")


# -- facts about time that the store is built on


@pytest.mark.django_db(transaction=True)
def test_a_select_for_update_returns_the_time_before_its_lock_wait():
    """So does Django's Now(), in every statement; clock.Now in the next one is after the wait."""
    RunLeaseFactory(name="job")
    times = {}

    def wait_for_the_row():
        with transaction.atomic():
            locked = RunLease.objects.select_for_update().annotate(
                clock=Epoch(Now()), statement=Epoch(StatementNow())
            )
            times.update(locked.values("clock", "statement").get())
            times["later"] = store_connection.database_clock("default")

    with open_transaction(LOCK_ROW.format("FOR UPDATE")) as finish:
        waiting = threading.Thread(target=lambda: elsewhere(wait_for_the_row))
        waiting.start()
        wait_for(lambda: backends("wait_event_type = 'Lock'") == 1)
        blocked = store_connection.database_clock("default")
        finish.set()
        waiting.join()
    assert times["statement"] <= times["clock"] < blocked < times["later"]


@pytest.mark.django_db(transaction=True)
def test_an_update_that_waits_for_a_blocker_that_changes_nothing_writes_the_time_before():
    RunLeaseFactory(name="job")
    with open_transaction(LOCK_ROW.format("FOR UPDATE")) as finish:
        waiting = threading.Thread(
            target=lambda: elsewhere(lambda: RunLease.objects.update(renewed_at=Now()))
        )
        waiting.start()
        wait_for(lambda: backends("wait_event_type = 'Lock'") == 1)
        blocked = store_connection.database_clock("default")
        finish.set()
        waiting.join()
    assert RunLease.objects.get().renewed_at.timestamp() < blocked


@pytest.mark.django_db(transaction=True)
def test_a_claim_reads_the_clock_after_the_row_lock(monkeypatch):
    """The time between two statements counts, as a lease that expires in it shows."""
    lease = RunLeaseFactory(name="job", expired=True)
    first, seen = [], store.claims._look

    def slow_look(request, alias):
        look = seen(request, alias)
        if first:
            return look
        first.append(look.now)
        # The holder is renewed between the first look and the lock.
        elsewhere(lambda: RunLease.objects.update(expires_at=Now() + Seconds(timedelta(minutes=1))))
        return look

    monkeypatch.setattr(store.claims, "_look", slow_look)
    refusal = refused()
    assert (refusal.declined.reason, refusal.declined.holder) == ("held", lease.holder)
    assert refusal.now > first[0]


@pytest.mark.django_db
def test_an_interval_with_a_day_is_longer_than_its_seconds_when_clocks_go_back():
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    RunLeaseFactory()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Europe/Berlin'")
        cursor.execute("SELECT extract(epoch FROM %s + interval '1 day')", [before])
        with_a_day = float(cursor.fetchone()[0])
    end = Epoch(Instant(before.timestamp()) + Seconds(timedelta(days=1)))
    in_seconds = RunLease.objects.annotate(end=end).values_list("end", flat=True).get()
    assert with_a_day - before.timestamp() == 25 * 3600
    assert in_seconds - before.timestamp() == 24 * 3600


# -- isolation


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE"])
def level(request):
    return request.param


@pytest.fixture(params=["database", "psycopg"])
def isolation(request, level, transactional_db, monkeypatch):
    """The isolation level that transactions have by default: by the database's setting, which
    psycopg does not know of, or by Django's option, which acts at the BEGIN of each."""
    if request.param == "psycopg":
        options = {"isolation_level": IsolationLevel[level.replace(" ", "_")]}
        monkeypatch.setitem(
            connection.settings_dict, "OPTIONS", connection.settings_dict["OPTIONS"] | options
        )
        yield level
        return
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    setting = f"ALTER DATABASE {name} {{}} default_transaction_isolation"
    with connection.cursor() as cursor:
        cursor.execute(setting.format("SET") + f" = '{level.lower()}'")
        yield level
        cursor.execute(setting.format("RESET"))


def test_contended_claims_work_whatever_isolation_is_the_default(isolation):
    def contend():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            assert cursor.fetchone()[0].upper() == isolation
        won = 0
        for _ in range(15):
            result = store.claim(wish(), "default")
            if isinstance(result, Claimed):
                assert store.release(result, DONE) is None
                won += 1
            else:
                assert result.declined.reason in ("held", "busy")
        return won

    won = sum(together(*[contend] * 4))
    assert won > 0
    assert RunLease.objects.get().generation == won
    assert Run.objects.filter(outcome=Outcome.SUCCEEDED).count() == won


def test_claims_of_different_free_names_are_all_granted_whatever_the_isolation(isolation):
    def claims(worker):
        return [granted(f"job-{worker}-{n}").generation for n in range(10)]

    for generation in (1, 2):
        results = together(*[lambda worker=worker: claims(worker) for worker in range(6)])
        assert results == [[generation] * 10] * 6
        RunLease.objects.update(expires_at=Now() - Seconds(timedelta(seconds=1)))


def test_the_other_operations_work_whatever_isolation_is_the_default(isolation):
    def operate():
        claimed = granted()
        assert store.renew(claimed, timedelta(seconds=30), None) is None
        assert store.break_lease("job", "default", by="ann").holder
        assert store.release(claimed, DONE).reason == "broken"
        store.pause("job", "default", by="ann")
        store.resume("job", "default", by="ann")

    elsewhere(operate)


# -- the schedule: minimum hold, ticks, pause


def tick(seconds=0.0):
    return datetime.now(UTC).replace(microsecond=123456) + timedelta(seconds=seconds)


@pytest.mark.django_db
def test_at_least_keeps_the_next_claim_waiting_from_the_claim_on():
    claimed = granted()
    assert store.release(claimed, DONE, at_least=timedelta(minutes=5)) is None
    lease = RunLease.objects.get()
    assert lease.not_before - lease.claimed_at == timedelta(minutes=5)
    refusal = refused()
    assert refusal.declined.reason == "not_due"
    assert refusal.declined.expires_at == lease.not_before
    assert refusal.not_before == pytest.approx(lease.not_before.timestamp())
    assert refusal.declined.holder == ""
    assert granted(ignore_schedule=True).generation == 2


@pytest.mark.django_db
def test_a_minimum_hold_that_has_passed_holds_nobody_up():
    store.release(granted(), DONE, at_least=timedelta(milliseconds=1))
    wait_for(lambda: RunLease.objects.filter(not_before__lt=Now()).exists())
    assert granted().generation == 2


@pytest.mark.django_db
def test_a_tick_runs_once_and_a_newer_one_runs_too():
    first, second = tick(-20), tick(-10)
    store.release(granted(tick=second), DONE)
    assert refused(tick=second).declined.reason == "same_tick"
    assert refused(tick=first).declined.reason == "same_tick"
    third = tick(-5)
    assert granted(tick=third).generation == 2
    assert RunLease.objects.get().last_tick == third


@pytest.mark.django_db
def test_a_tick_counts_as_one_moment_whatever_its_offset():
    moment = tick(-10)
    store.release(granted(tick=moment), DONE)
    there = moment.astimezone(ZoneInfo("Asia/Kolkata"))
    assert refused(tick=there).declined.reason == "same_tick"


@pytest.mark.django_db
def test_a_tick_that_ran_declines_before_the_minimum_hold_does():
    moment = tick(-10)
    store.release(granted(tick=moment), DONE, at_least=timedelta(minutes=5))
    assert refused(tick=moment).declined.reason == "same_tick"
    assert refused(tick=tick()).declined.reason == "not_due"


@pytest.mark.django_db
def test_a_tick_whose_holder_crashed_may_be_run_again_but_no_older_one():
    moment = tick(-10)
    granted(tick=moment)
    expire()
    assert refused(tick=tick(-20)).declined.reason == "same_tick"
    assert granted(tick=moment).generation == 2


@pytest.mark.django_db
def test_a_tick_that_was_broken_stays_run_unless_the_operator_forgets_it():
    moment = tick(-10)
    granted(tick=moment)
    store.break_lease("job", "default", by="ann", at_once=True)
    assert refused(tick=moment).declined.reason == "same_tick"
    store.break_lease("job", "default", by="ann", forget_tick=True)
    assert granted(tick=moment).generation == 3


@pytest.mark.django_db
def test_a_manual_retry_of_an_old_tick_does_not_open_the_later_ones_again():
    old, new = tick(-20), tick(-10)
    store.release(granted(tick=new), DONE)
    store.release(granted(tick=old, ignore_schedule=True), DONE)
    assert RunLease.objects.get().last_tick == new
    assert refused(tick=new).declined.reason == "same_tick"


@pytest.mark.django_db
def test_a_claim_without_tick_leaves_the_last_one_alone():
    moment = tick(-10)
    store.release(granted(tick=moment), DONE)
    store.release(granted(), DONE)
    assert RunLease.objects.get().last_tick == moment


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("every", "ahead"), [({}, 70), ({"every": 10}, 70), ({"every": 3600}, 3700)]
)
@pytest.mark.parametrize("there", [True, False], ids=["present", "absent"])
def test_a_tick_too_far_ahead_is_refused_and_nothing_is_written(every, ahead, there):
    if there:
        store.release(granted(**every), DONE)
    before = list(RunLease.objects.values()), Run.objects.count()
    with pytest.raises(ValueError, match=r"tick: .* seconds ahead of the database's clock"):
        store.claim(wish(tick=tick(ahead), **every), "default")
    assert (list(RunLease.objects.values()), Run.objects.count()) == before


@pytest.mark.django_db
@pytest.mark.parametrize(("every", "ahead"), [({}, 50), ({"every": 3600}, 3500)])
def test_a_tick_that_is_only_a_little_ahead_is_granted(every, ahead):
    assert granted(tick=tick(ahead), **every)


def test_a_tick_without_an_offset_is_refused():
    with pytest.raises(ValueError, match=r"tick: 2030-01-31T06:00:00 has no UTC offset"):
        wish(tick=datetime(2030, 1, 31, 6))  # noqa: DTZ001  what is refused
    with pytest.raises(ValueError, match=r"tick: '2030' is not a datetime"):
        wish(tick="2030")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", "a" * (NAME_LENGTH + 1), " job", "a\0b", "e\u0301", None])
def test_a_bad_name_is_refused_before_the_database_is_asked(name, django_assert_num_queries):
    with django_assert_num_queries(0), pytest.raises(ValueError, match="lease's name"):
        store.claim(wish(name), "default")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["a" * NAME_LENGTH, "ü" * NAME_LENGTH, "日報 — 1", "%s", "'; --"])
def test_an_odd_but_good_name_names_its_own_lease(name):
    assert granted(name).name == name
    assert refused(name).declined.reason == "held"


@pytest.mark.django_db
def test_a_paused_lease_declines_before_anything_else_and_ignoring_the_schedule_does_not_help():
    moment = tick(-10)
    store.release(granted(tick=moment), DONE, at_least=timedelta(minutes=5))
    store.pause("job", "default", by="ann", reason="audit")
    assert refused(tick=moment).declined.reason == "paused"
    assert refused(ignore_schedule=True).declined.reason == "paused"


@pytest.mark.django_db
def test_a_lease_paused_and_held_declines_as_paused():
    granted()
    store.pause("job", "default", by="ann")
    assert refused().declined.reason == "paused"


@pytest.mark.django_db
def test_a_manual_retry_does_not_pass_a_holder():
    granted()
    assert refused(ignore_schedule=True).declined.reason == "held"


@pytest.mark.django_db
def test_a_preview_says_what_a_claim_would_and_writes_nothing():
    assert store.preview(wish(), "default") is None
    assert not RunLease.objects.exists()
    granted()
    assert store.preview(wish(), "default").declined.reason == "held"
    expire()
    before = list(RunLease.objects.values())
    assert store.preview(wish(), "default") is None
    assert list(RunLease.objects.values()) == before


# -- open transactions


@pytest.mark.django_db(transaction=True)
def test_a_claim_in_an_open_transaction_is_refused_with_the_remedy():
    with transaction.atomic(), pytest.raises(RunLeaseError, match="non_atomic_requests"):
        store.claim(wish(), "default")
    assert not RunLease.objects.exists()
    assert granted().generation == 1


@pytest.mark.django_db(transaction=True)
def test_a_claim_without_autocommit_is_refused_with_the_remedy():
    def claim_without_autocommit():
        transaction.set_autocommit(False)
        with pytest.raises(RunLeaseError, match="open the transaction inside"):
            store.claim(wish(), "default")

    elsewhere(claim_without_autocommit)
    assert not RunLease.objects.exists()


class ClaimsInATestCase(TestCase):
    def test_a_claim_works_and_the_whole_life_of_a_lease_too(self):
        claimed = granted(ttl=5)
        assert refused().declined.reason == "held"
        assert store.renew(claimed, timedelta(seconds=30), {"done": 1}) is None
        assert store.release(claimed, DONE) is None
        claimed = granted()
        store.break_lease("job", "default", by="ann")
        assert store.release(claimed, DONE).reason == "broken"

    def test_what_other_tests_claimed_is_gone(self):
        assert granted().generation == 1

    def test_a_claim_within_an_atomic_block_of_the_test_is_refused(self):
        with transaction.atomic(), pytest.raises(RunLeaseError, match="open transaction"):
            store.claim(wish(), "default")

    async def test_a_claim_works_in_an_async_test(self):
        async with lease("job", ttl=60) as held:
            assert held.generation == 1
        assert (await Run.objects.aget()).outcome == Outcome.SUCCEEDED


# -- a database that cannot answer


@pytest.mark.django_db(transaction=True)
def test_a_wrong_search_path_raises_and_nothing_is_held(monkeypatch):
    connection.ensure_connection()
    options = {**connection.settings_dict["OPTIONS"], "options": "-c search_path=nowhere"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    def claim():
        with pytest.raises(ProgrammingError, match="runlease_runlease"):
            store.claim(wish(), "default")

    elsewhere(claim)
    assert not RunLease.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_table_absent_at_the_first_claim_and_there_at_the_next_is_claimed():
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runlease_runlease RENAME TO elsewhere")
        try:
            with pytest.raises(ProgrammingError, match="does not exist"):
                store.claim(wish(), "default")
        finally:
            cursor.execute("ALTER TABLE elsewhere RENAME TO runlease_runlease")
    assert granted().generation == 1


@pytest.fixture
def powerless(transactional_db):
    """A role that may connect, and no more."""
    role = f"powerless_{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}")
        try:
            yield role
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    "rights", ["", "SELECT", "SELECT, INSERT", "SELECT, INSERT, UPDATE"], ids=str
)
def test_a_role_without_rights_raises_and_nothing_is_held(powerless, rights):
    RunLeaseFactory(name="job")
    with connection.cursor() as cursor:
        if rights:
            cursor.execute(f"GRANT {rights} ON runlease_runlease TO {powerless}")
        cursor.execute(f"SET ROLE {powerless}")
        with pytest.raises(ProgrammingError, match="permission denied for table"):
            store.claim(wish(), "default")
        cursor.execute("RESET ROLE")
    lease = RunLease.objects.get()
    assert (lease.token, lease.generation) == (None, 1)
    assert not Run.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_claims_work_with_parameters_bound_by_the_server(monkeypatch):
    options = {**connection.settings_dict["OPTIONS"], "server_side_binding": True}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    def operate():
        moment = tick(-5)
        claimed = granted(tick=moment, every=60)
        assert refused().declined.reason == "held"
        assert store.renew(claimed, timedelta(seconds=30), {"done": 1}) is None
        assert store.release(claimed, DONE, at_least=timedelta(seconds=1)) is None
        assert refused(tick=moment).declined.reason == "same_tick"
        assert store.break_lease("job", "default", by="ann").holder == ""
        connections.close_all()

    elsewhere(operate)


@pytest.mark.django_db(transaction=True)
def test_a_manual_retry_waits_for_the_end_of_a_broken_lease_unless_that_was_given_up():
    granted()
    store.break_lease("job", "default", by="ops")
    retry = store.claim(wish(ignore_schedule=True), "default")
    assert retry.declined.reason == "not_due"
    granted_again = RunLease.objects.update(not_before=None)
    assert granted_again
    assert isinstance(store.claim(wish(ignore_schedule=True), "default"), Claimed)


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_has_had_its_run_does_not_run_again_after_a_crash_without_a_tick():
    tick = datetime.now(UTC)
    finished = granted(tick=tick)
    store.release(finished, Closing(outcome=Outcome.SUCCEEDED))
    granted()
    expire()
    assert store.claim(wish(tick=tick), "default").declined.reason == "same_tick"
