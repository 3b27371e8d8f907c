"""Real concurrency for the tests: threads with connections of their own, and processes."""

from __future__ import annotations

import os
import select
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any, Literal, TypeVar
from unittest.mock import patch
from urllib.parse import quote

from django import VERSION
from django.db import connection, connections

from django_runlease import clock, store
from django_runlease.clock import Now, Seconds
from django_runlease.models import RunLease
from django_runlease.store import Claimed, ClaimRequest, Refusal
from django_runlease.terms import TERM_NAMES, Terms

# Pairs before Django 6.0, and addresses since.
ADMINS: Any = ["ops@example.com"] if VERSION >= (6, 0) else [("Ops", "ops@example.com")]
# Django 6.1 deprecates sending mail without it; those before pass over it.
MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 60.0
"""Seconds after which what a test waits for will not come: many, as some machines are slow."""

Result = TypeVar("Result")


def wait_for(condition: Callable[[], Result], deadline: float = DEADLINE) -> Result:
    """Return the first true value of *condition*; fail the test if there is none in time."""
    end = time.monotonic() + deadline
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{condition} did not come true within {deadline} s")
        time.sleep(0.01)
    return value


def named_by(refuse: Callable[[], str]) -> str:
    """What *refuse* says once it names who locks a row. They are looked for while it waits for the
    lock, for which a machine that is slow then may have no time."""
    return wait_for(lambda: said if "locked by database process" in (said := refuse()) else "")


def together(*calls: Callable[[], Result]) -> list[Result]:
    """Run each call in a thread with its own connection, all released at one barrier.

    The results come in the order of the calls; a call that raises fails the test.
    """
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Result]) -> Result:
        try:
            connection.ensure_connection()
            barrier.wait(DEADLINE)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


def elsewhere(call: Callable[[], Result]) -> Result:
    """Run *call* on a connection of its own, in another thread."""
    return together(call)[0]


@contextmanager
def open_transaction(sql: str, params: list[Any] | None = None) -> Iterator[threading.Event]:
    """A second connection that has executed *sql* in a transaction, and keeps it open for the
    block, or until the event that it gives is set. It is rolled back."""
    ready, finish = threading.Event(), threading.Event()

    def hold() -> None:
        from django.db import transaction

        try:
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute(sql, params)
                ready.set()
                finish.wait(DEADLINE)
                transaction.set_rollback(True)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        holding = pool.submit(hold)
        wait_for(lambda: ready.is_set() or holding.done())
        try:
            yield finish
        finally:
            finish.set()
            holding.result()


def database_url() -> str:
    """The URL of the test's own database, for a process."""
    settings = connection.settings_dict
    password = f":{quote(settings['PASSWORD'], safe='')}" if settings["PASSWORD"] else ""
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    # A host that is a folder, for a unix socket, stands where the path begins.
    socket = settings["HOST"].startswith("/")
    host = "" if socket else settings["HOST"]
    folder = quote(settings["HOST"]) + "/" if socket else ""
    login = quote(settings["USER"], safe="") + password
    return f"postgres://{login}@{host}{port}/{folder}{settings['NAME']}"


def environment(**extra: str) -> dict[str, str]:
    """The environment of a process that works on the test's own database."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "example_project.settings",
        "DATABASE_URL": database_url(),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "error",
        **extra,
    }


UNHURRIED = {"DJANGO_SETTINGS_MODULE": "tests.settings_jobs", "UNHURRIED": "2.5"}
"""For a process: what has to happen in tenths of a second there has seconds for it; see
``tests.jobsapp.apps``."""


def spawn_python(code: str, *arguments: str, **popen: Any) -> subprocess.Popen[str]:
    """Start a Python process that has set Django up on the test's database, and runs *code*."""
    prelude = "import django; django.setup()\n"
    return _spawn([sys.executable, "-c", prelude + code, *arguments], **popen)


def spawn_manage(*arguments: str, **popen: Any) -> subprocess.Popen[str]:
    """Start ``manage.py`` with *arguments* on the test's database."""
    return _spawn([sys.executable, str(ROOT / "manage.py"), *arguments], **popen)


def manage(*arguments: str, **popen: Any) -> subprocess.CompletedProcess[str]:
    """Run ``manage.py`` with *arguments* on the test's database, to its end."""
    process = spawn_manage(*arguments, **popen)
    with process:
        try:
            # The demos have a story of many processes to tell.
            out, err = process.communicate(timeout=3 * DEADLINE)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def _spawn(command: list[str], env: dict[str, str] | None = None, **popen: Any) -> Any:
    popen = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **popen}
    return subprocess.Popen(command, env=environment(**(env or {})), cwd=ROOT, **popen)


class Worker:
    """A process that holds a lease, beats often, and evaluates what it is asked."""

    CODE = """
import sys
from django_runlease import claim, clock, heartbeat
heartbeat.BEATS_PER_TTL, heartbeat.RETRIES_PER_TTL = 60, 30
{setup}
held = claim("job", ttl=float(sys.argv[1]))
assert held, held
print(held.generation, flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
{end}
"""

    def __init__(self, ttl: float, setup: str = "", end: str = "held.release()", **env: str):
        code = self.CODE.format(setup=setup, end=end)
        self.process = spawn_python(code, str(ttl), stdin=subprocess.PIPE, env=env)
        self.generation = int(self._answer())

    def _answer(self) -> str:
        line = self.process.stdout.readline()  # type: ignore[union-attr]  # a pipe
        assert line, self.process.communicate()
        return line.strip()

    def ask(self, expression: str) -> str:
        self.process.stdin.write(expression + "\n")  # type: ignore[union-attr]  # a pipe
        self.process.stdin.flush()  # type: ignore[union-attr]  # a pipe
        return self._answer()

    def finish(self) -> tuple[int, str]:
        out, err = self.process.communicate("", timeout=DEADLINE)
        assert out == ""
        return self.process.returncode, err

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.kill()
        self.process.communicate()


def wish(name: str = "job", *, ttl: float = 60, **more: Any) -> ClaimRequest:
    """A request for a claim; *more* are terms in seconds, or fields of the request."""
    terms = {key: timedelta(seconds=more.pop(key)) for key in TERM_NAMES if key in more}
    terms["ttl"] = timedelta(seconds=ttl)
    return ClaimRequest(name=name, terms=Terms(**terms), **more)


def granted(name: str = "job", **more: Any) -> Claimed:
    """A claim by the store that must be granted; :func:`wish` says what it takes."""
    result = store.claim(wish(name, **more), "default")
    assert isinstance(result, Claimed), result
    return result


def refused(name: str = "job", **more: Any) -> Refusal:
    """A claim by the store that must be declined."""
    result = store.claim(wish(name, **more), "default")
    assert isinstance(result, Refusal), result
    return result


def expire(name: str = "job") -> None:
    """Let the lease have expired a second ago, on the database's clock."""
    second = Seconds(timedelta(seconds=1))
    RunLease.objects.filter(name=name).update(expires_at=Now() - second)


def ago(seconds: float) -> Any:
    """The moment so long ago on the database's clock, for a field of a row."""
    return Now() - Seconds(timedelta(seconds=seconds))


@contextmanager
def later(seconds: float) -> Iterator[None]:
    """In the block, the local clock of this process is that many seconds ahead."""
    local = clock.local
    with patch.object(clock, "local", lambda: local() + seconds):
        yield


@contextmanager
def cut_at_commit(when: Literal["before", "during", "after"], skip: int = 0) -> Iterator[Event]:
    """For new connections: cut one at its COMMIT, and let all others pass.

    The COMMIT is cut *before* the server has it, *after* its answer, or *during* its execution, so
    that the server goes on alone. The first *skip* of them pass. The event tells that it happened.
    """
    settings, done, left = connection.settings_dict, threading.Event(), [skip]
    host, port = settings["HOST"] or "localhost", settings["PORT"] or 5432
    family = socket.AF_UNIX if host.startswith("/") else socket.AF_INET
    address = f"{host}/.s.PGSQL.{port}" if family == socket.AF_UNIX else (host, int(port))

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(family) as server, suppress(ConnectionError, BrokenPipeError):
                server.connect(address)
                while self.step(server):
                    pass

        def step(self, server: socket.socket) -> bool:
            source = select.select([self.request, server], [], [])[0][0]
            data = source.recv(65536)
            if source is self.request and b"COMMIT\0" in data and not done.is_set():
                left[0] -= 1
                if left[0] < 0:
                    done.set()
                    self.cut(server, data)
                    return False
            (server if source is self.request else self.request).sendall(data)
            return bool(data)

        def cut(self, server: socket.socket, data: bytes) -> None:
            if when == "before":
                return
            server.sendall(data)
            if when == "during":
                self.request.shutdown(socket.SHUT_RDWR)
            server.recv(65536)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as proxy:
        serving = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        there = {"HOST": "127.0.0.1", "PORT": str(proxy.server_address[1])}
        options = settings["OPTIONS"] | {"sslmode": "disable", "gssencmode": "disable"}
        try:
            with patch.dict(settings, **there, OPTIONS=options):
                yield done
        finally:
            proxy.shutdown()
            serving.join()


def backends(condition: str = "true") -> int:
    """How many other sessions of clients of the test's database fulfil *condition*."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            f" AND ({condition})"
        )
        count: int = cursor.fetchone()[0]
    return count
