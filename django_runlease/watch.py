"""The watch over a run: a thread without I/O that ends the job when it has to end.

::

    told    at once when the lease is taken or broken; when its trusted time is nearly over;
            at ``timeout`` and ``stall_after``; by SIGTERM and SIGINT
    ended   when the trusted time is over; ``grace`` after it was told for another reason

The heartbeat can hang in a frozen database, which is why this is not its task.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from . import clock, signals
from .exceptions import JobTimeout, LeaseLost
from .held import HeldLease
from .interrupts import Interrupts
from .terms import MARGIN_SHARE

POLL = 0.05
BACKSTOP, BACKSTOP_SHARE = 0.5, 0.8
"""When even a thread that never gives up the GIL is ended: this many seconds after the trusted
time, or this share of the margin between that and the expiry, whichever is shorter."""

LAST_WORDS, HASTE = 2.0, 0.4
"""Seconds that a process which is ended hard has for writing down how its run ended: while its
lease can be trusted, and after that."""


class Watch:
    """Watches over *held* for the length of its block.

    *end* is called, once, in a thread of its own, when the job has not stopped in time; it is not
    expected to return. None where the process is not ours to end. *trust* is called with the end
    of the trusted time whenever that has moved, first before the job begins; *each_look* every
    time the watch looks.
    """

    def __init__(
        self,
        held: HeldLease,
        interrupts: Interrupts,
        *,
        grace: float,
        end: Callable[[BaseException], None] | None,
        trust: Callable[[float], None] = lambda until: None,
        each_look: Callable[[], None] = lambda: None,
    ) -> None:
        self._held = held
        self._interrupts = interrupts
        self._grace = grace
        self._end = end
        self._trust = trust
        self._each_look = each_look
        self._trusted_until = 0.0
        self._told_at: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runlease-watch", daemon=True)

    def __enter__(self) -> Watch:
        # Before the job, which may never let the thread have its first turn.
        self._pass_on_trust()
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        signals.must_not_wait()
        ttl = self._held.ttl.total_seconds()
        warning = min(self._grace, ttl / 6)
        while not self._over.wait(min(POLL, ttl / 60)):
            self._pass_on_trust()
            self._each_look()
            self._interrupts.wake_again()
            try:
                self._held.raise_if_lost(within=warning)
                self._held.raise_if_late()
            except (LeaseLost, JobTimeout) as cause:
                self._interrupts.interrupt(cause)
            if self._end and self._is_time_to_end():
                self._end(self._interrupts.cause or LeaseLost(self._held.name, "expired"))
                return

    def _is_time_to_end(self) -> bool:
        now = clock.local()
        if self._interrupts.cause is not None and self._told_at is None:
            self._told_at = now
        if now >= self._held.trusted_until:
            return True
        lost = isinstance(self._interrupts.cause, LeaseLost)
        return self._told_at is not None and not lost and now >= self._told_at + self._grace

    def _pass_on_trust(self) -> None:
        if self._trusted_until != self._held.trusted_until:
            self._trusted_until = self._held.trusted_until
            self._trust(self._trusted_until)


def _margin(held: HeldLease) -> float:
    return held.ttl.total_seconds() / MARGIN_SHARE


def last_words(held: HeldLease) -> float:
    """How many seconds the process that is ended has left for saying so: if it can, it is to be
    gone before the lease expires, and in any case before the backstop."""
    left = held.trusted_until - clock.local()
    margin = _margin(held)
    if left < -margin:
        return HASTE
    return max(min(left + min(HASTE, margin / 2), LAST_WORDS), 0.0)


class _Backstop:
    """The timer of faulthandler, which is none of Python's threads.

    It stands still while the process forks: the child would inherit the timer's lock, and wait at
    its end for a thread that only its parent has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: float | None = None
        self._delay = 0.0
        self._output: Any = None

    @contextmanager
    def active(self, delay: float) -> Iterator[Callable[[float], None]]:
        self._delay = delay
        with ExitStack() as stack:
            # None where the process began without one, which faulthandler does not take.
            self._output = sys.stderr or stack.enter_context(Path(os.devnull).open("w"))
            stack.callback(self._disarm)
            yield self._arm

    def _arm(self, until: float) -> None:
        with self._lock:
            self._until = until
            self._start(until)

    def _start(self, until: float) -> None:
        left = max(until - clock.local(), 0.0) + self._delay
        faulthandler.dump_traceback_later(left, exit=True, file=self._output)

    def _disarm(self) -> None:
        with self._lock:
            # Not in a forked child, where it is not armed.
            if self._until is not None:
                self._until = None
                faulthandler.cancel_dump_traceback_later()

    def before_fork(self) -> None:
        self._lock.acquire()
        if self._until is not None:
            faulthandler.cancel_dump_traceback_later()

    def after_in_parent(self) -> None:
        if self._until is not None:
            self._start(self._until)
        self._lock.release()

    def after_in_child(self) -> None:
        self._until = None
        self._lock.release()


_backstop = _Backstop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_backstop.before_fork,
        after_in_parent=_backstop.after_in_parent,
        after_in_child=_backstop.after_in_child,
    )


def backstop(held: HeldLease) -> AbstractContextManager[Callable[[float], None]]:
    """For a job in this process: what ends it before *held* expires even if its C code never gives
    up the GIL.

    Gives the function to pass to :class:`Watch` as *trust*. The exit code is then 1, and the
    stacks of all threads are on standard error.
    """
    return _backstop.active(min(BACKSTOP, BACKSTOP_SHARE * _margin(held)))
