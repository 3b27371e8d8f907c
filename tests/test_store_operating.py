import re
import subprocess
import threading
import uuid
from datetime import UTC, datetime, timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_runlease import holder, store
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Blocked, Changed, Closing, Seen, blocking
from django_runlease.store import connection as store_connection

from .factories import RunLeaseFactory
from .support import (
    DEADLINE,
    backends,
    elsewhere,
    expire,
    granted,
    named_by,
    open_transaction,
    refused,
    together,
    wait_for,
    wish,
)

DONE = Closing(outcome=Outcome.SUCCEEDED)
FENCE = "SELECT 1 FROM runlease_runlease WHERE name = 'job' FOR KEY SHARE"


def break_job(**options):
    return store.break_lease("job", "default", by="ann", **options)


def lease_row():
    return RunLease.objects.filter(name="job").values().get()


def blocked(change):
    """What is said when it cannot be done."""
    with pytest.raises(Blocked) as error:
        change()
    return str(error.value)


# -- break


@pytest.mark.django_db
def test_a_break_frees_the_lease_and_waits_until_its_holder_has_stopped():
    claimed = granted(ttl=300)
    before = lease_row()
    broken = break_job()
    row = lease_row()
    assert (row["token"], row["expires_at"], row["holder"]) == (None, None, "")
    assert row["generation"] == before["generation"] + 1
    assert row["not_before"] == before["expires_at"]
    assert broken.holder == before["holder"]
    assert broken.free_at == pytest.approx(before["expires_at"].timestamp())
    run = Run.objects.get(pk=claimed.run_id)
    assert (run.outcome, run.reason) == (Outcome.LOST, "broken by ann")
    assert run.finished_at > run.started_at
    declined = refused().declined
    assert (declined.reason, declined.expires_at) == ("not_due", before["expires_at"])


@pytest.mark.django_db
def test_a_break_at_once_lets_the_next_claim_in_at_once():
    granted()
    assert break_job(at_once=True).free_at is None
    assert lease_row()["not_before"] is None
    assert granted().generation == 3


@pytest.mark.django_db
def test_a_break_of_a_free_lease_only_lifts_its_minimum_hold():
    store.release(granted(), DONE, at_least=timedelta(minutes=5))
    before, runs = lease_row(), list(Run.objects.values())
    assert before["not_before"] is not None
    broken = break_job()
    assert (broken.holder, broken.free_at) == ("", None)
    assert lease_row() == {**before, "not_before": None}
    assert list(Run.objects.values()) == runs
    assert granted().generation == 2


@pytest.mark.django_db
def test_a_break_of_an_expired_lease_does_not_keep_anybody_waiting():
    granted()
    expire()
    break_job()
    assert granted().generation == 3


@pytest.mark.django_db
def test_the_run_of_a_lease_that_expired_before_its_break_ended_when_it_expired():
    claimed = granted(ttl=60)
    expire()
    RunLease.objects.update(expires_at=F("expires_at") - timedelta(days=3))
    Run.objects.update(started_at=F("started_at") - timedelta(days=4))
    (closed,) = break_job().closed
    run = Run.objects.get(pk=claimed.run_id)
    day = timedelta(days=1).total_seconds()
    assert closed.duration == pytest.approx(day, abs=120)
    assert (run.finished_at - run.started_at).total_seconds() == pytest.approx(day, abs=120)


@pytest.mark.django_db
def test_a_break_of_a_holder_that_is_seen_to_be_gone_waits_for_nobody():
    process = subprocess.Popen(["sleep", "600"])
    start = holder.start_ticks((holder.PROC / f"{process.pid}/stat").read_text())
    process.kill()
    process.wait()
    granted(ttl=300)
    gone = {**holder.this_process().process, "pid": process.pid, "start": start}
    RunLease.objects.update(holder_process=gone)
    broken = break_job()
    assert (broken.is_gone, broken.free_at) == (True, None)
    assert lease_row()["not_before"] is None
    assert granted().generation == 3


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("seen", "is_broken"),
    [
        (Seen(generation=1, is_held=True), True),
        (Seen(generation=2, is_held=True), False),
        (Seen(generation=1, is_held=False), False),
    ],
)
def test_only_what_was_seen_is_broken(seen, is_broken):
    granted()
    before = lease_row()
    if is_broken:
        assert break_job(seen=seen).was_held
        return
    with pytest.raises(Changed, match="job: it has changed meanwhile, so nothing was done"):
        break_job(seen=seen)
    assert lease_row() == before


@pytest.mark.django_db
def test_a_minimum_hold_outlives_a_break_that_was_meant_for_its_holder():
    claimed = granted()
    seen = Seen(generation=claimed.generation, is_held=True)
    store.release(claimed, DONE, at_least=timedelta(minutes=5))
    before = lease_row()
    with pytest.raises(Changed):
        break_job(seen=seen, at_once=True)
    assert lease_row() == before


@pytest.mark.django_db(transaction=True)
def test_a_forced_break_ends_no_connection_of_a_later_holder_than_was_seen():
    granted()
    seen = Seen(generation=1, is_held=True)
    RunLease.objects.update(generation=2)
    with open_transaction(FENCE):
        with pytest.raises(Changed):
            break_job(force=True, seen=seen)
        assert backends("state = 'idle in transaction'") == 1


@pytest.mark.django_db(transaction=True)
def test_nobody_is_ended_where_it_has_changed_by_the_time_that_a_locker_is_found():
    RunLeaseFactory(name="job")
    ended = set()

    def check():
        raise Changed("job: it has changed")

    def is_refused_for_that():
        lock = RunLease.objects.select_for_update()
        with pytest.raises(Blocked) as refused:
            blocking.unless_blocked("job", "default", lambda: list(lock), ended=ended, check=check)
        return isinstance(refused.value, Changed)

    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        wait_for(is_refused_for_that)
        assert backends("state = 'idle in transaction'") == 1
    assert not ended


@pytest.mark.django_db
def test_a_second_break_lifts_the_wait_that_the_first_one_left():
    granted()
    break_job()
    assert refused().declined.reason == "not_due"
    break_job()
    assert granted().generation == 3


@pytest.mark.django_db
@pytest.mark.parametrize("forget", [True, False])
@pytest.mark.parametrize("held", [True, False])
def test_a_break_forgets_the_tick_only_when_asked(forget, held):
    tick = datetime(2020, 1, 1, tzinfo=UTC)
    claimed = granted(tick=tick)
    if not held:
        store.release(claimed, DONE)
    break_job(forget_tick=forget)
    assert lease_row()["last_tick"] == (None if forget else tick)


@pytest.mark.django_db
def test_a_break_touches_no_other_lease():
    other = RunLeaseFactory(name="other", held=True)
    granted()
    before = RunLease.objects.filter(pk=other.pk).values().get()
    break_job()
    assert RunLease.objects.filter(pk=other.pk).values().get() == before


@pytest.mark.django_db
def test_an_unknown_name_cannot_be_broken_or_resumed():
    with pytest.raises(RunLeaseError, match="there is no lease 'job'"):
        break_job()
    with pytest.raises(RunLeaseError, match="there is no lease 'job'"):
        store.resume("job", "default", by="ann")
    assert not RunLease.objects.exists()


@pytest.mark.django_db
def test_who_breaks_is_logged_and_stored_whatever_the_name(caplog):
    granted()
    store.break_lease("job", "default", by="a\0b")
    assert Run.objects.get().reason == "broken by a\ufffdb"
    assert "broken by a" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_break_works_from_within_an_open_transaction_of_the_caller():
    granted()
    with transaction.atomic():
        break_job(at_once=True)
        transaction.set_rollback(True)
    assert lease_row()["token"] is None


@pytest.mark.django_db(transaction=True)
def test_an_open_fence_blocks_a_break_which_then_names_the_backend():
    granted()
    before = lease_row()
    with open_transaction(f"/* the fence */ {FENCE}"):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE '/* the fence */%%'")
            (pid,) = cursor.fetchone()
        message = named_by(lambda: blocked(break_job))
    assert f"process {pid} (" in message
    assert "idle in transaction" in message
    assert "--force" in message
    assert lease_row() == before
    assert Run.objects.get().outcome == Outcome.RUNNING


@pytest.mark.django_db(transaction=True)
def test_a_break_gives_a_blocker_two_seconds():
    granted()
    began = store_connection.database_clock("default")
    with open_transaction(FENCE), pytest.raises(Blocked):
        break_job()
    assert 1.9 < store_connection.database_clock("default") - began < DEADLINE


@pytest.mark.django_db(transaction=True)
def test_a_break_waits_for_a_fence_that_ends_in_time():
    granted()
    with open_transaction(FENCE) as finish:
        breaking = threading.Thread(target=lambda: elsewhere(break_job))
        breaking.start()
        wait_for(lambda: backends("wait_event_type = 'Lock'"))
        finish.set()
        breaking.join()
    assert lease_row()["token"] is None


@pytest.mark.django_db(transaction=True)
def test_a_forced_break_ends_the_connections_in_its_way():
    granted()

    def hold_until_ended():
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(FENCE)
            ready.set()
            with pytest.raises(OperationalError, match="terminating connection"):
                cursor.execute("SELECT pg_sleep(600)")
            transaction.set_rollback(True)

    ready = threading.Event()
    holding = threading.Thread(target=lambda: elsewhere(hold_until_ended))
    holding.start()
    ready.wait(DEADLINE)
    assert break_job(force=True).holder
    holding.join()
    assert lease_row()["token"] is None


def connect_otherwise(monkeypatch, role):
    """As *role*, in whatever connection is opened from now on."""
    connection.ensure_connection()
    options = {**connection.settings_dict["OPTIONS"], "options": f"-c role={role}"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_told_also_where_no_second_connection_can_say_who_locks_it(monkeypatch):
    RunLeaseFactory(name="job")
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        connect_otherwise(monkeypatch, "nobody_of_that_name")
        with pytest.raises(
            Blocked, match="job: its row is locked; who .* not be seen: .*nobody_of"
        ):
            store.pause("job", "default", by="ann")
    assert lease_row()["paused"] is False


@pytest.mark.django_db(transaction=True)
def test_a_forced_break_that_may_end_nobody_says_who_is_in_its_way_and_why(monkeypatch):
    granted()
    role = f"weak_{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            with open_transaction(FENCE):
                connect_otherwise(monkeypatch, role)
                with pytest.raises(
                    Blocked, match=r"locked by database process \d.*failed: .*permission denied"
                ):
                    break_job(force=True)
        finally:
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert lease_row()["token"] is not None


@pytest.mark.django_db(transaction=True)
def test_of_a_locker_of_another_role_is_told_what_the_server_tells(monkeypatch):
    RunLeaseFactory(name="job")
    role = f"weak_{uuid.uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        try:
            with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
                connect_otherwise(monkeypatch, role)
                said = named_by(lambda: blocked(OPERATIONS["pause"]))
        finally:
            cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert re.fullmatch(
        r"job: its row is locked by database process \d+ \([^,]*, unknown\); try again", said
    )


@pytest.mark.django_db(transaction=True)
def test_a_change_is_tried_again_where_nobody_was_seen_to_lock_the_row(monkeypatch):
    """As after a standstill of this process, of which the lock timeout knows nothing."""
    RunLeaseFactory(name="job")
    monkeypatch.setattr(blocking, "POLL", DEADLINE)
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)
    tries = []

    def work():
        tries.append(1)
        monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 1_000 * DEADLINE)
        if len(tries) > 1:
            finish.set()
        list(RunLease.objects.select_for_update())
        return "done"

    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE") as finish:
        assert blocking.unless_blocked("job", "default", work) == "done"
    assert len(tries) == 2


@pytest.mark.django_db(transaction=True)
def test_a_break_leaves_no_thread_and_no_connection_behind():
    granted()
    connection.ensure_connection()
    threads, before = set(threading.enumerate()), backends()
    break_job()
    wait_for(lambda: backends() == before)
    wait_for(lambda: set(threading.enumerate()) == threads)


# -- pause, resume


@pytest.mark.django_db
def test_a_pause_says_who_and_why_and_a_resume_takes_it_back():
    RunLeaseFactory(name="job")
    store.pause("job", "default", by="ann", reason="audit")
    row = lease_row()
    assert (row["paused"], row["paused_by"], row["paused_reason"]) == (True, "ann", "audit")
    assert refused().declined.reason == "paused"
    store.resume("job", "default", by="bob")
    row = lease_row()
    assert (row["paused"], row["paused_by"], row["paused_reason"]) == (False, "", "")
    assert granted().generation == 2


@pytest.mark.django_db
def test_only_the_pause_that_was_seen_is_ended():
    store.pause("job", "default", by="ann", reason="a\nb")
    before = lease_row()
    for seen in (("ann", "c"), ("bob", "a\nb"), ()):
        with pytest.raises(Changed, match="job: it has changed meanwhile, so nothing was done"):
            store.resume("job", "default", by="bob", pause=seen)
    assert lease_row() == before
    assert store.resume("job", "default", by="bob", pause=["ann", "a\nb"])
    assert not store.resume("job", "default", by="bob", pause=["ann", "a\nb"])


@pytest.mark.django_db
def test_a_pause_says_whether_it_changed_anything():
    said = [store.pause("job", "default", by=who, reason="x") for who in ("ann", "ann", "bob")]
    assert said == [True, False, True]


@pytest.mark.django_db
def test_a_name_can_be_paused_before_its_first_run():
    store.pause("job", "default", by="ann")
    assert refused().declined.reason == "paused"
    store.resume("job", "default", by="ann")
    assert granted().generation == 1


@pytest.mark.django_db
def test_pause_and_resume_never_touch_a_running_holder():
    claimed = granted()
    before, run = lease_row(), Run.objects.values().get()
    store.pause("job", "default", by="ann", reason="audit")
    paused = {"paused": True, "paused_by": "ann", "paused_reason": "audit"}
    assert lease_row() == {**before, **paused}
    assert store.renew(claimed, timedelta(minutes=1), None) is None
    store.resume("job", "default", by="ann")
    assert store.release(claimed, DONE) is None
    assert Run.objects.values("token", "started_at").get() == {
        key: run[key] for key in ("token", "started_at")
    }


@pytest.mark.django_db
def test_a_release_and_a_break_leave_the_pause_in_place():
    claimed = granted()
    store.pause("job", "default", by="ann")
    store.release(claimed, DONE)
    assert refused().declined.reason == "paused"
    break_job()
    assert lease_row()["paused_by"] == "ann"


OPERATIONS = {
    "pause": lambda: store.pause("job", "default", by="ann"),
    "resume": lambda: store.resume("job", "default", by="ann"),
    "remove": lambda: store.remove("job", "default", by="ann", unclaimed_for=timedelta(days=1)),
    "break": break_job,
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_locked_row_blocks_an_operator_no_longer_than_the_lock_timeout(operation):
    """And then it is told who locks it, and what helps."""
    RunLeaseFactory(name="job", held=operation == "break", paused=operation == "resume")
    before = lease_row()
    locks = "SELECT pid FROM pg_locks WHERE relation = 'runlease_runlease'::regclass AND granted"
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        with connection.cursor() as cursor:
            cursor.execute(f"{locks} AND mode = 'RowShareLock'")
            (pid,) = cursor.fetchone()
        message = named_by(lambda: blocked(OPERATIONS[operation]))
    remedy = "--force ends them" if operation == "break" else "try again"
    who = rf"database process {pid} \(.*, idle in transaction, in its transaction for \d+ s\)"
    assert re.fullmatch(f"job: its row is locked by {who}; {remedy}", message)
    assert lease_row() == before


@pytest.mark.django_db(transaction=True)
def test_a_pause_passes_an_open_fence():
    RunLeaseFactory(name="job", held=True)
    with open_transaction(FENCE):
        store.pause("job", "default", by="ann")
    assert lease_row()["paused"] is True


@pytest.mark.django_db
def test_text_that_the_database_cannot_store_does_not_keep_a_pause_from_working():
    store.pause("job", "default", by="a\0", reason="\ud800")
    assert (lease_row()["paused_by"], lease_row()["paused_reason"]) == ("a\ufffd", "\ufffd")


@pytest.mark.django_db
def test_a_bad_name_cannot_be_paused():
    with pytest.raises(ValueError, match="at most 200 characters"):
        store.pause("a" * 201, "default", by="ann")


@pytest.mark.django_db(transaction=True)
def test_claims_that_race_with_breaks_never_share_a_generation():
    def claim_again_and_again():
        generations = []
        for _ in range(15):
            result = store.claim(wish(), "default")
            if isinstance(result, store.Claimed):
                generations.append(result.generation)
        return generations

    def break_again_and_again():
        broken = 0
        wait_for(RunLease.objects.exists)
        for _ in range(15):
            broken += bool(break_job(at_once=True).holder)
        return broken

    *claims, broken = together(*[claim_again_and_again] * 3, break_again_and_again)
    generations = [generation for found in claims for generation in found]
    assert len(generations) == len(set(generations))
    assert lease_row()["generation"] == len(generations) + broken
