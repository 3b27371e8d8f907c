"""The heartbeat: one thread for all leases of a process, on a connection of its own."""

import gc
import signal
import subprocess
import threading
import uuid
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from django.db import connection

from django_runlease import LeaseLost, claim, clock, heartbeat, store
from django_runlease.clock import Now, Seconds
from django_runlease.models import Run, RunLease
from django_runlease.store import Beat, Loss

from .programs import end_backends
from .support import (
    DEADLINE,
    Worker,
    backends,
    elsewhere,
    expire,
    granted,
    later,
    open_transaction,
    refused,
    spawn_python,
    together,
    wait_for,
)

committed = pytest.mark.django_db(transaction=True)


def row(name="job"):
    return RunLease.objects.get(name=name)


def threads():
    return [t for t in threading.enumerate() if t.name.startswith("runlease")]


def renewed_after(moment, name="job"):
    """Wait for a renewal later than *moment*; return when it was."""
    return wait_for(lambda: (at := row(name).renewed_at) > moment and at)


TTL = 12.0
"""Seconds: a machine that stands still for some of them does not lose a lease that is beaten for
twenty times as often as it has to be."""


@pytest.fixture(autouse=True)
def often(monkeypatch):
    """Beats come so often that no test has to wait for them long."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 60)
    monkeypatch.setattr(heartbeat, "RETRIES_PER_TTL", 30)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    wait_for(lambda: not threads())


@contextmanager
def held(name="job", ttl=TTL, **terms):
    lease = claim(name, ttl=ttl, **terms)
    assert lease, lease
    try:
        yield lease
    finally:
        lease.release()


# -- renewing


@committed
def test_leases_of_different_lengths_are_all_renewed_again_and_again():
    with held("short"), held("middle", ttl=30), held("long", ttl=60):
        for name in ("short", "middle", "long"):
            at = renewed_after(row(name).claimed_at, name)
            at = renewed_after(at, name)
            lease = row(name)
            assert lease.expires_at - lease.renewed_at == lease.ttl
        assert {row(name).generation for name in ("short", "middle", "long")} == {1}


@pytest.fixture
def seldom(often, monkeypatch):
    """Beats come as they do for users."""
    monkeypatch.undo()


@committed
@pytest.mark.parametrize(("answer", "share"), [("renewed", 1 / 3), ("skipped", 1 / 10)])
def test_a_beat_is_due_after_a_third_of_the_ttl_and_after_a_tenth_if_it_failed(
    seldom, monkeypatch, answer, share
):
    beats = []

    def record(beats_of_all, alias):
        beats.append(clock.local())
        return {beat.claimed.token: answer for beat in beats_of_all}

    monkeypatch.setattr("django_runlease.store.beat", record)
    before = clock.local()
    with held(ttl=600) as lease:
        due = heartbeat._heartbeats["default"]._due[lease.token]
        assert 160 <= due - before <= 200 + clock.local() - before
        with later(200):
            beating = heartbeat._heartbeats["default"]
            with beating._changed:
                beating._changed.notify()
            wait_for(lambda: beats and beating._due[lease.token] > due)
            answered = clock.local()
            due = beating._due[lease.token]
        assert beats[0] + 480 * share <= due <= answered + 600 * share


@committed
def test_a_lease_is_held_for_longer_than_its_ttl():
    with held(ttl=5) as lease:
        first = row()
        wait_for(lambda: row().renewed_at > first.claimed_at + 2 * first.ttl)
        lease.check()
        assert row().token == lease.token
        assert lease.remaining() > 0
        assert lease.release()


@committed
def test_a_beat_is_one_statement_however_many_leases():
    leases = [claim(f"job-{number}", ttl=30) for number in range(20)]
    seen = []
    # Before the first beat, the connection may still be that of an earlier thread.
    renewed_after(row("job-19").claimed_at, "job-19")

    def record(execute, sql, params, many, context):
        seen.append((sql, params))
        return execute(sql, params, many, context)

    own = heartbeat._heartbeats["default"]._connection
    own.execute_wrappers.append(record)
    wait_for(lambda: len(seen) >= 3)
    own.execute_wrappers.clear()
    for lease in leases:
        assert lease.release()
    for sql, params in list(seen):
        assert sql.lstrip().startswith("WITH wanted")
        assert len(params[0]) == 20
    # The second is there during a beat.
    names = [thread.name for thread in threads()]
    assert set(names) <= {"runlease-heartbeat-default", "runlease-trust"}
    assert len(names) == len(set(names))


@committed
def test_a_locked_row_starves_no_other_and_is_not_revived_once_it_has_expired():
    with held("first") as first, held("locked", ttl=2) as locked, held("last") as last:
        with open_transaction("SELECT 1 FROM runlease_runlease WHERE name = 'locked' FOR UPDATE"):
            expiry = row("locked").expires_at
            for name in ("first", "last"):
                renewed_after(expiry + timedelta(seconds=1), name)
            wait_for(locked.lost.is_set)
        wait_for(lambda: RunLease.objects.with_state().get(name="locked").state == "expired")
        assert row("locked").expires_at == expiry
        assert locked.lost_reason in ("unreachable", "expired")
        first.check()
        last.check()
        with pytest.raises(LeaseLost, match="the lease is lost"):
            locked.check()


@committed
def test_a_row_that_is_locked_for_a_while_is_renewed_afterwards(monkeypatch):
    beat, answers = store.beat, []

    def record(beats, alias):
        answers.append(beat(beats, alias))
        return answers[-1]

    monkeypatch.setattr("django_runlease.store.beat", record)
    with held() as lease:
        with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
            before = row().renewed_at
            wait_for(lambda: {lease.token: "skipped"} in answers)
            assert row().renewed_at == before
        renewed_after(before)
        lease.check()
        assert not lease.lost.is_set()


@committed
def test_progress_is_carried_by_a_renewal():
    with held("other", ttl=60), held() as lease:
        lease.progress(3, 10, "halfway, nearly")
        wait_for(lambda: row().progress)
        assert row().progress == {"done": 3, "total": 10, "message": "halfway, nearly"}
        assert row("other").progress is None
        lease.progress(4)
        wait_for(lambda: row().progress["done"] == 4)


@committed
@pytest.mark.parametrize(
    ("progress", "stored"),
    [
        ((Decimal("1.5"), Decimal(3)), {"done": 1.5, "total": 3, "message": ""}),
        (
            (10**30, None, "a\0b\ud800"),
            {"done": 10**30, "total": None, "message": "a\ufffdb\ufffd"},
        ),
    ],
)
def test_progress_of_any_kind_costs_no_beat(progress, stored):
    with held("other"), held() as lease:
        lease.progress(*progress)
        wait_for(lambda: row().progress == stored)
        renewed_after(row("other").renewed_at, "other")


@committed
@pytest.mark.parametrize("done", [float("nan"), float("inf"), "many", 10**400])
def test_progress_that_is_no_number_is_refused_at_once(done):
    with held(ttl=60) as lease:
        with pytest.raises(ValueError, match="number|convert"):
            lease.progress(done)
        lease.check()


@committed
def test_the_threads_of_a_busy_process_claim_and_release_while_it_beats():
    with held("long") as lease:

        def cycles(number):
            for _ in range(40):
                with held(f"job-{number}") as one:
                    one.check()

        together(*[lambda number=number: cycles(number) for number in range(6)])
        lease.check()
        assert row("long").token == lease.token


# -- the answers of one beat


def beat(*claims, ttl=60):
    beats = [Beat(claimed=one, ttl=timedelta(seconds=ttl), progress={"done": 1}) for one in claims]
    return store.beat(beats, "default")


@committed
def test_a_beat_answers_for_each_lease():
    names = ("good", "expired", "broken", "deleted", "taken", "locked")
    leases = {name: granted(name, ttl=60) for name in names}
    expire("expired")
    store.break_lease("broken", "default", by="ops")
    RunLease.objects.filter(name="deleted").delete()
    expire("taken")
    heir = granted("taken")
    with open_transaction("SELECT 1 FROM runlease_runlease WHERE name = 'locked' FOR UPDATE"):
        answers = beat(*leases.values())
    told = {name: answers[leases[name].token] for name in names}
    assert (told.pop("good"), told.pop("locked")) == ("renewed", "skipped")
    assert {name: loss.reason for name, loss in told.items()} == {
        "expired": "expired",
        "broken": "broken",
        "deleted": "broken",
        "taken": "taken",
    }
    assert told["broken"].detail.startswith("broken by ops")
    assert row("taken").holder in told["taken"].detail
    assert row("taken").token == heir.token
    assert row("good").progress == {"done": 1}
    assert row("expired").progress is None


@committed
@pytest.mark.parametrize("changes", [True, False])
def test_a_beat_never_waits_for_a_lock_to_revive_a_lease(changes):
    """A renewal that waits reads the clock too early, or too late."""
    lease = granted(ttl=60)
    change = "UPDATE runlease_runlease SET paused = paused" if changes else "SELECT 1 FROM"
    sql = change if changes else f"{change} runlease_runlease FOR UPDATE"
    with open_transaction(sql):
        assert beat(lease) == {lease.token: "skipped"}
    assert beat(lease) == {lease.token: "renewed"}
    expire()
    assert beat(lease)[lease.token].reason == "expired"
    assert row().expires_at < row().claimed_at


@committed
def test_a_beat_passes_fences():
    lease = granted(ttl=60)
    with open_transaction("SELECT 1 FROM runlease_runlease FOR KEY SHARE"):
        assert beat(lease) == {lease.token: "renewed"}


@committed
def test_beats_race_with_takeovers_and_no_token_is_renewed_beside_another():
    for _ in range(20):
        RunLease.objects.filter(name="job").delete()
        lease = granted(ttl=60)
        expire()
        answers, heir = together(lambda one=lease: beat(one), granted)
        answer = answers[lease.token]
        # Skipped while the claim had the row.
        assert answer == "skipped" or isinstance(answer, Loss)
        assert row().token == heir.token


# -- loss


@committed
def test_a_broken_lease_is_lost_and_it_is_said_by_whom():
    with held() as lease:
        store.break_lease("job", "default", by="ops")
        wait_for(lease.lost.is_set)
        assert lease.lost_reason == "broken"
        with pytest.raises(LeaseLost, match="job: the lease is lost: broken by ops"):
            lease.check()
        assert not lease.release()


@committed
def test_a_lease_that_was_taken_is_lost_and_it_is_said_by_whom():
    with held() as lease:
        in_a_minute = Now() + Seconds(timedelta(seconds=60))
        taken = {"token": uuid.uuid4(), "expires_at": in_a_minute, "holder": "elsewhere:4711"}
        RunLease.objects.update(**taken)
        wait_for(lease.lost.is_set)
        assert lease.lost_reason == "taken"
        with pytest.raises(LeaseLost, match="elsewhere:4711 took it over"):
            lease.check()
        assert not lease.release()


@committed
def test_a_lost_lease_is_not_asked_for_again_and_the_others_go_on():
    with held("job"), held("other") as other, held("lost") as lost:
        store.break_lease("lost", "default", by="ops")
        wait_for(lost.lost.is_set)
        assert list(heartbeat._heartbeats["default"]._members) != []
        assert lost.token not in heartbeat._heartbeats["default"]._members
        renewed_after(row("other").renewed_at, "other")
        other.check()
        assert not lost.release()


@committed
def test_a_worker_that_was_frozen_past_its_ttl_is_told_by_whom_it_was_taken():
    with Worker(6) as worker:
        worker.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: RunLease.objects.with_state().get().state == "expired")
        heir = granted()
        worker.process.send_signal(signal.SIGCONT)
        assert worker.ask("held.lost.wait(30)") == "True"
        assert worker.ask("held.lost_reason") in ("taken", "unreachable")
        assert worker.ask("held.release()") == "False"
        assert row().token == heir.token


# -- a connection that fails


@committed
def test_a_beat_whose_backend_is_ended_costs_nothing():
    with held() as lease:
        moment = row().claimed_at
        for _ in range(4):
            moment = renewed_after(moment)
            end_backends()
        renewed_after(moment)
        lease.check()
        assert (row().generation, row().token) == (1, lease.token)


@committed
def test_a_server_that_takes_no_writes_for_a_while_is_asked_again(caplog):
    """As after a failover: the connection is good, and leads to a standby."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])

    def set_read_only(word):
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER DATABASE {name} {word}")

    with held(ttl=20) as lease:
        renewed_after(row().claimed_at)
        set_read_only("SET default_transaction_read_only = on")
        try:
            end_backends()
            wait_for(lambda: "this server takes no writes" in caplog.text)
            before = row().renewed_at
            wait_for(lambda: caplog.text.count("this server takes no writes") > 1)
            assert row().renewed_at == before
        finally:
            set_read_only("RESET default_transaction_read_only")
        renewed_after(before)
        lease.check()
        assert row().token == lease.token


@committed
def test_beats_go_on_where_the_servers_default_is_serializable():
    options = {"PGOPTIONS": "-c default_transaction_isolation=serializable"}
    with Worker(TTL, **options) as worker, held("other"):
        renewed_after(renewed_after(row().claimed_at))
        assert worker.ask("held.check()") == "None"
        assert worker.finish() == (0, "")


@committed
def test_beats_go_on_while_the_job_has_exhausted_its_pool_and_holds_a_transaction():
    setup = """
from django.db import connection, connections, transaction
connections.settings["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 1, "timeout": 1}
connections.settings["default"]["CONN_MAX_AGE"] = 0
"""
    end = "connection.close_pool(); connection.close(); held.release()"
    with Worker(TTL, setup=setup, end=end) as worker:
        worker.ask("transaction.atomic().__enter__()")
        worker.ask("connection.cursor().execute('SELECT 1')")
        renewed_after(renewed_after(row().renewed_at))
        assert worker.ask("held.check()") == "None"


@committed
def test_a_claim_that_cannot_be_renewed_any_more_is_lost_when_its_trusted_time_is_over():
    """Not only when somebody calls check(): whoever waits for the event is told."""
    with Worker(6) as worker:
        with open_transaction("LOCK TABLE runlease_runlease IN ACCESS EXCLUSIVE MODE"):
            assert worker.ask("held.lost.wait(30)") == "True"
            assert worker.ask("held.lost_reason") == "unreachable"
            assert worker.ask("held.trusted_until <= clock.local()") == "True"
            assert "has renewed nothing for" in worker.ask("held.loss")
            wait_for(lambda: worker.ask("clock.local() > held.trusted_until + 4") == "True")
        # The beat that waited for the table finds it expired, and does not revive it.
        members = "len(heartbeat._heartbeats['default']._members)"
        wait_for(lambda: worker.ask(members) == "0")
        assert RunLease.objects.with_state().get().state == "expired"


# -- a server of its own, that is stopped


def test_a_restart_of_the_database_within_the_ttl_costs_nothing(fresh_server):
    server = fresh_server
    with Worker(60, DATABASE_URL=server.url) as worker:
        server.stop()
        try:
            line = worker.process.stderr.readline()
            assert "a beat failed" in line
            assert "see that the database runs" in line
        finally:
            server.start()
        before = server.read("renewed_at")
        wait_for(lambda: server.read("renewed_at") > before)
        assert worker.ask("held.check()") == "None"
        assert worker.ask("held.generation") == "1"
        assert server.read("generation") == 1
        assert worker.ask("held.release()") == "True"


def test_a_lease_is_lost_in_a_restart_that_is_longer_than_its_ttl(fresh_server):
    server = fresh_server
    with Worker(6, DATABASE_URL=server.url) as worker:
        server.stop()
        try:
            assert worker.ask("held.lost.wait(30)") == "True"
            assert worker.ask("held.lost_reason") == "unreachable"
            wait_for(lambda: worker.ask("clock.local() > held.trusted_until + 4") == "True")
        finally:
            server.start()
        wait_for(lambda: server.read("expires_at < clock_timestamp()"))
        with Worker(60, DATABASE_URL=server.url) as heir:
            assert heir.generation == 2
            assert worker.ask("held.release()") == "False"
            assert heir.ask("held.renew()") == "None"


def test_a_claim_is_possible_as_soon_as_the_database_is_back(fresh_server):
    server = fresh_server
    with Worker(60, DATABASE_URL=server.url) as worker:
        server.stop()
        server.start()
        assert worker.ask("held.release()") == "True"
    assert server.read("token IS NULL")


# -- threads that the system does not give


@pytest.fixture
def no_trust_thread(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name == "runlease-trust":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@committed
def test_beats_go_on_where_no_thread_can_watch_over_them_and_that_is_logged(
    no_trust_thread, caplog
):
    with held(ttl=1) as lease:
        first = row()
        wait_for(lambda: row().renewed_at > first.claimed_at + 3 * first.ttl)
        lease.check()
    assert "no thread watches over a beat: can't start new thread" in caplog.text
    assert "is lost" not in caplog.text


@committed
def test_a_lease_that_cannot_be_renewed_is_lost_where_no_thread_can_watch_over_it(no_trust_thread):
    """By the beat itself, when that has its answer."""
    with held(ttl=1) as lease:
        with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
            assert lease.lost.wait(15)
            assert clock.local() >= lease.trusted_until
    assert lease.lost_reason == "unreachable"


@committed
def test_a_claim_that_no_heartbeat_can_renew_raises_and_is_released(monkeypatch):
    start = threading.Thread.start

    def refuse(thread):
        if "heartbeat" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        claim("job", ttl=60)
    assert row().token is None
    run = Run.objects.get()
    assert (run.outcome, run.reason) == ("failed", "RuntimeError: can't start new thread")
    monkeypatch.undo()
    with held(ttl=1):
        renewed_after(row().claimed_at)


# -- beginning and end


@committed
def test_it_starts_with_the_first_lease_and_ends_with_the_last_and_closes_its_connection():
    wait_for(lambda: not backends())
    assert not threads()
    first, second = claim("first", ttl=TTL), claim("second", ttl=60)
    (thread,) = [thread for thread in threads() if "heartbeat" in thread.name]
    assert thread.daemon
    renewed_after(row("first").claimed_at, "first")
    assert backends() == 1
    first.release()
    assert thread.is_alive()
    second.release()
    wait_for(lambda: not thread.is_alive())
    wait_for(lambda: not backends())


@committed
def test_nothing_is_left_after_a_thousand_cycles():
    def handles():
        return len(list(Path("/proc/self/fd").iterdir()))

    with held(ttl=60):
        pass
    wait_for(lambda: not threads())
    gc.collect()
    wait_for(lambda: not backends())
    before = handles()
    for _ in range(1_000):
        with held(ttl=60):
            pass
    for _ in range(20):
        with held():
            renewed_after(row().claimed_at)
    wait_for(lambda: not threads())
    assert handles() == before
    wait_for(lambda: not backends())
    assert row().generation == 1_021


@committed
def test_another_thread_may_release_and_the_heartbeat_ends():
    lease = claim("job", ttl=TTL)
    renewed_after(row().claimed_at)
    assert elsewhere(lease.release)
    wait_for(lambda: not threads())
    assert not lease.lost.is_set()


@committed
def test_a_lease_that_is_dropped_is_renewed_no_more_and_expires_with_a_warning():
    lease = claim("job", ttl=6)
    renewed_after(row().claimed_at)
    with pytest.warns(ResourceWarning, match="'job' generation 1 .held.> was dropped"):
        del lease
        gc.collect()
        wait_for(lambda: not threads())
    wait_for(lambda: RunLease.objects.with_state().get().state == "expired")
    assert granted().generation == 2


@committed
def test_a_release_and_a_beat_at_one_moment_are_no_loss(caplog):
    for _ in range(30):
        lease = claim("job", ttl=0.1)
        wait_for(lambda: heartbeat._heartbeats["default"]._seconds_left() in (0.0, None))
        assert lease.release() or lease.lost.is_set()
    assert "took it over" not in caplog.text


@pytest.mark.django_db
def test_none_starts_within_a_test_case():
    with held(ttl=1):
        assert not threads()
        assert row().token


@committed
def test_none_starts_where_it_was_not_wanted():
    with held(ttl=1, heartbeat=False):
        assert not threads()


@committed
@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "del held"])
def test_the_interpreter_ends_although_a_lease_is_held(end):
    with Worker(TTL, end=end, PYTHONWARNINGS="error,ignore::ResourceWarning") as worker:
        renewed_after(row().claimed_at)
        assert worker.finish() == (0, "")


@committed
def test_the_interpreter_ends_in_the_middle_of_a_beat():
    with Worker(60, end="", PYTHONWARNINGS="error,ignore::ResourceWarning") as worker:
        with open_transaction("LOCK TABLE runlease_runlease IN ACCESS EXCLUSIVE MODE"):
            waiting = "wait_event_type = 'Lock' AND query LIKE '%WITH wanted%'"
            wait_for(lambda: backends(waiting))
            assert worker.finish() == (0, "")


# -- fork

FORK = """
import json, os, sys, time, warnings
from pathlib import Path
from django_runlease import claim, heartbeat
from django_runlease.models import RunLease
from django.db import connection
warnings.simplefilter("ignore", DeprecationWarning)

def links():
    found = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(file))
        except OSError:
            pass
    return found

heartbeat.BEATS_PER_TTL = 60
held = claim("job", ttl=12)
first = RunLease.objects.get().renewed_at
while RunLease.objects.get().renewed_at == first:
    time.sleep(0.01)
descriptor = heartbeat._heartbeats["default"]._connection.connection.fileno()
socket = os.readlink(f"/proc/self/fd/{descriptor}")
assert socket in links()
# What a job does before it forks.
connection.close()
child = os.fork()
if not child:
    answer = {
        "socket": socket in links(),
        "threads": len(os.listdir("/proc/self/task")),
        "released": held.release(),
        "members": len(heartbeat._heartbeats),
    }
    print(json.dumps(answer), flush=True)
    sys.stdin.readline()
    ENDING
while True:
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.01)
print(os.waitstatus_to_exitcode(status), flush=True)
held.check()
print(RunLease.objects.get().token == held.token, flush=True)
sys.stdin.readline()
held.check()
print(held.release(), flush=True)
"""


@committed
@pytest.mark.parametrize("ending", ["os._exit(0)", "sys.exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_forked_child_neither_renews_nor_releases_nor_shares_the_socket(ending):
    process = spawn_python(FORK.replace("ENDING", ending), stdin=subprocess.PIPE)
    answer = process.stdout.readline()
    expected = '{"socket": false, "threads": 1, "released": false, "members": 0}\n'
    assert answer == expected, process.communicate()
    renewed_after(row().renewed_at)

    def go_on():
        process.stdin.write("\n")
        process.stdin.flush()

    go_on()
    assert process.stdout.readline() == ("-9\n" if "kill" in ending else "0\n")
    assert process.stdout.readline() == "True\n"
    # After its child has ended too.
    renewed_after(renewed_after(row().renewed_at))
    out, err = process.communicate("\n", timeout=DEADLINE)
    assert (process.returncode, out, err) == (0, "True\n", "")


FORK_AT_RELEASE = """
import os, signal, warnings
from django.db import connections
from django_runlease import claim
warnings.simplefilter("ignore", DeprecationWarning)

held = claim("job", ttl=60)
connections.close_all()
# Where another thread is in the middle of its release.
held._lock.acquire()
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(held.release())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
held._lock.release()
print(held.release(), flush=True)
"""


@committed
def test_a_child_that_was_forked_in_the_middle_of_a_release_does_not_wait_for_it():
    process = spawn_python(FORK_AT_RELEASE)
    assert process.communicate(timeout=DEADLINE) == ("0\nTrue\n", "")


@committed
def test_a_forked_child_has_a_heartbeat_of_its_own_for_its_own_lease():
    code = """
import os, sys, warnings
from django.db import connection
from django_runlease import claim, heartbeat
from django_runlease.models import RunLease
import time
heartbeat.BEATS_PER_TTL = 60
warnings.simplefilter("ignore", DeprecationWarning)
parent = claim("parent", ttl=60)
connection.close()
child = os.fork()
if not child:
    own = claim("child", ttl=12)
    for _ in range(2):
        before = RunLease.objects.get(name="child").renewed_at
        while RunLease.objects.get(name="child").renewed_at == before:
            time.sleep(0.01)
    own.check()
    print(own.release(), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(parent.release())
"""
    process = spawn_python(code)
    assert process.communicate(timeout=DEADLINE) == ("True\nTrue\n", "")


@committed
def test_refused_claims_start_nothing():
    granted()
    assert refused().declined.reason == "held"
    assert not claim("job", ttl=60)
    assert not threads()


@committed
def test_a_fault_in_a_beat_that_is_no_database_error_does_not_end_the_beats(monkeypatch):
    beat, faults = store.beat, []

    def faulty(beats, alias):
        if not faults:
            faults.append(True)
            raise RuntimeError("odd")
        return beat(beats, alias)

    monkeypatch.setattr("django_runlease.store.beat", faulty)
    with held():
        renewed_after(row().renewed_at)
    assert faults
