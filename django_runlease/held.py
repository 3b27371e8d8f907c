"""Holding a lease: claim → heartbeat → fence → release."""

from __future__ import annotations

import math
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.dispatch import Signal

from . import clock, effects, endings, fencing, heartbeat, signals, store
from .effects import PendingEffect
from .exceptions import JobTimeout, LeaseLost, RunLeaseError
from .fencing import InheritedLease, fenced
from .models import Outcome, Run, RunLease
from .store import Beat, Claimed, Closing, Loss, LostReason
from .terms import Duration, Terms, duration, short

_current: ContextVar[HeldLease | None] = ContextVar("current_lease", default=None)


def current_lease() -> HeldLease | None:
    """The lease under which this code runs (``lease()``, ``leased`` or ``runjob``), or None."""
    return _current.get()


class HeldLease:
    """A lease that this process holds, from the claim to its release.

    Made by ``claim()`` and ``lease()``. The database says who holds a lease; this object keeps how
    long its word can be trusted: from before the last claim or renewal was sent, for ttl less a
    margin of ttl/10, on a local clock that does not jump. A job that is *supervised* is ended by
    its supervisor when it stalls, and keeps its lease until then; any other loses it.
    """

    def __init__(
        self, claimed: Claimed, terms: Terms, *, sent: float, supervised: bool = False
    ) -> None:
        self.name: str = claimed.name
        self.token: UUID = claimed.token
        self.generation: int = claimed.generation
        """Rises by one with every claim and break of this name: the fencing number."""
        self.ttl: timedelta = terms.ttl
        self.lost = threading.Event()
        """Set once the lease is known to be lost."""
        self.loss: Loss | None = None
        """Why and to whom it was lost; None while it is not."""
        self._claimed = claimed
        self._terms = terms
        self._supervised = supervised
        self._beating = False
        self._pid = os.getpid()
        self._started = self._progressed = sent
        self._progress: dict[str, Any] | None = None
        self._open_fences = 0
        self._ended = False
        self._lock = threading.Lock()
        self._loss_lock = threading.Lock()
        self._trust_from(sent)

    def __repr__(self) -> str:
        state = "released" if self._ended else self.lost_reason or "held"
        return f"<HeldLease {self.name!r} generation {self.generation} ({state})>"

    def __del__(self) -> None:
        # Without source=self: whoever records warnings would keep it, and have it renewed for ever.
        # A claim that raised half-way through __init__ has no such attribute.
        # At the interpreter's end modules are gone before objects.
        if not getattr(self, "_ended", True) and os is not None and os.getpid() == self._pid:
            warnings.warn(
                f"{self!r} was dropped without release(); it expires after its ttl",
                ResourceWarning,
                stacklevel=1,
            )

    @property
    def lost_reason(self) -> LostReason | None:
        """taken, broken, expired, unreachable or stalled; None while the lease is not lost."""
        return self.loss.reason if self.loss else None

    @property
    def alias(self) -> str:
        """The alias of its database."""
        return self._claimed.alias

    @property
    def run_id(self) -> int:
        """The primary key of its Run in the history."""
        return self._claimed.run_id

    # -- time

    def _trust_from(self, sent: float) -> None:
        self._renewed_at = sent
        self.trusted_until = sent + (self.ttl - self._terms.margin).total_seconds()

    def remaining(self) -> float:
        """Seconds for which the lease can still be trusted without asking; 0 if it cannot."""
        if self._ended or self.lost.is_set():
            return 0.0
        return max(0.0, self.trusted_until - clock.local())

    def check(self, at_least: Duration | None = None) -> None:
        """Return if the lease is held, for another *at_least* if given. Asks no database.

        Raises LeaseLost once it is no longer ours, too little trusted time is left, or the job has
        stalled (JobTimeout instead under ``runjob``, which stops it); JobTimeout when the job has
        outrun its ``timeout``; RunLeaseError once released.
        """
        if not self.lost.is_set():
            self._refuse_if_ended()
        self.raise_if_lost()
        if at_least is not None and self.remaining() < duration(at_least).total_seconds():
            raise LeaseLost(
                self.name,
                f"only {short(self.remaining())} of the lease can be trusted, "
                f"less than {short(duration(at_least))}",
            )
        self.raise_if_late()

    def raise_if_lost(self, *, within: float = 0.0) -> None:
        """Raise LeaseLost if the lease is lost, its trusted time is over in *within* seconds, or
        the job has stalled and nobody but the lease itself looks after that."""
        # A watch or a beat may still look at it in the moment of its release.
        if not self._ended and self.trusted_until - clock.local() <= within:
            self.lose(endings.untrusted(self._renewed_at, beating=self._beating))
        self.is_stalled()
        if self.lost.is_set():
            raise LeaseLost(self.name, f"the lease is lost: {self.loss}")

    @property
    def stalls_at(self) -> float:
        """When, on the local clock, it is lost unless there is progress; infinite for never."""
        if self._supervised or self._terms.stall_after is None:
            return math.inf
        return self._progressed + self._terms.stall_after.total_seconds()

    def is_stalled(self) -> bool:
        """Whether the job has made no progress for so long that the lease is renewed no more; the
        lease is lost then."""
        stalled = not self._ended and clock.local() >= self.stalls_at
        if stalled:
            self.lose(endings.stalled(self._progressed, self._terms.stall_after))
        return stalled or self.lost_reason == "stalled"

    def raise_if_late(self) -> None:
        """Raise JobTimeout if the job has outrun its ``timeout``, or is supervised and has outrun
        its ``stall_after``."""
        now = clock.local()
        timeout, stall_after = self._terms.timeout, self._terms.stall_after
        if timeout and now - self._started >= timeout.total_seconds():
            raise JobTimeout(self.name, f"ran longer than its timeout of {short(timeout)}")
        silent = now - self._progressed
        if self._supervised and stall_after and silent >= stall_after.total_seconds():
            raise JobTimeout(self.name, f"made no progress for {short(stall_after)}", stalled=True)

    def lose(self, loss: Loss) -> None:
        """Take note that the lease is lost; the first reason stays."""
        # Not the lock of end(), which may hang in a dead network while the watch needs this.
        with self._loss_lock:
            if self.lost.is_set():
                return
            self.loss = loss
            self.lost.set()
        self._tell(signals.lease_lost, RunLease, reason=loss.reason, detail=loss.detail)

    def lose_for_gone(self) -> None:
        """Take note that its row has another token, or none, and of the reason that it tells."""
        if not self.lost.is_set():
            self.lose(store.why_gone_now(self._claimed))

    # -- while it is held

    def renew(self) -> None:
        """Let the lease last another ttl from now; for a lease without heartbeat.

        Raises LeaseLost if it is no longer ours, has expired, or its job has stalled, and Django's
        database errors.
        """
        self._refuse_if_ended()
        self.raise_if_lost()
        sent = clock.local()
        if loss := store.renew(self._claimed, self.ttl, self._progress):
            self.lose(loss)
        self.check()
        self._trust_from(sent)

    def start_heartbeat(self) -> None:
        """Have it renewed in the background. Inside a TestCase nothing is: another connection
        cannot see the lease, and would report its loss."""
        if not store.in_test(self._claimed.alias):
            self._beating = True
            heartbeat.start(self)

    def beat(self) -> Beat:
        """What the heartbeat renews it with."""
        return Beat(claimed=self._claimed, ttl=self.ttl, progress=self._progress)

    def renewed(self, sent: float) -> None:
        """Take note of a renewal that was asked for at *sent*, on the local clock."""
        if not self.lost.is_set():
            self._trust_from(sent)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell operators how far the job is. Kept here, and written with the next renewal.

        Raises ValueError for what is no finite number.
        """
        # Refused here, because the renewal of all leases would fail with it.
        self._progress = store.progress(done, total, message)
        self.touch()

    def touch(self) -> None:
        """Count as alive for ``stall_after``, as by :meth:`progress` or a program's output."""
        self._progressed = clock.local()

    def note_group(self, group: int) -> None:
        """Write down the process group of the program that runs under the lease: it is not free
        for a takeover while any process of the group lives. Raises LeaseLost if it is lost."""
        if not store.note_group(self._claimed, group):
            raise LeaseLost(self.name, "the lease was lost before the program started")

    def fence(
        self, using: str | None = None, *, idle: Duration | None = None
    ) -> AbstractContextManager[None]:
        """``transaction.atomic`` plus the check that the lease is ours, until the commit.

        While the block, or a transaction around it, is open, nobody can take over. *using* names
        another database for the caller's data; *idle* is how long the block may be silent there,
        the ttl if it is not given. Raises LeaseLost if somebody has taken over: then the atomic
        block around the fence is rolled back too, even if it catches that.
        """
        self._refuse_if_ended()
        return self._fence(using, idle)

    @contextmanager
    def _fence(self, using: str | None, idle: Duration | None) -> Iterator[None]:
        # Inside the try, so that no signal comes between the count and its end.
        counted = False
        try:
            with self._lock:
                self._open_fences += 1
                counted = True
            with fenced(self, using, idle=idle):
                yield
        finally:
            with self._lock:
                self._open_fences -= counted

    def fenced_update(self, queryset: QuerySet[Any], /, **values: Any) -> int:
        """``queryset.update(**values)`` in a fence of its own; the number of rows, maybe 0.

        Raises LeaseLost, which "no row matched" never does.
        """
        self._refuse_if_ended()
        return fencing.fenced_update(self, queryset, values)

    def fenced_delete(self, queryset: QuerySet[Any], /) -> int:
        """``queryset.delete()`` in a fence of its own; the number of its rows. Raises LeaseLost."""
        self._refuse_if_ended()
        return fencing.fenced_delete(self, queryset)

    def effect(self, kind: str, *key: object) -> AbstractContextManager[PendingEffect]:
        """An external action, as :func:`effects.effect` tells: begun, then confirmed, in fences.

        Raises LeaseLost also where the lease cannot be trusted any more: the action has no fence.
        """
        self.check()
        return effects.effect(self, kind, key)

    # -- the end

    def release(self) -> bool:
        """Free the lease; the history says that the run succeeded.

        Returns False, and changes nothing, if the lease was no longer ours, or this was done
        before. Raises RunLeaseError while a fence of it is open, which it is until the end of the
        transaction around it, or its row is kept locked; and Django's database errors.
        """
        return self.end(Closing(outcome=Outcome.SUCCEEDED))

    def end(self, closing: Closing) -> bool:
        """Release with an outcome for the history; what :meth:`release` and ``runjob`` call."""
        # A forked child has the object, but not the lease; and its parent may have been in the
        # middle of this.
        if os.getpid() != self._pid:
            return False
        with self._lock:
            if self._ended:
                return False
            if self._open_fences:
                raise RunLeaseError(
                    f"{self.name}: a fence of this lease is open: leave its block before release()"
                )
            fencing.refuse_left_open(self)
            if self._beating:
                # Before the release, so that no beat takes the freed lease for a lost one.
                heartbeat.stop(self)
            if lost := self.lost.is_set():
                stalled = self.lost_reason == "stalled"
                outcome = Outcome.STALLED if stalled else Outcome.LOST
                closing = replace(closing, outcome=outcome, reason=str(self.loss))
            length = clock.local() - self._started
            with fencing.lock_told(self):
                loss = store.release(self._claimed, closing, at_least=self._terms.at_least)
            self._ended = True
        if loss:
            self.lose(loss)
            closing = replace(closing, outcome=Outcome.LOST, reason=str(loss))
        else:
            self._tell(signals.lease_released, RunLease)
        self._tell_finished(closing, length)
        return not (lost or loss)

    def close_run(self, closing: Closing) -> None:
        """Close the Run and keep the lease: for a job whose process is about to be ended hard.

        The lease must outlive the job, so nobody releases it; it expires.
        """
        length = clock.local() - self._started
        store.close_run(self._claimed, closing)
        self._tell_finished(closing, length)

    def _tell_finished(self, closing: Closing, length: float) -> None:
        self._tell(
            signals.run_finished,
            Run,
            outcome=closing.outcome,
            reason=closing.reason,
            exit_code=closing.exit_code,
            duration=length,
        )

    def _tell(self, signal: Signal, sender: type[Model], **facts: Any) -> None:
        signals.send(
            signal,
            sender,
            lease=self.name,
            using=self.alias,
            generation=self.generation,
            holder=self._claimed.holder,
            run_id=self.run_id,
            **facts,
        )

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise RunLeaseError(f"{self.name}: this lease has been released")

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this what ``current_lease()`` returns in the block."""
        outer = _current.get()
        _current.set(self)
        try:
            yield
        finally:
            # Not reset(), which refuses a block that ends in another context than it began in.
            if _current.get() is self:
                _current.set(outer)


def fence(
    lease: HeldLease | InheritedLease | None = None,
    *,
    using: str | None = None,
    idle: Duration | None = None,
) -> AbstractContextManager[None]:
    """A fence of *lease*: the current one, if none is given, or one that a parent process holds.

    As :meth:`HeldLease.fence`. Raises RunLeaseError where there is no current lease, TypeError for
    what is no lease, such as a claim that was declined.
    """
    if lease is None:
        lease = current_lease()
    if lease is None:
        raise RunLeaseError("no lease is held here: give fence() one, or call it under lease()")
    if isinstance(lease, HeldLease):
        return lease.fence(using, idle=idle)
    if isinstance(lease, InheritedLease):
        return fenced(lease, using, idle=idle)
    raise TypeError(
        f"fence() takes a lease, not {lease!r}: write `if held:` before the fence of what claim()"
        " returned"
    )
