"""Runs in this process, and those that meet a database, a pipe or a terminal that is not there."""

import asyncio
import contextlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from inspect import GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from unittest.mock import patch

import pytest
from django.core.management import CommandError
from django.db import connection

from django_runlease import JobTimeout, LeaseLost, current_lease, runner, store
from django_runlease.claiming import Claim
from django_runlease.holder import what_runs
from django_runlease.jobs import Job
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import connection as store_connection
from django_runlease.terms import resolve

from .factories import RunLeaseFactory
from .support import (
    DEADLINE,
    ROOT,
    UNHURRIED,
    database_url,
    elsewhere,
    environment,
    expire,
    granted,
    open_transaction,
    spawn_manage,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


def run(function, *, grace=10.0, terms=None, **claim):
    """A run of *function* whose process is not the job's to end."""
    wish = Claim(name="job", terms=resolve(terms or {"ttl": 60}), **claim)
    job = Job(name="job", function=function)
    return runner.run(job, wish, grace=grace, own_process=False)


def raising(error):
    def function(held):
        raise error

    return function


# -- reports


def note_what_runs(held=None):
    runs.append(RunLease.objects.get().holder_process["runs"])


runs = []


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ({"function": note_what_runs}, "tests.test_runner.note_what_runs"),
        ({"command": ("note", "--password", "x")}, "manage.py note"),
    ],
)
def test_what_runs_is_told_in_the_lease_without_its_arguments(monkeypatch, work, told):
    runs.clear()
    monkeypatch.setattr(runner, "call_command", lambda *_words: note_what_runs())
    wish = Claim(name="job", terms=resolve({"ttl": 60}))
    report = runner.run(Job(name="job", **work), wish, grace=10.0, own_process=False)
    assert (report.message, runs) == ("succeeded", [told])


class Noting:
    def __init__(self, password):
        self.password = password

    def __call__(self, held, password=""):
        note_what_runs()

    def __repr__(self):
        return f"Noting({self.password})"


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (partial(partial(note_what_runs, "x"), "secret"), "tests.test_runner.note_what_runs"),
        (Noting("secret"), "tests.test_runner.Noting"),
        (partial(Noting("secret"), password="secret"), "tests.test_runner.Noting"),
        (Noting("secret").__call__, "tests.test_runner.Noting.__call__"),
    ],
)
def test_what_runs_of_a_function_with_arguments_of_its_own_tells_none_of_them(function, told):
    assert Job(name="job", function=function).what == told


def test_what_a_holder_runs_is_kept_to_255_characters_and_left_out_if_it_is_not_known():
    granted("long", runs="x\0" * 300)
    granted("api")
    told = {lease.name: lease.holder_process for lease in RunLease.objects.all()}
    assert what_runs(told["long"]) == ("x\N{REPLACEMENT CHARACTER}" * 300)[:255]
    assert "runs" not in told["api"]


def test_a_good_run_is_reported_and_released():
    seen = []

    def work(held):
        seen.append((current_lease() is held, RunLease.objects.get().token == held.token))

    report = run(work)
    assert seen == [(True, True)]
    assert current_lease() is None
    assert (report.outcome, report.exit_code, report.message) == ("succeeded", 0, "succeeded")
    assert (report.error, report.declined) == (None, None)
    assert Run.objects.get().pk == report.run_id
    assert RunLease.objects.get().token is None


def test_a_decline_is_reported_and_the_job_does_not_run():
    RunLeaseFactory(name="job", held=True)
    report = run(raising(AssertionError()))
    assert (report.outcome, report.exit_code) == ("declined", 0)
    assert report.declined.reason == "held"
    assert report.message.startswith("declined, held by elsewhere:4711 since ")
    assert Run.objects.get().pk == report.run_id


@pytest.mark.parametrize(
    ("error", "outcome", "code", "message"),
    [
        (ZeroDivisionError("odd"), "failed", 1, "ZeroDivisionError: odd"),
        (ZeroDivisionError(), "failed", 1, "ZeroDivisionError"),
        (ValueError("two\nlines"), "failed", 1, "ValueError: two"),
        (CommandError("no"), "failed", 1, "CommandError: no"),
        (CommandError("no", returncode=3), "failed", 3, "CommandError: no"),
        (CommandError("no", returncode=256), "failed", 1, "CommandError: no"),
        (SystemExit(), "succeeded", 0, "SystemExit"),
        (SystemExit(0), "succeeded", 0, "SystemExit: 0"),
        (SystemExit(255), "failed", 255, "SystemExit: 255"),
        (SystemExit(512), "failed", 1, "SystemExit: 512"),
        (SystemExit(True), "failed", 1, "SystemExit: True"),
        (SystemExit(-1), "failed", 255, "SystemExit: -1"),
        (SystemExit("text"), "failed", 1, "SystemExit: text"),
        (KeyboardInterrupt(), "terminated", 130, "KeyboardInterrupt"),
        (asyncio.CancelledError(), "terminated", 1, "CancelledError"),
        (LeaseLost("job", "gone"), "lost", 70, "gone"),
        (JobTimeout("job", "too long"), "timed_out", 124, "too long"),
        (JobTimeout("job", "idle", stalled=True), "stalled", 124, "idle"),
    ],
)
def test_what_the_job_raises_is_reported_and_recorded(error, outcome, code, message):
    report = run(raising(error))
    assert (report.outcome, report.exit_code, report.message) == (outcome, code, message)
    assert report.error is error
    recorded = Run.objects.get()
    assert (recorded.outcome, recorded.exit_code, recorded.reason) == (outcome, code, message)
    assert type(error).__name__ in recorded.error
    assert RunLease.objects.get().token is None


def test_an_async_job_and_its_exception_are_reported():
    async def work(held):
        await asyncio.sleep(0)
        assert current_lease() is held
        raise ZeroDivisionError

    assert run(work).message == "ZeroDivisionError"


def test_a_job_that_lost_its_lease_and_returns_is_reported_as_lost():
    report = run(lambda held: store.break_lease("job", "default", by="ops"))
    assert (report.outcome, report.exit_code) == ("lost", 70)
    assert "broken by ops" in report.message


def test_a_job_that_lost_its_lease_and_fails_is_reported_as_lost():
    def lose_and_fail(held):
        expire()
        elsewhere(granted)
        raise ZeroDivisionError("odd")

    report = run(lose_and_fail)
    assert (report.outcome, report.exit_code) == ("lost", 70)
    assert "took it over" in report.message
    assert "ZeroDivisionError: odd" in report.message
    assert RunLease.objects.get().token is not None


def test_a_release_that_fails_exits_70_and_names_the_jobs_own_result():
    def cut_off(held):
        kept.append(held)
        connection.settings_dict.update(HOST="127.0.0.1", PORT="1")

    kept = []
    with patch.dict(connection.settings_dict):
        report = run(cut_off)
    assert report.exit_code == 70
    assert "could not be released" in report.message
    assert "returned" in report.message
    assert kept[0].release()


@pytest.mark.parametrize(("error", "outcome"), [(None, "succeeded"), (ValueError("odd"), "failed")])
def test_a_run_whose_release_fails_is_closed_as_it_ended_and_the_lease_expires(
    error, outcome, monkeypatch
):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 100)

    def lock(held):
        kept.append(held)
        stack.enter_context(open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"))
        if error:
            raise error

    kept = []
    with ExitStack() as stack:
        report = run(lock)
        ended = Run.objects.get()
    assert (report.outcome, report.exit_code) == (outcome, 70)
    assert "could not be released" in report.message
    assert (ended.outcome, bool(ended.error)) == (outcome, bool(error))
    assert ended.finished_at is not None
    assert RunLease.objects.get().token == ended.token
    assert kept[0].release()


def test_a_fence_that_the_job_left_open_exits_70():
    fences = []

    def leave_open(held):
        fences.append((held, held.fence()))
        fences[0][1].__enter__()

    report = run(leave_open)
    held, fence = fences[0]
    fence.__exit__(None, None, None)
    assert report.exit_code == 70
    assert "fence" in report.message
    assert held.release()


def test_a_timeout_stops_the_job_and_what_it_made_of_that_weighs_less():
    def swallow(held):
        with suppress(JobTimeout):
            time.sleep(600)

    def fail(held):
        try:
            time.sleep(600)
        except JobTimeout:
            raise ZeroDivisionError from None

    for function in (swallow, fail):
        report = run(function, terms={"ttl": 60, "timeout": 0.1})
        assert (report.outcome, report.exit_code) == ("timed_out", 124)
        assert report.message == "ran longer than its timeout of 100ms"


def test_a_signal_stops_the_job_and_weighs_more_than_what_it_made_of_that():
    def swallow(held):
        os.kill(os.getpid(), signal.SIGTERM)
        with suppress(SystemExit):
            time.sleep(600)

    report = run(swallow)
    assert (report.outcome, report.exit_code) == ("terminated", 143)
    assert Run.objects.get().outcome == Outcome.TERMINATED


@pytest.mark.parametrize("generator", ["_fence", "fenced"])
@pytest.mark.parametrize("where", [GEN_CREATED, GEN_SUSPENDED], ids=["entry", "exit"])
def test_a_signal_between_a_fence_and_its_block_leaves_no_fence_open(where, generator, monkeypatch):
    """There it has begun, and nobody is left to end it but the frame that the exception left."""
    signals = []

    def step(gen):
        state = getgeneratorstate(gen)
        there = gen.__name__ == generator and state == where
        value = next(gen) if state == GEN_CREATED else None
        if there and not signals:
            signals.append(signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return value if state == GEN_CREATED else next(gen)

    def work(held):
        monkeypatch.setattr(contextlib, "next", step, raising=False)
        with held.fence():
            pass

    report = run(work)
    monkeypatch.undo()
    connection.close()
    assert signals
    assert (report.exit_code, report.message) == (143, "stopped by SIGTERM")
    assert RunLease.objects.get().token is None


def test_a_signal_within_a_run_within_a_run_stops_the_outer_one():
    def inner(held):
        outers[0]._started -= 3600
        time.sleep(30)
        reached.append("the end of the inner job")

    def outer(held):
        outers.append(held)
        wish = Claim(name="inner", terms=resolve({"ttl": 60}))
        job = Job(name="inner", function=inner)
        within.append(runner.run(job, wish, grace=10, own_process=False))
        raise within[0].error

    reached, within, outers = [], [], []
    report = run(outer, terms={"ttl": 60, "timeout": 3600})
    assert (report.outcome, report.exit_code) == ("timed_out", 124)
    assert report.error is within[0].error
    assert not reached
    assert not RunLease.objects.exclude(token=None).exists()


def test_a_signal_while_it_claims_stops_the_job_before_it_begins_and_releases():
    original = store.claim

    def claim_and_signal(*args, **kwargs):
        result = original(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGTERM)
        return result

    with patch("django_runlease.store.claim", claim_and_signal):
        report = run(raising(AssertionError("it ran")))
    assert (report.outcome, report.exit_code) == ("terminated", 143)
    assert RunLease.objects.get().token is None


def test_in_a_thread_a_job_runs_and_is_told_by_check_alone():
    def work(held):
        wait_for(held.check)

    report = elsewhere(lambda: run(work, terms={"ttl": 60, "timeout": 0.1}))
    assert (report.outcome, report.exit_code) == ("timed_out", 124)


def test_no_thread_and_no_handler_is_left():
    before = [signal.getsignal(number) for number in range(1, 32)]
    run(lambda held: None)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("runlease")])
    assert [signal.getsignal(number) for number in range(1, 32)] == before


def test_a_database_that_does_not_answer_is_unavailable_and_the_job_does_not_run():
    with patch.dict(connection.settings_dict, HOST="127.0.0.1", PORT="1"):
        connection.close()
        with pytest.raises(runner.Unavailable, match="see that the database runs"):
            run(raising(AssertionError()))


def test_an_error_of_the_lease_is_raised_before_the_job_runs():
    from django.db import transaction

    with transaction.atomic(), pytest.raises(Exception, match="open transaction"):
        run(raising(AssertionError()))
    assert not RunLease.objects.exists()


# -- a process whose surroundings fail


def start(*options, code, name="code", **env):
    env = {**UNHURRIED, "CODE": code, **env}
    return spawn_manage("runjob", name, *options, env=env)


def ended(process, said=None):
    """What it has printed, at its end."""
    try:
        return process.communicate(said, timeout=DEADLINE)
    finally:
        process.kill()


@contextmanager
def freezable_database():
    """The URL of a way to the database, and the event after which nothing passes there."""
    settings, frozen = connection.settings_dict, threading.Event()
    host, port = settings["HOST"] or "localhost", settings["PORT"] or 5432
    family = socket.AF_UNIX if host.startswith("/") else socket.AF_INET
    address = f"{host}/.s.PGSQL.{port}" if family == socket.AF_UNIX else (host, int(port))
    over, threads = threading.Event(), []

    def forward(client):
        with client, socket.socket(family) as server:
            server.connect(address)
            while not over.is_set():
                ready = select.select([client, server], [], [], 0.02)[0]
                if frozen.is_set() or not ready:
                    continue
                data = ready[0].recv(65536)
                if not data:
                    return
                (server if ready[0] is client else client).sendall(data)

    def accept():
        while not over.is_set():
            if select.select([listener], [], [], 0.02)[0]:
                thread = threading.Thread(target=forward, args=[listener.accept()[0]])
                thread.start()
                threads.append(thread)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        login, _, path = database_url().removeprefix("postgres://").partition("@")
        name = path.rpartition("/")[2]
        port = listener.getsockname()[1]
        try:
            yield f"postgres://{login}@127.0.0.1:{port}/{name}?sslmode=disable", frozen
        finally:
            over.set()
            for thread in [accepting, *threads]:
                thread.join()


def expires_at():
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM expires_at)::float8 FROM runlease_runlease")
        return cursor.fetchone()[0]


def database_now():
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM clock_timestamp())::float8")
        return cursor.fetchone()[0]


STUBBORN = """
    import time
    words = ["ready"]
    while True:
        try:
            if words:
                say(words.pop())
            time.sleep(0.01)
            say(time.monotonic())
        except BaseException:
            pass
"""


def test_a_job_whose_database_froze_is_ended_before_its_lease_expires():
    with freezable_database() as (url, frozen):
        process = start("--ttl", "8", code=STUBBORN, DATABASE_URL=url)
        assert process.stdout.readline() == "ready\n"
        frozen.set()
        expiry = time.monotonic() + expires_at() - database_now()
        out, err = ended(process)
    assert process.returncode == 70, err
    assert float(out.split()[-1]) < expiry
    assert "the process is ended" in err


def test_a_release_that_the_database_never_answers_ends_with_70_when_the_lease_expires():
    code = "import sys; say('ready'); sys.stdin.readline()"
    with freezable_database() as (url, frozen):
        env = {**UNHURRIED, "CODE": code, "DATABASE_URL": url}
        process = spawn_manage("runjob", "code", "--ttl", "8", env=env, stdin=subprocess.PIPE)
        assert process.stdout.readline() == "ready\n"
        frozen.set()
        _, err = ended(process, "go\n")
    assert process.returncode == 70, err
    assert "returned" in err


def test_a_release_whose_row_is_locked_exits_70_and_says_what_the_job_did():
    code = "import sys; say('ready'); sys.stdin.readline()"
    env = {**UNHURRIED, "CODE": code}
    process = spawn_manage("runjob", "code", env=env, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        _, err = ended(process, "go\n")
    assert process.returncode == 70
    assert "could not be released" in err
    assert "returned" in err


def test_a_stubborn_job_is_ended_although_nobody_reads_what_it_says():
    """A full pipe must not keep the watch from ending the process."""
    code = """
        import sys
        say("ready")
        held._started -= 600
        while True:
            try:
                sys.stderr.write("x" * 100_000)
            except BaseException:
                pass
    """
    process = start("--timeout", "10m", "--grace", "0.3", code=code)
    assert process.stdout.readline() == "ready\n"
    try:
        assert process.wait(timeout=DEADLINE) == 124
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("closed", "options"),
    [("2>&-", ""), ("<&- >&- 2>&-", ""), (">&- 2>&-", "--quiet-success")],
)
def test_a_job_runs_although_its_standard_streams_are_closed(closed, options):
    """As some schedulers start it."""
    code = "from django_runlease.models import RunLease; RunLease.objects.update(paused_by='ran')"
    command = shlex.join([sys.executable, str(ROOT / "manage.py"), "runjob", "code"])
    env = environment(DJANGO_SETTINGS_MODULE="tests.settings_jobs", CODE=code)
    shell = ["sh", "-c", f"exec {command} {options} {closed}"]
    assert subprocess.run(shell, env=env, cwd=ROOT, timeout=DEADLINE, check=False).returncode == 0
    row = RunLease.objects.get()
    assert (row.paused_by, row.token) == ("ran", None)
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


@pytest.mark.parametrize("closed", ["2>&-", "1>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("runjob code --json", 7),
        ("runjob nosuch", 2),
        ("runjob code --nosuch", 2),
        ("runjob prog -- sh -c 'exit 5'", 5),
        ("runlease list", 0),
        ("runlease show nosuch", 2),
    ],
)
def test_exit_codes_are_the_same_with_standard_streams_closed(closed, words, exit_code):
    env = environment(DJANGO_SETTINGS_MODULE="tests.settings_jobs", CODE="raise SystemExit(7)")
    manage = shlex.join([sys.executable, str(ROOT / "manage.py")])
    shell = ["sh", "-c", f"exec {manage} {words} {closed}"]
    done = subprocess.run(
        shell, env=env, cwd=ROOT, timeout=DEADLINE, check=False, capture_output=True
    )
    assert done.returncode == exit_code, done.stderr


LEAVES_ITS_CONNECTION = """
from contextlib import suppress
from django.db import Error, connection, transaction
from django_runlease.models import Run

def aborted():
    transaction.atomic().__enter__()
    with suppress(Error):
        Run.objects.create()

def terminated():
    with suppress(Error), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

def without_autocommit():
    connection.set_autocommit(False)

{state}()
raise SystemExit(3)
"""


@pytest.mark.parametrize("state", ["aborted", "terminated", "without_autocommit"])
def test_json_is_printed_whatever_the_job_did_to_its_connection(state):
    process = start("--json", code=LEAVES_ITS_CONNECTION.format(state=state))
    out, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 3, err
    assert json.loads(out)["exit_code"] == 3


def test_nothing_of_the_database_reaches_the_terminal_raw():
    RunLeaseFactory(name="code", held=True, holder="evil\x1b[31m\nroot: ok")
    for options in (["-v2"], ["--dry-run"]):
        process = start(*options, code="")
        out, err = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, err
        assert "evil" in out
        assert "\x1b" not in out
        assert out.count("\n") == 1


def test_a_killed_job_leaves_a_lease_that_expires_and_is_taken_over():
    process = start("--ttl", "20", code="say('ready'); import time; time.sleep(60)")
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    report = run(lambda held: None)
    if report.declined:
        wait_for(lambda: RunLease.objects.with_state().get(name="code").state == "expired")
    after = start(code="say('ran')")
    assert ended(after)[0] == "ran\n"
    runs = Run.objects.filter(lease_name="code").order_by("id")
    first, *_, last = runs
    assert (first.outcome, last.outcome) == (Outcome.ABANDONED, Outcome.SUCCEEDED)
    assert last.generation == 2


def test_a_forked_child_that_is_terminated_leaves_the_job_and_its_connection_alone():
    code = """
        import os, signal, time, warnings
        from django_runlease.models import RunLease
        warnings.simplefilter("ignore", DeprecationWarning)
        assert RunLease.objects.count() == 1
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, b"x")
            time.sleep(600)
            os._exit(9)
        os.read(reader, 1)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        say(os.waitstatus_to_exitcode(status) in (-15, 143))
        assert RunLease.objects.count() == 1
        held.check()
    """
    process = start(code=code)
    out, err = ended(process)
    assert (process.returncode, out, err) == (0, "True\n", "")
    assert Run.objects.get().outcome == Outcome.SUCCEEDED


def test_a_run_longer_than_its_ttl_keeps_its_lease():
    code = """
        import time
        end = time.monotonic() + 7
        while time.monotonic() < end:
            time.sleep(0.05)
            held.check()
    """
    process = start("--ttl", "6", code=code)
    out, err = ended(process)
    assert (process.returncode, out, err) == (0, "", "")
    assert Run.objects.get().finished_at - Run.objects.get().started_at > timedelta(seconds=6)


THREAD = """
import threading, time
from functools import partial
from pathlib import Path
def work():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.05)
        say("working")
thread = threading.Thread(target=work)
thread.start()
held._started -= 600
while thread.is_alive():
    time.sleep(0.1)
"""


def test_a_stopped_jobs_threads_are_ended_before_its_lease_is_free():
    process = start("--timeout", "10m", "--grace", "1s", code=THREAD)
    ended(process)
    assert process.returncode == 124
    run = Run.objects.get()
    assert run.outcome == Outcome.TIMED_OUT
    # Ended hard with its threads; nobody released what they might still have worked under.
    assert RunLease.objects.get().token == run.token


THREAD_POOL = """
from concurrent.futures import ThreadPoolExecutor
from time import sleep
pool = ThreadPoolExecutor(2)
pool.submit(int).result()
say("ready")
sleep(600)
"""
PROCESS_POOL = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from time import sleep
pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
pool.submit(int).result()
say("ready")
sleep(600)
"""
ASYNC = """
from django_runlease.models import RunLease
say("ready" if await RunLease.objects.acount() else "")
await asyncio.sleep(600)
"""


@pytest.mark.parametrize(
    ("name", "code"),
    [("code", THREAD_POOL), ("code", PROCESS_POOL), ("async_code", ASYNC)],
    ids=["threads", "processes", "async"],
)
def test_idle_workers_of_a_pool_do_not_keep_a_stopped_job_from_its_release(name, code):
    process = start("--grace", "20s", code=code, name=name)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, err = ended(process)
    assert (process.returncode, out) == (143, "")
    # Python may also warn of the connection that the worker of an async job had.
    assert f"{name}: stopped by SIGTERM\n" in err
    assert "the process is ended" not in err
    assert RunLease.objects.get().token is None


QUEUE = """
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import sleep
def work():
    sleep(0.05)
    held.check()
    say("held")
pool, all_queued = ThreadPoolExecutor(1), Event()
pool.submit(all_queued.wait)
pool.submit(say, "ready")
for _ in range(20):
    pool.submit(work)
all_queued.set()
sleep(600)
"""


def test_the_queue_of_a_pool_is_worked_off_before_a_stopped_jobs_lease_is_free():
    process = start("--grace", "60s", code=QUEUE)
    assert process.stdout.readline() == "ready\n"
    process.terminate()
    out, err = ended(process)
    assert (process.returncode, out, err) == (143, "held\n" * 20, "code: stopped by SIGTERM\n")
    assert RunLease.objects.get().token is None
