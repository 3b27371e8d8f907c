"""A PostgreSQL server of a test's own, which it may stop, or whose processes it may freeze."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import environ
import psycopg
import pytest

from example_project import embedded

from .support import manage, wait_for

# A statement that meets it goes on once the advisory lock 1 is free. It sleeps, because a lock
# that is waited for has its timeout.
_GATE = """
    CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS '
    BEGIN
        WHILE NOT pg_try_advisory_xact_lock(1) LOOP PERFORM pg_sleep(0.2); END LOOP;
        RETURN NEW;
    END'
"""


class Server:
    """A PostgreSQL server of the test's own, on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = embedded.database_url(folder)
        config = environ.Env.db_url_config(self.url)
        self.address = {"host": config["HOST"], "port": config["PORT"], "user": config["USER"]}
        assert manage("migrate", "-v0", env={"DATABASE_URL": self.url}).returncode == 0

    def stop(self) -> None:
        self.pid = int((self.folder / "data/postmaster.pid").read_text().split()[0])
        os.kill(self.pid, signal.SIGINT)
        wait_for(lambda: not Path(f"/proc/{self.pid}").exists() or self._is_zombie())

    def _is_zombie(self) -> bool:
        return ") Z " in Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")

    def start(self) -> None:
        assert embedded.database_url(self.folder) == self.url

    def connect(self) -> psycopg.Connection:
        return psycopg.connect(**self.address, dbname="postgres", autocommit=True)

    def rows(self, sql: str, *params: Any) -> list[Any]:
        with self.connect() as there:
            return there.execute(sql, params).fetchall()

    def read(self, what: str, table: str = "runlease_runlease") -> Any:
        return self.rows(f"SELECT {what} FROM {table}")[0][0]

    def backends(self, condition: str) -> list[int]:
        """The processes of the sessions that fulfil *condition*."""
        found = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND "
        return [pid for (pid,) in self.rows(found + condition + " ORDER BY pid")]

    @contextmanager
    def gate(self, when: str, *, at_commit: bool = False) -> Iterator[Callable[[], Any]]:
        """Keep updates of a lease *when* OLD and NEW are so from going on, or their COMMIT, for
        the block or until what it gives is called."""
        kind = "TRIGGER gate BEFORE UPDATE ON runlease_runlease"
        if at_commit:
            kind = "CONSTRAINT TRIGGER gate AFTER UPDATE ON runlease_runlease"
            kind += " DEFERRABLE INITIALLY DEFERRED"
        with self.connect() as there:
            there.execute(_GATE)
            there.execute(f"CREATE {kind} FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION gate()")
            there.execute("SELECT pg_advisory_lock(1)")
            try:
                yield lambda: there.execute("SELECT pg_advisory_unlock_all()")
            finally:
                there.execute("SELECT pg_advisory_unlock_all()")
                there.execute("DROP FUNCTION gate CASCADE")

    @contextmanager
    def frozen(self, condition: str) -> Iterator[None]:
        """Wait for sessions that fulfil *condition*, and stop their processes for the block."""
        pids: list[int] = []

        def freeze() -> bool:
            pids[:] = self.backends(condition)
            _signal(pids, signal.SIGSTOP)
            # One that has gone on meanwhile is let go.
            if self.backends(condition) != pids:
                _signal(pids, signal.SIGCONT)
                pids.clear()
            return bool(pids)

        try:
            wait_for(freeze)
            yield
        finally:
            _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, django_db_setup: None) -> Server:
    return Server(tmp_path_factory.mktemp("server"))


@pytest.fixture
def fresh_server(server: Server, transactional_db: None) -> Server:
    with server.connect() as there:
        there.execute("TRUNCATE runlease_runlease, runlease_run")
    return server
