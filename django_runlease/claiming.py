"""From a name and its terms to a held lease: try, wait, give up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.db import DatabaseError, InterfaceError, connections
from django.dispatch import Signal

from . import clock, log, signals, store
from .conf import conf
from .endings import closing_for
from .exceptions import Declined
from .held import HeldLease
from .models import RunLease
from .store import Claimed, ClaimRequest, Refusal
from .terms import Duration, Terms, declared, named_duration, resolve
from .text import check_name

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two tries of a claim that waits: the first pause, and what it grows to."""


class Options(TypedDict, total=False):
    """What ``lease()``, ``claim()`` and ``leased()`` take besides the name.

    A duration is a timedelta, a number of seconds, or a string: ``"90s"``, ``"1h30m"``,
    ``"PT5M"``.
    """

    ttl: Duration | None
    """How long the lease lasts without renewal; else JOBS[name], else TTL, else 5 minutes."""
    every: Duration | None
    """The interval between ticks, for warnings; it never gates a claim."""
    at_least: Duration | None
    """Minimum hold: after the release, nobody may claim before this much has passed since the
    claim. It keeps a short job from running twice on hosts whose clocks differ."""
    timeout: Duration | None
    """``check()`` raises JobTimeout after this time, and ``runjob`` stops the job."""
    stall_after: Duration | None
    """After this long without a call of ``progress()`` the lease is renewed no more and is lost:
    it expires although the job hangs. ``runjob`` stops the job instead."""
    wait: Duration | None
    """How long to wait for a held, busy or not yet due lease; None declines at once."""
    tick: datetime | None
    """The scheduled moment, aware; a tick runs once, on whichever host claims it first."""
    heartbeat: bool
    """Whether the lease is renewed in the background while it is held."""
    using: str | None
    """Alias of the lease's database; else RUNLEASE["DATABASE"], else the router's choice."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """All that a claim depends on. Building it checks every part; nothing is asked yet."""

    name: str
    terms: Terms
    wait: float = 0.0
    """Seconds; infinite for a standby (``math.inf``)."""
    standby: bool = False
    """Wait for ever, also through a pause."""
    tick: datetime | None = None
    ignore_schedule: bool = False
    heartbeat: bool = True
    supervised: bool = False
    """Whether the caller ends a job that stalls; else its lease is lost."""
    trigger: str = "api"
    runs: str = ""
    """The function, command or program that it is for, to tell people; if it is known."""
    using: str | None = None

    @classmethod
    def from_options(cls, name: str, options: Options) -> Claim:
        """Raises TypeError for an unknown option, ValueError for a bad one."""
        refuse_unknown(options)
        check_name(name)
        heartbeat = check_heartbeat(options)
        terms = resolve(options, declared(name), renewed=heartbeat)
        wait = options.get("wait")
        return cls(
            name=name,
            terms=terms,
            wait=0.0 if wait is None else named_duration("wait", wait).total_seconds(),
            tick=options.get("tick"),
            heartbeat=heartbeat,
            using=options.get("using"),
        )

    def start(self) -> Attempts:
        """Begin to claim. Raises ValueError for a bad tick, RunLeaseError for a bad database."""
        return Attempts(self, self._request(), store.write_alias(self.using))

    def preview(self) -> Declined | None:
        """What a claim would be declined for at this moment; None if it would be granted."""
        refusal = store.preview(self._request(), store.write_alias(self.using))
        return refusal.declined if refusal else None

    def _request(self) -> ClaimRequest:
        return ClaimRequest(
            name=self.name,
            terms=self.terms,
            tick=self.tick,
            ignore_schedule=self.ignore_schedule,
            trigger=self.trigger,
            runs=self.runs,
            heartbeat=self.heartbeat,
        )

    def run(self, sleep: Callable[[float], object] = time.sleep) -> HeldLease | Declined:
        """Claim, waiting as long as was asked for."""
        attempts = self.start()
        while (result := attempts.once()) is None:
            sleep(attempts.pause())
        return result


@dataclass
class Attempts:
    """A claim that may wait: call :meth:`once` until it returns something, and sleep between."""

    claim: Claim
    request: ClaimRequest
    alias: str
    began: float = field(default_factory=clock.local)
    waiting_since: float | None = None
    _tries: int = 0
    _warned: bool = False

    def once(self) -> HeldLease | Declined | None:
        """Try once; None means that it is worth another try after :meth:`pause` seconds.

        A decline is recorded in the history when it is final.
        """
        sent = clock.local()
        try:
            result = store.claim(self.request, self.alias, waiting_since=self.waiting_since)
        except (DatabaseError, InterfaceError) as error:
            if not self._tries or self._left() <= 0 or not store.is_connection_error(error):
                raise
            # Whoever waits outlasts a restart of the database.
            name, why = self.request.name, store.explain(error)
            log.warning("claim_failed", "%s: a try to claim failed: %s", name, why, lease=name)
            connections[self.alias].close()
            self._tries += 1
            return None
        if isinstance(result, Claimed):
            return self._held(result, sent)
        if self.waiting_since is None:
            self.waiting_since = result.now
        self._tries += 1
        self._warn_of_program(result.declined)
        if self._worth_waiting(result):
            return None
        return self._declined(result)

    def _held(self, claimed: Claimed, sent: float) -> HeldLease:
        claim = self.claim
        held = HeldLease(claimed, claim.terms, sent=sent, supervised=claim.supervised)
        try:
            if claim.heartbeat:
                held.start_heartbeat()
            self._tell(
                signals.lease_claimed,
                generation=claimed.generation,
                holder=claimed.holder,
                run_id=claimed.run_id,
                took_over_from=claimed.took_over_from,
                because=claimed.because if claimed.took_over_from else "",
            )
            store.tell_closed(claimed.abandoned, self.alias)
        except BaseException as error:
            # The system gives no more threads, or a signal's handler raised: nobody gets it.
            held.end(closing_for(error))
            raise
        return held

    def _declined(self, refusal: Refusal) -> Declined:
        declined = refusal.declined
        if conf.RECORD_DECLINES:
            run_id = store.record_decline(
                self.request, refusal, self.alias, waiting_since=self.waiting_since
            )
            declined = replace(declined, run_id=run_id)
        self._tell(
            signals.lease_declined,
            generation=None,
            holder=declined.holder,
            run_id=declined.run_id,
            reason=declined.reason,
        )
        return declined

    def _tell(self, signal: Signal, **facts: Any) -> None:
        signals.send(
            signal,
            RunLease,
            lease=self.request.name,
            using=self.alias,
            trigger=self.request.trigger,
            tick=self.request.tick,
            **facts,
        )

    def _warn_of_program(self, declined: Declined) -> None:
        # Without an operator it may decline for ever, which a silent decline would hide.
        if declined.left_group is not None and not self._warned:
            self._warned = True
            name, group = self.request.name, declined.left_group
            log.warning("program_left", "%s: %s", name, declined, lease=name, group=group)

    def pause(self) -> float:
        """Seconds to sleep before the next try: growing, jittered, and not past the end."""
        longest = min(FIRST_PAUSE * 2 ** min(self._tries - 1, 10), LONGEST_PAUSE)
        return min(random.uniform(longest / 2, longest), max(self._left(), 0.0))  # noqa: S311  jitter

    def _left(self) -> float:
        return self.began + self.claim.wait - clock.local()

    def _worth_waiting(self, refusal: Refusal) -> bool:
        left = self._left()
        match refusal.declined.reason:
            case "same_tick":
                return False
            case "paused":
                return self.claim.standby
            case "not_due" if refusal.not_before is not None and refusal.now is not None:
                return refusal.not_before - refusal.now < left
            case _:
                return left > 0


def claim(name: str, **options: Unpack[Options]) -> HeldLease | Declined:
    """Claim a lease; return a HeldLease, or a falsy Declined that says who holds it and why.

    The caller releases it. See :class:`Options` for the keywords. Raises ValueError for a bad name
    or term, RunLeaseError within an open transaction, and Django's database errors.
    """
    return Claim.from_options(name, options).run()


def refuse_unknown(options: Options) -> None:
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        known = ", ".join(Options.__annotations__)
        raise TypeError(f"unknown option {unknown[0]!r}: the options are {known}")


def check_heartbeat(options: Options) -> bool:
    """The option ``heartbeat``. Raises ValueError for what is neither True nor False."""
    heartbeat = options.get("heartbeat", True)
    if not isinstance(heartbeat, bool):
        raise ValueError(f"heartbeat: {heartbeat!r} is neither True nor False")
    return heartbeat
