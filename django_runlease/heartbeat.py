"""The heartbeat: one thread per process and database renews all leases of the process.

It starts with the first lease and ends with the last. A beat is one statement, on a connection
that belongs to the thread alone, so a job cannot hold it up. A beat that fails is tried again
soon; whoever holds the lease goes on trusting it until ``trusted_until``, and no longer.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections
from psycopg import Error as PsycopgError

from . import clock, log, store
from .store import Answer, Beat, Loss

BEATS_PER_TTL = 3
RETRIES_PER_TTL = 10


class Renewable(Protocol):
    """What the heartbeat needs of a held lease."""

    token: UUID
    ttl: timedelta

    def beat(self) -> Beat:
        """What to renew it with."""

    def renewed(self, sent: float) -> None:
        """The database has renewed it, asked at *sent* on the local clock."""

    def lose(self, loss: Loss) -> None:
        """The database says that it is not ours any more."""


class Heartbeat:
    """The thread of one database, and the leases it renews."""

    def __init__(self, alias: str) -> None:
        self._alias = alias
        # Weak, so that a lease which is dropped without release expires.
        self._members: weakref.WeakValueDictionary[UUID, Renewable] = weakref.WeakValueDictionary()
        self._due: dict[UUID, float] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: Any = None

    def add(self, held: Renewable) -> None:
        with self._changed:
            self._members[held.token] = held
            self._schedule([held], BEATS_PER_TTL)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"runlease-heartbeat-{self._alias}", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def remove(self, held: Renewable) -> None:
        """Stop renewing *held*. What a beat under way finds out about it is ignored."""
        with self._changed:
            self._members.pop(held.token, None)
            self._changed.notify()

    def close_in_child(self) -> None:
        """Close a forked child's copy of the socket without a word to the server."""
        if self._connection is not None and self._connection.connection is not None:
            with suppress(OSError, PsycopgError):
                os.close(self._connection.connection.fileno())

    def _schedule(self, members: Iterable[Renewable], beats_per_ttl: int) -> None:
        for held in members:
            # Jitter, so that processes started by one tick do not all renew at one moment.
            share = random.uniform(0.8, 1.0) / beats_per_ttl  # noqa: S311
            self._due[held.token] = clock.local() + held.ttl.total_seconds() * share

    def _run(self) -> None:
        self._connection = connections[self._alias] = store.own_connection(self._alias)
        try:
            while self._sleep():
                self._beat(list(self._members.values()))
        finally:
            self._connection.close()

    def _sleep(self) -> bool:
        """Sleep until a beat is due; False when no lease is left and the thread is to end."""
        with self._changed:
            while left := self._seconds_left():
                self._changed.wait(left)
            if left is None:
                self._thread = None
            return left is not None

    def _seconds_left(self) -> float | None:
        self._due = {token: due for token, due in self._due.items() if token in self._members}
        return max(min(self._due.values()) - clock.local(), 0.0) if self._due else None

    def _beat(self, members: list[Renewable]) -> None:
        sent = clock.local()
        answers = self._ask([held.beat() for held in members])
        lost = []
        with self._changed:
            for held in members:
                if held.token not in self._members:
                    continue
                match answers.get(held.token, "skipped"):
                    case "renewed":
                        held.renewed(sent)
                        self._schedule([held], BEATS_PER_TTL)
                    case "skipped":
                        self._schedule([held], RETRIES_PER_TTL)
                    case Loss() as loss:
                        del self._members[held.token]
                        lost.append((held, loss))
        for held, loss in lost:
            held.lose(loss)

    def _ask(self, beats: list[Beat]) -> dict[UUID, Answer]:
        """One beat; once more on a fresh connection if the first is broken. Empty if it failed."""
        for _ in range(2):
            try:
                return store.beat(beats, self._alias)
            except (DatabaseError, InterfaceError) as error:
                problem = error
                if not store.is_connection_error(error):
                    break
                self._connection.close()
        log.warning("a beat failed: %s", store.explain(problem))
        return {}


_heartbeats: dict[str, Heartbeat] = {}
_lock = threading.Lock()


def start(held: Renewable) -> None:
    """Renew *held* from now on, until :func:`stop`, or until it is dropped."""
    alias = held.beat().claimed.alias
    with _lock:
        heartbeat = _heartbeats.setdefault(alias, Heartbeat(alias))
    heartbeat.add(held)


def stop(held: Renewable) -> None:
    with _lock:
        heartbeat = _heartbeats.get(held.beat().claimed.alias)
    if heartbeat:
        heartbeat.remove(held)


def _forget_in_child() -> None:
    """A forked child has neither the threads nor the leases of its parent."""
    global _lock
    # Another thread of the parent may have held it.
    _lock = threading.Lock()
    for heartbeat in _heartbeats.values():
        heartbeat.close_in_child()
    _heartbeats.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
