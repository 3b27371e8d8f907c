import subprocess
import threading
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction

from django_runlease import store
from django_runlease.clock import Now, Seconds
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Claimed, Closing
from django_runlease.store import connection as store_connection
from django_runlease.store import holding as store_holding

from .factories import RunLeaseFactory
from .support import (
    DEADLINE,
    backends,
    cut_at_commit,
    elsewhere,
    expire,
    granted,
    open_transaction,
    spawn_python,
    wait_for,
    wish,
)

MINUTE = timedelta(minutes=1)
DONE = Closing(outcome=Outcome.SUCCEEDED)
FAILED = Closing(outcome=Outcome.FAILED, reason="boom", exit_code=3, error="trace", output="out")


def lease_row():
    return RunLease.objects.filter(name="job").values().get()


def run_of(claimed):
    return Run.objects.get(pk=claimed.run_id)


@pytest.fixture
def slow_commit(transactional_db):
    """Every COMMIT that changed a lease takes a while, and goes on when it is cancelled.

    The first of them does not end before somebody has taken a number of the sequence ``seen``,
    whose state no transaction hides.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE SEQUENCE seen;"
            "CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS '"
            " BEGIN"
            "   FOR turn IN 1..3000 LOOP"
            "     EXIT WHEN (SELECT is_called FROM seen);"
            "     PERFORM pg_sleep(0.02);"
            "   END LOOP;"
            "   PERFORM pg_sleep(0.4);"
            "   RETURN NULL;"
            " EXCEPTION WHEN query_canceled THEN RETURN NULL;"
            " END';"
            "CREATE CONSTRAINT TRIGGER slow_commit AFTER UPDATE ON runlease_runlease"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow_commit()"
        )
        yield
        # The table is locked as long as a transaction that a test cut off goes on.
        cursor.execute("DROP FUNCTION slow_commit CASCADE; DROP SEQUENCE seen")


@pytest.fixture
def fatal_commit(transactional_db):
    """The next COMMIT that changes a lease ends its own backend, and so does not happen.

    The trigger finds its cue in a sequence, which no rollback sets back.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE SEQUENCE deaths;"
            "CREATE FUNCTION fatal_commit() RETURNS trigger LANGUAGE plpgsql AS '"
            " BEGIN"
            "   IF nextval(''deaths'') = 1 THEN"
            "     PERFORM pg_terminate_backend(pg_backend_pid());"
            "     PERFORM pg_sleep(10);"
            "   END IF;"
            "   RETURN NULL;"
            " END';"
            "CREATE CONSTRAINT TRIGGER fatal_commit AFTER UPDATE ON runlease_runlease"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fatal_commit()"
        )
        yield
        cursor.execute("DROP FUNCTION fatal_commit CASCADE; DROP SEQUENCE deaths")


# -- renew


@pytest.mark.django_db
def test_a_renewal_lasts_its_ttl_from_the_databases_now():
    claimed = granted(ttl=30)
    before = lease_row()
    earliest = store_connection.database_clock("default")
    assert store.renew(claimed, MINUTE, {"done": 1}) is None
    latest = store_connection.database_clock("default")
    after = lease_row()
    assert earliest <= after["renewed_at"].timestamp() <= latest
    assert earliest + 60 <= after["expires_at"].timestamp() <= latest + 60
    assert after["renewed_at"] > before["renewed_at"]
    assert after["progress"] == {"done": 1}
    changed = {key for key in after if after[key] != before[key]}
    assert changed == {"expires_at", "renewed_at", "progress"}


@pytest.mark.django_db
def test_a_renewal_never_revives_an_expired_lease():
    claimed = granted()
    expire()
    before = lease_row()
    loss = store.renew(claimed, MINUTE, None)
    assert (loss.reason, str(loss)) == ("expired", "it expired before it was renewed")
    assert lease_row() == before


@pytest.mark.django_db(transaction=True)
def test_a_renewal_that_waited_for_the_row_does_not_revive_a_lease_that_expired_meanwhile(
    monkeypatch,
):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 600_000)
    claimed = granted(ttl=6)
    losses = []
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE") as finish:
        renewing = threading.Thread(
            target=lambda: losses.append(elsewhere(partial(store.renew, claimed, MINUTE, None)))
        )
        renewing.start()
        wait_for(lambda: backends("wait_event_type = 'Lock'"))
        assert RunLease.objects.filter(expires_at__gt=Now()).exists()
        wait_for(lambda: RunLease.objects.filter(expires_at__lte=Now()).exists())
        finish.set()
        renewing.join()
    assert [loss.reason for loss in losses] == ["expired"]


@pytest.mark.django_db(transaction=True)
def test_a_renewal_waits_for_a_locked_row_no_longer_than_the_lock_timeout(monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)
    claimed = granted()
    with (
        open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"),
        pytest.raises(DatabaseError, match="lock timeout"),
    ):
        store.renew(claimed, MINUTE, None)
    assert store.renew(claimed, MINUTE, None) is None


@pytest.mark.django_db
def test_a_renewal_after_a_takeover_says_who_took_it_and_changes_nothing():
    late = granted()
    expire()
    RunLease.objects.update(holder="dead")
    granted()
    before = lease_row()
    loss = store.renew(late, MINUTE, {"done": 9})
    assert loss.reason == "taken"
    assert before["holder"] in str(loss)
    assert lease_row() == before


@pytest.mark.django_db
def test_a_renewal_after_a_break_says_who_broke_it():
    claimed = granted()
    store.break_lease("job", "default", by="ann")
    loss = store.renew(claimed, MINUTE, None)
    assert (loss.reason, str(loss)) == ("broken", "broken by ann")


@pytest.mark.django_db(transaction=True)
def test_a_renewal_whose_connection_is_cut_is_tried_again():
    claimed = granted(ttl=5)
    with cut_at_commit("before") as cut:
        assert store.renew(claimed, MINUTE, None) is None
        assert cut.is_set()
    assert RunLease.objects.get().expires_at.timestamp() > claimed.claimed_at + 55


# -- release


def note_group(claimed):
    assert store.note_group(claimed, 4711)
    assert lease_row()["holder_process"]["group"] == 4711


def release(claimed):
    assert store.release(claimed, DONE) is None
    assert lease_row()["token"] is None


@pytest.fixture
def waits(monkeypatch):
    """The numbers of the waits for a locked row, counted as each begins; short ones."""
    begun = []
    apart = store_holding.apart

    def counted(alias, work):
        begun.append(len(begun) + 1)
        return apart(alias, work)

    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)
    monkeypatch.setattr(store_holding, "apart", counted)
    return begun


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", [release, note_group])
def test_a_holder_waits_for_its_locked_row_several_times_over(act, waits, monkeypatch):
    claimed = granted()
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE") as finish:

        def end_in_the_third():
            wait_for(lambda: len(waits) == 2)
            # What is begun from now on waits for as long as it takes.
            monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 20_000)
            wait_for(lambda: len(waits) == 3)
            finish.set()

        ending = threading.Thread(target=end_in_the_third)
        ending.start()
        act(claimed)
        ending.join()
    assert waits == [1, 2, 3]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("act", [release, note_group])
def test_a_holder_does_not_wait_for_ever_for_its_locked_row(act, waits):
    claimed = granted()
    before = lease_row()
    with (
        open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"),
        pytest.raises(DatabaseError, match="lock timeout"),
    ):
        act(claimed)
    assert waits == [1, 2, 3]
    assert lease_row() == before
    act(claimed)


@pytest.mark.django_db
def test_a_release_frees_the_lease_keeps_its_generation_and_closes_the_run():
    claimed = granted()
    assert store.release(claimed, FAILED) is None
    row = lease_row()
    assert (row["token"], row["expires_at"], row["not_before"]) == (None, None, None)
    assert (row["holder"], row["host"], row["holder_process"]) == ("", "", None)
    assert row["generation"] == 1
    run = run_of(claimed)
    assert (run.outcome, run.reason, run.exit_code) == (Outcome.FAILED, "boom", 3)
    assert (run.error, run.output) == ("trace", "out")
    assert run.finished_at > run.started_at


@pytest.mark.django_db
def test_a_release_after_a_takeover_changes_nothing_but_its_own_run():
    late = granted(at_least=30)
    Run.objects.update(started_at=Now() - Seconds(timedelta(seconds=9)))
    expire()
    heir = granted()
    abandoned = run_of(late)
    assert abandoned.outcome == Outcome.ABANDONED
    before, heirs_run = lease_row(), Run.objects.filter(pk=heir.run_id).values().get()
    loss = store.release(late, FAILED, at_least=timedelta(minutes=9))
    assert loss.reason == "taken"
    assert lease_row() == before
    assert Run.objects.filter(pk=heir.run_id).values().get() == heirs_run
    run = run_of(late)
    assert (run.outcome, run.exit_code, run.error) == (Outcome.LOST, 3, "trace")
    assert before["holder"] in run.reason
    assert run.reason.endswith("; boom")
    assert run.finished_at > abandoned.finished_at
    assert store.release(heir, DONE) is None


@pytest.mark.django_db
def test_a_late_release_after_the_heir_has_finished_changes_nothing_but_its_own_run():
    late = granted()
    expire()
    store.release(granted(), DONE)
    before = lease_row()
    loss = store.release(late, DONE)
    assert (loss.reason, str(loss)) == ("taken", "it expired and somebody else has run since")
    assert lease_row() == before
    assert run_of(late).outcome == Outcome.LOST


@pytest.mark.django_db
def test_a_second_late_release_gives_the_same_reason():
    late = granted()
    expire()
    granted()
    first, before = store.release(late, DONE), lease_row()
    assert store.release(late, DONE).reason == first.reason == "taken"
    assert lease_row() == before


@pytest.mark.django_db
def test_a_double_release_is_a_loss_and_leaves_lease_and_run_as_they_are():
    claimed = granted()
    assert store.release(claimed, DONE) is None
    row, run = lease_row(), Run.objects.values().get()
    assert store.release(claimed, FAILED)
    assert (lease_row(), Run.objects.values().get()) == (row, run)
    heir = granted()
    before = lease_row()
    assert store.release(claimed, DONE)
    assert lease_row() == before
    assert store.release(heir, DONE) is None


@pytest.mark.django_db
def test_a_release_of_an_expired_lease_that_nobody_took_works():
    claimed = granted()
    expire()
    assert store.release(claimed, DONE) is None
    assert lease_row()["token"] is None
    assert run_of(claimed).outcome == Outcome.SUCCEEDED


@pytest.mark.django_db
def test_a_release_after_a_break_is_a_loss_and_gives_the_run_its_true_finish():
    claimed = granted()
    store.break_lease("job", "default", by="ann")
    broken = run_of(claimed)
    loss = store.release(claimed, FAILED)
    assert (loss.reason, str(loss)) == ("broken", "broken by ann")
    run = run_of(claimed)
    assert (run.outcome, run.reason) == (Outcome.LOST, "broken by ann; boom")
    assert run.finished_at > broken.finished_at


@pytest.mark.django_db
def test_a_wrong_token_releases_and_renews_nothing():
    claimed = granted()
    before, run = lease_row(), Run.objects.values().get()
    other = Claimed(**{**vars(claimed), "token": uuid.uuid4()})
    assert store.release(other, DONE)
    assert store.renew(other, MINUTE, None)
    assert (lease_row(), Run.objects.values().get()) == (before, run)


@pytest.mark.django_db
def test_at_least_counts_from_the_claim_and_not_from_the_release():
    claimed = granted()
    RunLease.objects.update(expires_at=Now() + Seconds(MINUTE))
    store.release(claimed, DONE, at_least=MINUTE)
    not_before = RunLease.objects.get().not_before.timestamp()
    assert not_before == pytest.approx(claimed.claimed_at + 60, abs=1e-5)


@pytest.mark.django_db
def test_a_release_without_at_least_lifts_an_old_minimum_hold():
    RunLeaseFactory(name="job", not_before=datetime(2020, 1, 1, tzinfo=UTC))
    store.release(granted(), DONE)
    assert RunLease.objects.get().not_before is None


@pytest.mark.django_db
def test_text_that_the_database_cannot_store_is_replaced():
    claimed = granted()
    closing = Closing(outcome=Outcome.FAILED, reason="a\0b", error="\ud800", output="x" * 99_999)
    assert store.release(claimed, closing) is None
    run = run_of(claimed)
    assert (run.reason, run.error) == ("a\ufffdb", "\ufffd")
    assert run.output.startswith("…x")


WORKER = """
import sys, time
from datetime import timedelta
from django.db import connection
from django_runlease import store
from django_runlease.models import Outcome, RunLease
from django_runlease.terms import Terms

claimed = store.claim(
    store.ClaimRequest(name="job", terms=Terms(ttl=timedelta(seconds=0.3))), "default"
)
print(claimed.generation, flush=True)
sys.stdin.readline()
loss = store.release(claimed, store.Closing(outcome=Outcome.SUCCEEDED))
print(loss.reason, flush=True)
"""


@pytest.mark.django_db(transaction=True)
def test_a_worker_process_that_outlives_its_lease_is_told_and_changes_nothing():
    with spawn_python(WORKER, stdin=subprocess.PIPE) as worker:
        assert worker.stdout.readline() == "1\n"
        heir = wait_for(lambda: isinstance(c := store.claim(wish(), "default"), Claimed) and c)
        before = lease_row()
        out, err = worker.communicate("\n", timeout=DEADLINE)
    assert (worker.returncode, out) == (0, "taken\n"), err
    assert heir.generation == 2
    assert lease_row() == before
    assert list(Run.objects.order_by("id").values_list("outcome", flat=True)) == [
        Outcome.LOST,
        Outcome.RUNNING,
    ]


# -- the job's connection is not used


def leave_open_atomic():
    transaction.atomic().__enter__()


def leave_broken_atomic():
    transaction.atomic().__enter__()
    with pytest.raises(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT 1 / 0")


def leave_without_autocommit():
    transaction.set_autocommit(False)
    Run.objects.count()


def leave_closed():
    connection.close()


def leave_ended_by_the_server():
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    elsewhere(lambda: end_backend(pid))


def end_backend(pid):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "misuse",
    [
        leave_open_atomic,
        leave_broken_atomic,
        leave_without_autocommit,
        leave_closed,
        leave_ended_by_the_server,
    ],
)
def test_a_job_may_do_to_its_connection_what_it_likes_and_the_lease_is_released(misuse):
    def work():
        claimed = granted()
        misuse()
        assert store.renew(claimed, MINUTE, None) is None
        assert store.release(claimed, DONE) is None

    elsewhere(work)
    assert lease_row()["token"] is None
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


@pytest.mark.django_db(transaction=True)
def test_renewals_and_releases_leave_no_thread_and_no_connection_behind():
    granted("warm up")
    threads, connections_before = set(threading.enumerate()), backends()
    for _ in range(5):
        claimed = granted()
        store.renew(claimed, MINUTE, None)
        store.release(claimed, DONE)
    wait_for(lambda: backends() == connections_before)
    wait_for(lambda: set(threading.enumerate()) == threads)


POOLED = """
from django.db import connections, transaction
from django.conf import settings
settings.DATABASES["default"].setdefault("OPTIONS", {})["pool"] = {
    "min_size": 1, "max_size": 1, "timeout": 5,
}
settings.DATABASES["default"]["CONN_MAX_AGE"] = 0
from django_runlease import claim, store
from django_runlease.models import RunLease
held = claim("job", ttl=60)
transaction.atomic().__enter__()
assert RunLease.objects.filter(name="job", token__isnull=False).exists()
assert held.release()
connections["default"].close()
connections["default"].close_pool()
"""


@pytest.mark.django_db(transaction=True)
def test_a_release_works_when_the_job_has_exhausted_a_pool_of_connections():
    process = spawn_python(POOLED)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err
    assert lease_row()["token"] is None


# -- a commit in doubt


@pytest.mark.django_db(transaction=True)
def test_a_claim_on_a_connection_that_has_died_raises_and_the_next_one_is_granted():
    def claim():
        leave_ended_by_the_server()
        with pytest.raises(DatabaseError):
            store.claim(wish(), "default")
        return granted().generation

    assert elsewhere(claim) == 1


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_has_written_nothing_is_not_in_doubt(monkeypatch, caplog):
    """Nor does a database that cannot be reached keep its caller waiting for more of the same."""
    connection.ensure_connection()
    monkeypatch.setattr(store.claims, "release_in_doubt", pytest.fail)

    def claim():
        connection.close()
        with monkeypatch.context() as patch, pytest.raises(DatabaseError):
            patch.setitem(connection.settings_dict, "HOST", "/nowhere")
            store.claim(wish(), "default")

    elsewhere(claim)
    assert caplog.text == ""


@pytest.mark.django_db(transaction=True)
def test_a_claim_in_doubt_that_the_database_does_not_answer_is_logged(monkeypatch, caplog):
    RunLeaseFactory(name="job")
    monkeypatch.setattr(store_holding, "DOUBT_PAUSES", (0.0, 0.01))

    def claim():
        with pytest.raises(DatabaseError):
            store.claim(wish(), "default")

    with monkeypatch.context() as patch, cut_at_commit("after"):
        patch.setattr(store_holding, "apart", unreachable)
        elsewhere(claim)
    assert "job: claimed perhaps, and not released" in caplog.text
    assert "expires after its ttl" in caplog.text


def unreachable(alias, work):
    raise OperationalError("nobody there")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_claim_cut_at_its_commit_raises_and_the_lease_is_free(when):
    RunLeaseFactory(name="job")

    def claim():
        with pytest.raises(DatabaseError):
            store.claim(wish(), "default")

    with cut_at_commit(when) as cut:
        elsewhere(claim)
        assert cut.is_set()
    assert lease_row()["token"] is None
    runs = list(Run.objects.values_list("outcome", "reason"))
    failed = [(Outcome.FAILED, "the claim's answer was lost, so the job did not run")]
    assert runs in {"before": [[]], "during": [failed], "after": [failed]}[when]
    assert granted().generation == (2 if when == "before" else 3)


def seen():
    with connection.cursor() as cursor:
        cursor.execute("SELECT nextval('seen')")


def test_a_claim_whose_commit_goes_on_after_the_cut_is_waited_for_and_released(slow_commit):
    RunLeaseFactory(name="job")
    seen()

    def claim():
        with pytest.raises(DatabaseError):
            store.claim(wish(), "default")

    with cut_at_commit("during") as cut:
        elsewhere(claim)
        assert cut.is_set()
    assert lease_row()["token"] is None
    assert Run.objects.get().outcome == Outcome.FAILED


def test_a_claim_whose_backend_is_ended_in_the_commit_raises_and_nothing_is_held(fatal_commit):
    RunLeaseFactory(name="job")

    def claim():
        with pytest.raises(DatabaseError, match=r"terminating connection|closed the connection"):
            store.claim(wish(), "default")

    elsewhere(claim)
    assert lease_row()["token"] is None
    assert not Run.objects.exists()
    assert granted().generation == 2


@pytest.mark.django_db(transaction=True)
def test_the_first_claim_of_a_name_may_be_cut_at_any_commit():
    """The first look, the insert and the claim are three transactions."""

    def claim():
        with pytest.raises(DatabaseError):
            store.claim(wish(), "default")

    for skip in range(3):
        RunLease.objects.all().delete()
        with cut_at_commit("after", skip=skip) as cut:
            elsewhere(claim)
            assert cut.is_set()
        assert not RunLease.objects.filter(token__isnull=False).exists()
    assert not Run.objects.running().exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_release_cut_at_its_commit_is_done_and_says_so(when):
    claimed = granted()
    with cut_at_commit(when) as cut:
        assert store.release(claimed, FAILED) is None
        assert cut.is_set()
    assert lease_row()["token"] is None
    assert (run_of(claimed).outcome, run_of(claimed).error) == (Outcome.FAILED, "trace")


def test_a_release_whose_commit_goes_on_after_the_cut_is_waited_for(slow_commit):
    seen()
    claimed = granted()
    with cut_at_commit("during") as cut:
        assert store.release(claimed, DONE) is None
        assert cut.is_set()
    assert lease_row()["token"] is None
    assert run_of(claimed).outcome == Outcome.SUCCEEDED


def test_a_release_whose_backend_is_ended_in_the_commit_is_done_again(transactional_db, request):
    claimed = granted()
    request.getfixturevalue("fatal_commit")
    assert store.release(claimed, DONE) is None
    assert lease_row()["token"] is None
    assert run_of(claimed).outcome == Outcome.SUCCEEDED


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "closing",
    [
        DONE,
        Closing(outcome=Outcome.LOST),
        Closing(outcome=Outcome.LOST, reason="broken by ann"),
    ],
    ids=["unaware", "lost", "aware of the break"],
)
@pytest.mark.parametrize("ending", ["taken", "broken"])
def test_a_late_release_cut_at_its_commit_is_a_loss_with_its_reason(when, closing, ending):
    late = granted()
    if ending == "taken":
        expire()
        granted()
    else:
        store.break_lease("job", "default", by="ann")
    before, broken = lease_row(), run_of(late).finished_at
    with cut_at_commit(when) as cut:
        loss = store.release(late, closing)
        assert cut.is_set()
    assert loss
    assert loss.reason == ending
    assert lease_row() == before
    assert run_of(late).outcome == Outcome.LOST
    assert run_of(late).finished_at > broken


INTERRUPTED = """
import signal, sys, threading
from datetime import timedelta
from django.db import connection
from django_runlease import store
from django_runlease.exceptions import RunLeaseError, Stopped
from django_runlease.models import RunLease
from django_runlease.terms import Terms
from tests.support import wait_for, backends

def stop(number, frame):
    errors = [Stopped(7), KeyboardInterrupt(), RunLeaseError("late"), OSError()]
    raise {type(error).__name__: error for error in errors}[sys.argv[1]]

def watch():
    try:
        wait_for(lambda: backends("query = 'COMMIT' AND state = 'active'"))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('seen')")
    finally:
        connection.close()

signal.signal(signal.SIGALRM, stop)
request = store.ClaimRequest(name="job", terms=Terms(ttl=timedelta(minutes=1)))
connection.ensure_connection()
watcher = threading.Thread(target=watch)
watcher.start()
try:
    store.claim(request, "default")
except BaseException as error:
    print(type(error).__name__, flush=True)
watcher.join()
again = store.ClaimRequest(name="job", terms=request.terms)
assert isinstance(store.claim(again, "default"), store.Claimed), "its connection is of no more use"
"""


@pytest.mark.parametrize("error", ["Stopped", "KeyboardInterrupt", "RunLeaseError", "OSError"])
def test_an_error_from_a_signal_handler_in_the_commit_is_raised_and_nothing_is_held(
    slow_commit, error
):
    RunLeaseFactory(name="job")
    process = spawn_python(INTERRUPTED, error)
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, out) == (0, f"{error}\n"), err
    failed, running = Run.objects.order_by("id")
    assert (failed.outcome, running.outcome) == (Outcome.FAILED, Outcome.RUNNING)
    assert failed.reason == "the claim's answer was lost, so the job did not run"
    assert RunLease.objects.get().token == running.token
