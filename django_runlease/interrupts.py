"""Stopping a job that runs in this process: an exception in the main thread, wherever it is.

A signal handler is the one thing that gets through ``sleep``, a socket, a lock or a database wait.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from django.db import connections
from psycopg import Error as PsycopgError
from psycopg.pq import TransactionStatus

from .exceptions import Stopped

# Real-time signals are nobody's default; elsewhere SIGUSR2 is the least used.
WAKE = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
CANCEL_TIMEOUT = 1.0
PARK_TIMEOUT = 0.05
WAKES = 5
"""How often the main thread is woken for a signal that it has not answered, perhaps."""


class Interrupts:
    """Within its block, signals and other threads can stop what the main thread does.

    They do so only inside :meth:`allowed`; what comes outside of it is raised when the next such
    block is entered. The first that comes counts, and stays in :attr:`cause`.
    """

    def __init__(self) -> None:
        self.cause: BaseException | None = None
        self.possible = threading.current_thread() is threading.main_thread()
        self._pid = os.getpid()
        self._signalled = False
        self._parking = False
        self._parked = threading.Event()
        self._allowed = False
        self._raised = False
        self._previous: dict[int, Any] = {}
        self._told: int | None = None
        self._telling = -1
        self._wakes = 0

    def __enter__(self) -> Interrupts:
        if self.possible:
            self._listen()
            self._install(WAKE, self._wake)
            self._install(signal.SIGTERM, self._stop)
            self._install(signal.SIGINT, self._stop)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        told, self._told = self._told, None
        if told is not None:
            # The job may have put another in its place.
            if (there := signal.set_wakeup_fd(-1)) != self._telling:
                signal.set_wakeup_fd(there)
            os.close(self._telling)
            os.close(told)

    def _listen(self) -> None:
        """Have Python write down each signal as it comes, in whatever thread and moment."""
        told, telling = os.pipe()
        os.set_blocking(told, False)
        os.set_blocking(telling, False)
        there = signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
        if there == -1:
            self._told, self._telling = told, telling
            return
        # An event loop's, or that of a run around this one, which does the same.
        signal.set_wakeup_fd(there)
        os.close(telling)
        os.close(told)

    def _install(self, number: int, handler: Callable[[int, FrameType | None], None]) -> None:
        # A handler that somebody has set (a server's, a worker's) is theirs to keep; so is a
        # signal that a parent chose to have ignored.
        current = signal.getsignal(number)
        if number == WAKE or current in (signal.SIG_DFL, signal.default_int_handler):
            self._previous[number] = signal.signal(number, handler)

    def interrupt(self, cause: BaseException) -> None:
        """Raise *cause* in the main thread, from any thread. The first cause wins."""
        if self.cause is None:
            self.cause = cause
            if self.possible:
                signal.pthread_kill(threading.main_thread().ident or 0, WAKE)

    def wake_again(self) -> None:
        """Wake the main thread if it may not have answered what was sent to it. To be called again
        and again, from another thread.

        The answer to a signal is given between two steps of the main thread. One that comes after
        the last step before a wait, or that the system gives to another thread, ends no wait.
        """
        if not self.possible:
            return
        if self._has_come():
            self._wakes = WAKES
        waits = self.cause is not None and self._allowed and not self._raised
        if waits or self._wakes:
            self._wakes = max(self._wakes - 1, 0)
            signal.pthread_kill(threading.main_thread().ident or 0, WAKE)

    def _has_come(self) -> bool:
        """Whether any signal has come since this was last asked, but for our own."""
        if self._told is None:
            return False
        try:
            return any(number != WAKE for number in os.read(self._told, 4096))
        except BlockingIOError:
            return False

    def park(self) -> None:
        """Keep the main thread from going any further, for what is left of this process.

        Returns once it stands still, or after a moment if it does not come out of C code.
        """
        if self.possible:
            self._parking = True
            signal.pthread_kill(threading.main_thread().ident or 0, WAKE)
            self._parked.wait(PARK_TIMEOUT)

    def _wake(self, number: int, frame: FrameType | None) -> None:
        if self._parking:
            self._parked.set()
            while True:
                time.sleep(1)
        self._raise_if_allowed()
        # A run within a run: the signal may be for the outer one.
        if callable(outer := self._previous.get(number)):
            outer(number, frame)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self._signalled or os.getpid() != self._pid:
            # The second signal ends at once; so does one to a forked child, which must not unwind
            # what is its parent's.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            # Process 1 survives that.
            os._exit(128 + number)
        self._signalled = True
        if self.cause is None:
            self.cause = KeyboardInterrupt() if number == signal.SIGINT else Stopped(128 + number)
            # Of any exception: the report of the run reads it.
            self.cause.detail = f"stopped by {signal.Signals(number).name}"  # type: ignore[union-attr]
            self._raise_if_allowed()

    def _raise_if_allowed(self) -> None:
        if self._allowed and not self._raised and self.cause is not None:
            self._raised = True
            cancel_statements()
            # Where it was made says nothing about where the job is.
            raise self.cause.with_traceback(None)

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """The block that may be interrupted."""
        self._allowed = True
        try:
            self._raise_if_allowed()
            yield
        finally:
            self._allowed = False


def cancel_statements() -> None:
    """Cancel what the calling thread's connections are waiting for.

    Without it a statement goes on in the server, and commits, after its connection is closed.
    """
    for wrapper in connections.all(initialized_only=True):
        connection: Any = wrapper.connection
        if wrapper.vendor != "postgresql" or connection is None or connection.closed:
            continue
        if connection.info.transaction_status == TransactionStatus.ACTIVE:
            try:
                connection.cancel_safe(timeout=CANCEL_TIMEOUT)
            except PsycopgError:
                # The server does not take it; what is under way is refused by the fence.
                connection.close()
