"""The heartbeat: one thread per process and database renews all leases of the process.

It starts with the first lease and ends with the last. A beat is one statement, on a connection
that belongs to the thread alone, so a job cannot hold it up. A beat that fails is tried again
soon; whoever holds the lease goes on trusting it until ``trusted_until``, and no longer. A beat
may hang in a frozen database, so another thread tells the holders when that time is over. A lease
whose job has stalled is renewed no more.
"""

from __future__ import annotations

import os
import random
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections
from psycopg import Error as PsycopgError

from . import clock, log, signals, store
from .exceptions import LeaseLost
from .store import Answer, Beat, Loss

BEATS_PER_TTL = 3
RETRIES_PER_TTL = 10
SKIPPED: Answer = "skipped"

PATIENCE = 0.1
"""Seconds for which a beat may go on before a lease whose trusted time is over is given up."""


class Renewable(Protocol):
    """What the heartbeat needs of a held lease."""

    token: UUID
    ttl: timedelta
    trusted_until: float
    lost: threading.Event

    @property
    def stalls_at(self) -> float:
        """When it is lost, on the local clock, unless there is progress."""

    def is_stalled(self) -> bool:
        """Whether it is to be renewed no more, because its job has stalled; take note of that."""

    def beat(self) -> Beat:
        """What to renew it with."""

    def renewed(self, sent: float) -> None:
        """The database has renewed it, asked at *sent* on the local clock."""

    def lose(self, loss: Loss) -> None:
        """The database says that it is not ours any more."""

    def raise_if_lost(self) -> None:
        """Take note if its trusted time is over, or its job has stalled."""


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
                name = f"runlease-heartbeat-{self._alias}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                thread.start()
                self._thread = thread
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
            share = random.uniform(0.8, 1.0) / beats_per_ttl  # noqa: S311  jitter
            due = clock.local() + held.ttl.total_seconds() * share
            self._due[held.token] = due if held.lost.is_set() else min(due, held.trusted_until)

    def _run(self) -> None:
        signals.must_not_wait()
        # By the time this thread ends, the attribute may be the next one's.
        self._connection = connection = store.own_connection(self._alias)
        connections[self._alias] = connection
        try:
            while members := self._due_members():
                if members := self._without_stalled(members):
                    self._beat(members)
                del members
        finally:
            with self._changed:
                if self._thread is threading.current_thread():
                    self._thread = None
            connection.close()

    def _due_members(self) -> list[Renewable]:
        """Sleep until a beat is due, or a job has stalled; empty when no lease is left and the
        thread is to end."""
        with self._changed:
            while left := self._seconds_left():
                self._changed.wait(left)
            members = list(self._members.values())
            if not members:
                self._thread = None
            return members

    def _seconds_left(self) -> float | None:
        self._due = {token: due for token, due in self._due.items() if token in self._members}
        moments = [*self._due.values(), *(held.stalls_at for held in self._members.values())]
        return max(min(moments) - clock.local(), 0.0) if moments else None

    def _without_stalled(self, members: list[Renewable]) -> list[Renewable]:
        stalled = [held for held in members if held.is_stalled()]
        for held in stalled:
            self.remove(held)
        return [held for held in members if held not in stalled]

    def _beat(self, members: list[Renewable]) -> None:
        with _watched(members):
            sent = clock.local()
            answers = self._ask([held.beat() for held in members])
        lost = []
        unrenewed = []
        with self._changed:
            for held in members:
                if held.token not in self._members:
                    continue
                match answers.get(held.token, SKIPPED):
                    case "renewed":
                        held.renewed(sent)
                        self._schedule([held], BEATS_PER_TTL)
                    case "skipped":
                        self._schedule([held], RETRIES_PER_TTL)
                        unrenewed.append(held)
                    case Loss() as loss:
                        del self._members[held.token]
                        lost.append((held, loss))
        for held, loss in lost:
            held.lose(loss)
        _tell_untrusted(unrenewed)

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
            except Exception as error:  # noqa: BLE001  one lease's fault must not end all beats
                log.warning("beat_failed", "a beat failed: %s", repr(error))
                return {}
        log.warning("beat_failed", "a beat failed: %s", store.explain(problem))
        return {}


@contextmanager
def _watched(members: list[Renewable]) -> Iterator[None]:
    """Within the block, tell each of *members* when it cannot be trusted any more."""
    over = threading.Event()

    def watch() -> None:
        signals.must_not_wait()
        # A process that was frozen is rather told who has taken over, if the database says so.
        left: float | None = max(_trusted_for(members) or 0.0, PATIENCE)
        while not over.wait(left):
            _tell_untrusted(members)
            left = _trusted_for(members)

    watching = threading.Thread(target=watch, name="runlease-trust", daemon=True)
    try:
        watching.start()
    except RuntimeError as error:
        log.warning("beat_failed", "no thread watches over a beat: %s", error)
        yield
        return
    try:
        yield
    finally:
        over.set()
        watching.join()


def _trusted_for(members: Iterable[Renewable]) -> float | None:
    """How many seconds all of *members* that are not lost can be trusted; None if all are."""
    ends = [min(held.trusted_until, held.stalls_at) for held in members if not held.lost.is_set()]
    return max(min(ends) - clock.local(), 0.0) if ends else None


def _tell_untrusted(members: Iterable[Renewable]) -> None:
    for held in members:
        with suppress(LeaseLost):
            held.raise_if_lost()


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
