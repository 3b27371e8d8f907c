"""Backends of the database that are frozen or ended, at every step of a lease."""

import re
from functools import wraps

import pytest
from django.db import DatabaseError, connection

from django_runlease import LeaseLost, claim, fencing, heartbeat, runner
from django_runlease.claiming import Claim
from django_runlease.jobs import Job
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import claims, holding, runs
from django_runlease.terms import resolve
from example_project.billing.models import Invoice

from .factories import InvoiceFactory, RunLeaseFactory
from .programs import ended, is_alive, python
from .support import (
    DEADLINE,
    UNHURRIED,
    Worker,
    backends,
    elsewhere,
    expire,
    granted,
    spawn_manage,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


# -- frozen while the lease is held

SETUP = """
import threading
from django_runlease import heartbeat

def backend():
    return heartbeat._heartbeats["default"]._connection.connection.info.backend_pid

def is_beating():
    return any(thread.name == "runlease-trust" for thread in threading.enumerate())
"""


def beating(server, ttl):
    """A worker, and a condition for the backend of its heartbeat once that has no work."""
    worker = Worker(ttl, setup=SETUP, DATABASE_URL=server.url)
    # The first beat opens the connection.
    wait_for(lambda: server.read("renewed_at > claimed_at"))
    return worker, f"pid = {worker.ask('backend()')} AND state = 'idle'"


def test_a_beat_that_hangs_in_a_frozen_backend_for_less_than_the_ttl_costs_nothing(fresh_server):
    server = fresh_server
    worker, backend = beating(server, 60)
    with worker:
        with server.frozen(backend):
            before = server.read("renewed_at")
            wait_for(lambda: worker.ask("is_beating()") == "True")
            assert worker.ask("held.check()") == "None"
        wait_for(lambda: server.read("renewed_at") > before)
        assert worker.ask("held.check()") == "None"
        assert server.read("generation") == 1
        assert worker.ask("held.release()") == "True"


def test_a_lease_whose_beat_hangs_in_a_frozen_backend_for_its_ttl_is_lost_and_not_revived(
    fresh_server,
):
    server = fresh_server
    worker, backend = beating(server, 6)
    with worker:
        with server.frozen(backend):
            assert worker.ask("held.lost.wait(60)") == "True"
            # Told by the thread that watches the beat, which still hangs.
            assert worker.ask("is_beating()") == "True"
            assert worker.ask("held.lost_reason") == "unreachable"
            assert worker.ask("held.trusted_until <= clock.local()") == "True"
            wait_for(lambda: server.read("expires_at < clock_timestamp()"))
            heir = Worker(600, DATABASE_URL=server.url)
        with heir:
            assert heir.generation == 2
            wait_for(lambda: worker.ask("is_beating()") == "False")
            assert worker.ask("held.lost_reason") == "unreachable"
            assert worker.ask("held.release()") == "False"
            assert heir.ask("held.check()") == "None"
            assert server.read("generation") == 2


STUBBORN = python("""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say(os.getpid())
    sleep()
""")
OURS = "application_name = 'runjob'"


def start(server, *words, ttl):
    env = {**UNHURRIED, "DATABASE_URL": server.url, "PGAPPNAME": "runjob"}
    return spawn_manage("runjob", "job", "-E", "75", "--ttl", str(ttl), "--", *words, env=env)


def run_of_job(server):
    ((outcome, exit_code, reason),) = server.rows(
        "SELECT outcome, exit_code, reason FROM runlease_run"
        " WHERE outcome <> 'declined' ORDER BY id DESC LIMIT 1"
    )
    return outcome, exit_code, reason


def test_a_program_whose_beats_hang_in_a_frozen_backend_is_ended_before_its_lease_expires(
    fresh_server,
):
    server = fresh_server
    runjob = start(server, *STUBBORN, ttl=8)
    pid = int(runjob.stdout.readline())

    def gone():
        was_expired = server.read("expires_at < clock_timestamp()")
        alive = is_alive(pid)
        assert not (was_expired and alive), "alive after the lease had expired"
        return not alive

    with ended(runjob, [pid]):
        wait_for(lambda: server.read("renewed_at > claimed_at"))
        with server.frozen(f"{OURS} AND state = 'idle'"):
            wait_for(gone)
            _, err = runjob.communicate(timeout=DEADLINE)
    assert runjob.returncode == 70, err
    assert "the database has renewed nothing for" in err
    assert run_of_job(server)[:2] == (Outcome.LOST, 70)


# -- frozen in a release

RELEASE = "OLD.token IS NOT NULL AND NEW.token IS NULL"
CLAIM = "OLD.token IS NULL AND NEW.token IS NOT NULL"
NAPPING = f"{OURS} AND wait_event = 'PgSleep'"


def test_a_release_that_hangs_in_a_frozen_backend_for_less_than_the_ttl_is_done(fresh_server):
    server = fresh_server
    with server.gate(RELEASE) as open_gate:
        runjob = start(server, "true", ttl=120)
        with ended(runjob):
            with server.frozen(NAPPING):
                open_gate()
                assert server.read("token IS NOT NULL")
            out, err = runjob.communicate(timeout=DEADLINE)
    assert (runjob.returncode, out, err) == (0, "", "")
    assert server.read("token IS NULL")
    assert run_of_job(server) == (Outcome.SUCCEEDED, 0, "")


def test_a_release_that_hangs_in_a_frozen_backend_for_the_ttl_exits_70_and_the_lease_expires(
    fresh_server,
):
    server = fresh_server
    with server.gate(RELEASE):
        runjob = start(server, "true", ttl=8)
        with ended(runjob):
            with server.frozen(NAPPING):
                _, err = runjob.communicate(timeout=DEADLINE)
                assert runjob.returncode == 70, err
                assert "the job: returned" in err
                assert run_of_job(server)[:2] == (Outcome.LOST, 70)
                wait_for(lambda: server.read("expires_at < clock_timestamp()"))
                busy = start(server, "echo", "ran", ttl=600)
                assert busy.communicate(timeout=DEADLINE) == ("", "")
                assert busy.returncode == 75
    # What the backend did for a client that is gone is rolled back.
    heir = start(server, "echo", "ran", ttl=600)
    out, err = heir.communicate(timeout=DEADLINE)
    assert (heir.returncode, out) == (0, "ran\n"), err
    assert "its lease had expired" in err
    assert server.read("generation") == 2


# -- frozen in a claim


@pytest.fixture
def freed(fresh_server):
    """The server, with a free lease of generation 1."""
    first = start(fresh_server, "true", ttl=600)
    assert (*first.communicate(timeout=DEADLINE), first.returncode) == ("", "", 0)
    return fresh_server


@pytest.mark.parametrize("at_commit", [False, True], ids=["its write", "its commit"])
def test_a_claim_that_hangs_in_a_frozen_backend_is_nobodys_until_it_goes_on(freed, at_commit):
    server = freed
    with server.gate(CLAIM, at_commit=at_commit) as open_gate:
        runjob = start(server, "echo", "ran", ttl=600)
        with ended(runjob):
            with server.frozen(NAPPING):
                open_gate()
                assert server.read("token IS NULL")
                other = start(server, "echo", "ran beside it", ttl=600)
                assert other.communicate(timeout=DEADLINE) == ("", "")
                assert other.returncode == 75
            out, err = runjob.communicate(timeout=DEADLINE)
    assert (runjob.returncode, out, err) == (0, "ran\n", "")
    assert server.rows("SELECT token, generation FROM runlease_runlease") == [(None, 2)]
    assert run_of_job(server) == (Outcome.SUCCEEDED, 0, "")


@pytest.mark.parametrize("at_commit", [False, True], ids=["its write", "its commit"])
@pytest.mark.parametrize("kind", ["program", "function"])
def test_a_claim_that_hangs_in_a_frozen_backend_for_its_ttl_runs_no_job(
    freed, at_commit, kind, tmp_path
):
    server = freed
    words = ["touch", str(tmp_path / "ran")]
    env = {**UNHURRIED, "DATABASE_URL": server.url, "PGAPPNAME": "runjob"}
    env["CODE"] = f"import subprocess; subprocess.run({words!r})"
    job = ["job", "--ttl", "2", "--", *words] if kind == "program" else ["code", "--ttl", "2"]
    with server.gate(CLAIM, at_commit=at_commit) as open_gate:
        runjob = spawn_manage("runjob", *job, env=env)
        with ended(runjob):
            with server.frozen(NAPPING):
                frozen = server.read("extract(epoch FROM clock_timestamp())::float8")
                over = "extract(epoch FROM clock_timestamp())::float8 > %s"
                wait_for(lambda: server.rows(f"SELECT {over}", frozen + 2)[0][0])
                open_gate()
            _, err = runjob.communicate(timeout=DEADLINE)
    assert runjob.returncode == 70, err
    # It looks at its clock, or has the answer of a beat, before it releases; or its watch ends it.
    assert re.search(
        "lost: (the database has renewed nothing for|it expired before it was renewed)", err
    )
    assert "the job: did not start" in err
    assert not (tmp_path / "ran").exists()
    assert run_of_job(server)[:2] == (Outcome.LOST, 70)


# -- ended at a step


@pytest.fixture
def ended_at(monkeypatch):
    """Let the backend of whoever calls a function be ended *before* or *after* the call."""

    def end_here():
        pid = connection.connection.info.backend_pid
        elsewhere(lambda: connection.cursor().execute("SELECT pg_terminate_backend(%s)", [pid]))
        wait_for(lambda: not elsewhere(lambda: backends(f"pid = {pid}")))

    left = []

    def install(module, name, when, *, call=1, times=1):
        function, calls = getattr(module, name), iter(range(1, 1000))
        left.extend([name] * times)

        @wraps(function)
        def wrapper(*args, **kwargs):
            hit = call <= next(calls) < call + times
            if hit:
                left.remove(name)
            if hit and when == "before":
                end_here()
            result = function(*args, **kwargs)
            if hit and when == "after":
                end_here()
            return result

        monkeypatch.setattr(module, name, wrapper)

    yield install
    assert not left, f"never called: {left}"


def tick(function=lambda held: None, ttl=60):
    """A run of *function* in a thread, whose connection is of no more use after it."""

    def run():
        wish = Claim(name="job", terms=resolve({"ttl": ttl}))
        return runner.run(Job(name="job", function=function), wish, grace=10, own_process=False)

    return elsewhere(run)


def row():
    return RunLease.objects.get(name="job")


def not_to_be_called(held):
    raise AssertionError("the job ran")


@pytest.mark.parametrize(
    ("function", "when", "call"),
    [
        ("_look", "before", 1),
        ("_look", "after", 1),
        ("_look", "before", 2),
        ("_write", "before", 1),
        ("open_run", "before", 1),
        ("open_run", "after", 1),
    ],
    ids=[
        "the first look",
        "the row lock",
        "the look with the lock",
        "the write",
        "the run's insert",
        "the commit",
    ],
)
def test_a_claim_whose_backend_is_ended_before_a_step_runs_no_job_and_holds_nothing(
    ended_at, function, when, call
):
    before = RunLeaseFactory(name="job").generation
    ended_at(claims, function, when, call=call)
    with pytest.raises(runner.Unavailable, match="see that the database runs"):
        tick(not_to_be_called)
    assert (row().token, row().generation) == (None, before)
    assert not Run.objects.exists()
    assert tick().exit_code == 0
    assert row().generation == before + 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_first_claim_whose_backend_is_ended_beside_the_insert_of_its_row_holds_nothing(
    ended_at, when
):
    ended_at(claims.rows, "create", when)
    with pytest.raises(runner.Unavailable):
        tick(not_to_be_called)
    assert not RunLease.objects.filter(token__isnull=False).exists()
    assert not Run.objects.exists()
    assert tick().exit_code == 0
    assert row().generation == 1


@pytest.fixture
def fatal_beats(transactional_db):
    """Lets the next beats end their own backends in the middle of their statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE SEQUENCE deaths;"
            "CREATE FUNCTION fatal_beat() RETURNS trigger LANGUAGE plpgsql AS '"
            " BEGIN"
            "   IF nextval(''deaths'') <= TG_ARGV[0]::int THEN"
            "     PERFORM pg_terminate_backend(pg_backend_pid());"
            "     PERFORM pg_sleep(10);"
            "   END IF;"
            "   RETURN NEW;"
            " END'"
        )

        def install(count):
            cursor.execute(
                "CREATE TRIGGER fatal_beat BEFORE UPDATE ON runlease_runlease FOR EACH ROW"
                " WHEN (OLD.token = NEW.token AND OLD.renewed_at <> NEW.renewed_at)"
                f" EXECUTE FUNCTION fatal_beat({count})"
            )

        yield install
        cursor.execute("DROP FUNCTION fatal_beat CASCADE; DROP SEQUENCE deaths")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_beat_whose_backend_is_ended_in_its_statement_costs_nothing(
    fatal_beats, count, monkeypatch
):
    """Whether or not its second try is ended too, and fails with it."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 60)
    monkeypatch.setattr(heartbeat, "RETRIES_PER_TTL", 60)
    fatal_beats(count)
    held = claim("job", ttl=60)
    before = row()
    wait_for(lambda: row().renewed_at > before.renewed_at)
    held.check()
    assert (row().token, row().generation) == (held.token, 1)
    assert held.release()
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


def test_a_lease_whose_every_beat_is_ended_is_lost_before_it_expires(fatal_beats):
    fatal_beats(10**6)
    held = claim("job", ttl=4)
    wait_for(held.lost.is_set)
    assert held.lost_reason == "unreachable"
    with pytest.raises(LeaseLost, match=r"has renewed nothing for .*, since \d{4}-.* UTC"):
        held.check()
    wait_for(lambda: RunLease.objects.with_state().get().state == "expired")
    heir = granted()
    assert (heir.generation, row().token) == (2, heir.token)
    assert not held.release()
    assert row().token == heir.token


@pytest.mark.parametrize(
    ("function", "when"),
    [("_lock", "before"), ("_lock", "after")],
    ids=["its lock", "its block"],
)
def test_a_fence_whose_backend_is_ended_writes_nothing_and_is_no_loss(ended_at, function, when):
    ended_at(fencing, function, when)

    def job(held):
        with pytest.raises(DatabaseError) as raised, held.fence():
            InvoiceFactory(customer="lost with its backend")
        assert not isinstance(raised.value, LeaseLost)
        held.check()
        connection.close()
        with held.fence():
            InvoiceFactory(customer="written")

    assert tick(job).outcome == Outcome.SUCCEEDED
    assert [invoice.customer for invoice in Invoice.objects.all()] == ["written"]
    assert row().token is None


@pytest.fixture
def fatal_invoice(transactional_db):
    """The COMMIT of an invoice ends its own backend."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION fatal_invoice() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10);"
            "  RETURN NULL; END';"
            "CREATE CONSTRAINT TRIGGER fatal_invoice AFTER INSERT ON billing_invoice"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fatal_invoice()"
        )
        yield
        cursor.execute("DROP FUNCTION fatal_invoice CASCADE")


def test_a_job_whose_backend_is_ended_in_the_commit_of_its_fence_fails_and_releases(
    fatal_invoice,
):
    def job(held):
        with held.fence():
            InvoiceFactory()

    report = tick(job)
    assert (report.outcome, report.exit_code) == (Outcome.FAILED, 1)
    assert "terminating connection" in report.message
    assert not Invoice.objects.exists()
    assert row().token is None
    assert Run.objects.get().outcome == Outcome.FAILED


RELEASE_STEPS = pytest.mark.parametrize(
    ("module", "function", "when"),
    [(holding, "_free", "before"), (runs, "close_held", "before"), (runs, "close_held", "after")],
    ids=["the row lock", "the run's update", "the commit"],
)


@RELEASE_STEPS
def test_a_release_whose_backend_is_ended_before_a_step_is_done_again(
    ended_at, module, function, when
):
    ended_at(module, function, when)
    report = tick()
    assert (report.outcome, report.exit_code) == (Outcome.SUCCEEDED, 0)
    assert row().token is None
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


@RELEASE_STEPS
def test_a_release_whose_backends_are_ended_both_times_is_told_of_and_the_lease_expires(
    ended_at, module, function, when
):
    ended_at(module, function, when, times=2)
    kept = []
    report = tick(kept.append)
    assert report.exit_code == runner.LOST
    assert "the lease could not be released" in report.message
    assert "the job: returned" in report.message
    # Its own result, as it happened.
    assert Run.objects.get().outcome == Outcome.SUCCEEDED
    unreleased = row()
    assert unreleased.token is not None
    expire()
    assert granted().generation == 2
    assert not kept[0].release()
    assert Run.objects.get(token=unreleased.token).outcome == Outcome.SUCCEEDED
