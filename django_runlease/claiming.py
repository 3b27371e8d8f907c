"""From a name and its terms to a held lease: try, wait, give up."""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.db import Error

from . import clock, log, store
from .conf import conf
from .exceptions import Declined, LeaseDeclined, LeaseLost
from .held import HeldLease, closing_for
from .store import Claimed, ClaimRequest, Refusal
from .terms import Duration, Terms, declared, duration, given, resolve
from .text import check_name

Params = ParamSpec("Params")
Returned = TypeVar("Returned")

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
    """The same after this long without a call of ``progress()``."""
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
    trigger: str = "api"
    using: str | None = None

    @classmethod
    def from_options(cls, name: str, options: Options) -> Claim:
        """Raises TypeError for an unknown option, ValueError for a bad one."""
        _refuse_unknown(options)
        check_name(name)
        terms = resolve(options, declared(name), renewed=options.get("heartbeat", True))
        wait = options.get("wait")
        return cls(
            name=name,
            terms=terms,
            wait=0.0 if wait is None else duration(wait).total_seconds(),
            tick=options.get("tick"),
            heartbeat=options.get("heartbeat", True),
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

    def once(self) -> HeldLease | Declined | None:
        """Try once; None means that it is worth another try after :meth:`pause` seconds.

        A decline is recorded in the history when it is final.
        """
        sent = clock.local()
        result = store.claim(self.request, self.alias, waiting_since=self.waiting_since)
        if isinstance(result, Claimed):
            if result.took_over_from:
                log.warning(
                    "%s: took over from %s: %s",
                    result.name,
                    result.took_over_from,
                    result.because,
                )
            held = HeldLease(result, self.claim.terms, sent=sent)
            if self.claim.heartbeat:
                held.start_heartbeat()
            return held
        if self.waiting_since is None:
            self.waiting_since = result.now
        self._tries += 1
        if self._worth_waiting(result):
            return None
        if not conf.RECORD_DECLINES:
            return result.declined
        run_id = store.record_decline(
            self.request, result, self.alias, waiting_since=self.waiting_since
        )
        return replace(result.declined, run_id=run_id)

    def pause(self) -> float:
        """Seconds to sleep before the next try: growing, jittered, and not past the end."""
        longest = min(FIRST_PAUSE * 2 ** min(self._tries - 1, 10), LONGEST_PAUSE)
        return min(random.uniform(longest / 2, longest), max(self._left(), 0.0))  # noqa: S311

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


def lease(name: str, **options: Unpack[Options]) -> _LeaseContext:
    """A lease for the length of a ``with`` or ``async with`` block.

    Raises LeaseDeclined on entry if somebody else holds it, LeaseLost on exit if it was lost, and
    what :func:`claim` raises. An exception of the block goes to the history and is never masked.
    """
    return _LeaseContext(Claim.from_options(name, options))


class _LeaseContext:
    def __init__(self, claim: Claim) -> None:
        self._claim = claim

    def __enter__(self) -> HeldLease:
        self._block = HeldBlock(self._granted(self._claim.run()))
        return self._block.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._block.__exit__(kind, error, trace)

    async def __aenter__(self) -> HeldLease:
        self._block = HeldBlock(self._granted(await _run_async(self._claim)))
        return await self._block.__aenter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._block.__aexit__(kind, error, trace)

    def _granted(self, result: HeldLease | Declined) -> HeldLease:
        if isinstance(result, Declined):
            raise LeaseDeclined(self._claim.name, result)
        return result


class HeldBlock:
    """The block in which a lease is held: ``current_lease()`` within, released at its end."""

    def __init__(self, held: HeldLease) -> None:
        self._held = held
        self._current = held.current()

    def __enter__(self) -> HeldLease:
        self._current.__enter__()
        return self._held

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._current.__exit__(None, None, None)
        self._end(error)

    async def __aenter__(self) -> HeldLease:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._current.__exit__(None, None, None)
        await _in_thread(partial(self._end, error))

    def _end(self, error: BaseException | None) -> None:
        held = self._held
        try:
            held.end(closing_for(error))
        except Error as problem:
            if error is None:
                raise
            error.add_note(f"and the lease {held.name!r} could not be released: {problem}")
        if error is None and held.lost.is_set():
            raise LeaseLost(held.name, f"the lease was lost: {held.loss}")


async def _run_async(claim: Claim) -> HeldLease | Declined:
    attempts = await _in_thread(claim.start)
    while (result := await _in_thread(attempts.once, undo=_take_back)) is None:
        await asyncio.sleep(attempts.pause())
    return result


def _take_back(result: HeldLease | Declined | None) -> None:
    if isinstance(result, HeldLease):
        result.end(closing_for(asyncio.CancelledError()))


async def _in_thread(
    work: Callable[[], Returned], *, undo: Callable[[Returned], object] | None = None
) -> Returned:
    """Await *work* in a thread. Cancelling the task waits for it, and then calls *undo*."""
    task = asyncio.ensure_future(sync_to_async(work)())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        result = await task
        if undo:
            await sync_to_async(undo)(result)
        raise


def leased(
    name: str, *, on_declined: Literal["skip", "raise"] = "skip", **options: Unpack[Options]
) -> Callable[[Callable[Params, Returned]], Callable[Params, Returned]]:
    """Run each call of the decorated function, plain or async, under the lease *name*.

    When the claim is declined, the call returns None (``"skip"``) or raises LeaseDeclined
    (``"raise"``). Inside, ``current_lease()`` is the lease. Raises what :func:`lease` raises.
    """
    if on_declined not in ("skip", "raise"):
        raise ValueError(f'on_declined: {on_declined!r} is neither "skip" nor "raise"')
    _refuse_unknown(options)
    check_name(name)
    # The other terms come from the settings, which a decorator must not read on import.
    given(options)

    def entered(result: HeldLease | Declined) -> HeldBlock | None:
        if isinstance(result, HeldLease):
            return HeldBlock(result)
        if on_declined == "raise":
            raise LeaseDeclined(name, result)
        return None

    def decorate(function: Callable[Params, Any]) -> Callable[Params, Any]:
        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Any:
            block = entered(Claim.from_options(name, options).run())
            if block is None:
                return None
            with block:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: Params.args, **kwargs: Params.kwargs) -> Any:
            block = entered(await _run_async(Claim.from_options(name, options)))
            if block is None:
                return None
            async with block:
                return await function(*args, **kwargs)

        return call_async if inspect.iscoroutinefunction(function) else call

    return decorate


def _refuse_unknown(options: Options) -> None:
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        known = ", ".join(Options.__annotations__)
        raise TypeError(f"unknown option {unknown[0]!r}: the options are {known}")
