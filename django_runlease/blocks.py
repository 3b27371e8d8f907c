"""The length of a lease in code: a ``with`` block, or a call of a decorated function."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Literal, ParamSpec, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.db import Error

from .claiming import Claim, Options, check_heartbeat, refuse_unknown
from .endings import closing_for
from .exceptions import Declined, LeaseDeclined, LeaseLost, RunLeaseError
from .held import HeldLease, current_lease
from .terms import given, named_duration
from .text import check_name

Params = ParamSpec("Params")
Returned = TypeVar("Returned")


def lease(name: str, **options: Unpack[Options]) -> LeaseContext:
    """A lease for the length of a ``with`` or ``async with`` block.

    Raises LeaseDeclined on entry if somebody else holds it, LeaseLost on exit if it was lost, and
    what :func:`claim` raises. An exception of the block goes to the history and is never masked.
    """
    return LeaseContext(Claim.from_options(name, options))


class LeaseContext:
    """What :func:`lease` returns. It can be entered again, and by several threads or tasks."""

    def __init__(self, claim: Claim) -> None:
        self._claim = claim
        self._blocks: list[HeldBlock] = []

    def __enter__(self) -> HeldLease:
        return self._entered(self._claim.run())

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._own_block().__exit__(kind, error, trace)

    async def __aenter__(self) -> HeldLease:
        return self._entered(await run_async(self._claim))

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._own_block().__aexit__(kind, error, trace)

    def _entered(self, result: HeldLease | Declined) -> HeldLease:
        if isinstance(result, Declined):
            raise LeaseDeclined(self._claim.name, result)
        block = HeldBlock(result)
        self._blocks.append(block)
        return block.__enter__()

    def _own_block(self) -> HeldBlock:
        current = current_lease()
        # A generator may leave its block in another context than the one it was entered in.
        block = next((b for b in self._blocks if b.held is current), self._blocks[-1])
        self._blocks.remove(block)
        return block


class HeldBlock:
    """The block in which a lease is held: ``current_lease()`` within, released at its end."""

    def __init__(self, held: HeldLease) -> None:
        self.held = held

    def __enter__(self) -> HeldLease:
        self._current = self.held.current()
        self._current.__enter__()
        return self.held

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._current.__exit__(None, None, None)
        self._end(error)

    async def __aenter__(self) -> HeldLease:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._current.__exit__(None, None, None)
        await in_thread(partial(self._end, error))

    def _end(self, error: BaseException | None) -> None:
        held = self.held
        released = False
        try:
            released = held.end(closing_for(error))
        except (Error, RunLeaseError) as problem:
            if error is None:
                raise
            error.add_note(f"and the lease {held.name!r} could not be released: {problem}")
        if error is None and not released and held.lost.is_set():
            raise LeaseLost(held.name, f"the lease was lost: {held.loss}")


async def run_async(claim: Claim) -> HeldLease | Declined:
    """``claim.run()`` for a task: the event loop goes on while it waits."""
    attempts = await in_thread(claim.start)
    while (result := await in_thread(attempts.once, undo=_take_back)) is None:
        await asyncio.sleep(attempts.pause())
    return result


def _take_back(result: HeldLease | Declined | None) -> None:
    if isinstance(result, HeldLease):
        result.end(closing_for(asyncio.CancelledError()))


async def in_thread(
    work: Callable[[], Returned], *, undo: Callable[[Returned], object] = lambda result: None
) -> Returned:
    """Await *work* in a thread. A cancelled task waits for it, and has its result undone."""
    handover = _Handover(work, undo)
    task = asyncio.ensure_future(sync_to_async(handover.run)())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _settle(task)
        if handover.abandon():
            await _settle(asyncio.ensure_future(sync_to_async(handover.take_back)()))
        raise


async def _settle(task: asyncio.Future[Any]) -> None:
    """Wait for the end of *task*, however often the caller is cancelled meanwhile."""
    while not task.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    if not task.cancelled():
        # Asked for, so that nobody reports it as unnoticed.
        task.exception()


class _Handover(Generic[Returned]):
    """What a thread has made for a task that may be cancelled, even with the whole event loop."""

    def __init__(self, work: Callable[[], Returned], undo: Callable[[Returned], object]) -> None:
        self._work = work
        self._undo = undo
        self._made: list[Returned] = []
        self._abandoned = False
        self._lock = threading.Lock()

    def run(self) -> Returned:
        result = self._work()
        with self._lock:
            abandoned = self._abandoned
            self._made.append(result)
        if abandoned:
            self.take_back()
        return result

    def abandon(self) -> bool:
        """Say that nobody takes the result; True if it is there, and is the caller's to undo."""
        with self._lock:
            self._abandoned = True
            return bool(self._made)

    def take_back(self) -> None:
        while self._made:
            self._undo(self._made.pop())


def leased(
    name: str, *, on_declined: Literal["skip", "raise"] = "skip", **options: Unpack[Options]
) -> Callable[[Callable[Params, Returned]], Callable[Params, Returned]]:
    """Run each call of the decorated function, plain or async, under the lease *name*.

    When the claim is declined, the call returns None (``"skip"``) or raises LeaseDeclined
    (``"raise"``). Inside, ``current_lease()`` is the lease. Raises what :func:`lease` raises.
    """
    _check_decoration(name, on_declined, options)

    def entered(result: HeldLease | Declined) -> HeldBlock | None:
        if isinstance(result, HeldLease):
            return HeldBlock(result)
        if on_declined == "raise":
            raise LeaseDeclined(name, result)
        return None

    def decorate(function: Callable[Params, Any]) -> Callable[Params, Any]:
        _check_decorated(name, function)

        @functools.wraps(function)
        def call(*args: Params.args, **kwargs: Params.kwargs) -> Any:
            block = entered(Claim.from_options(name, options).run())
            if block is None:
                return None
            with block:
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def call_async(*args: Params.args, **kwargs: Params.kwargs) -> Any:
            block = entered(await run_async(Claim.from_options(name, options)))
            if block is None:
                return None
            async with block:
                return await function(*args, **kwargs)

        return call_async if inspect.iscoroutinefunction(function) else call

    return decorate


def _check_decoration(name: str, on_declined: str, options: Options) -> None:
    if on_declined not in ("skip", "raise"):
        raise ValueError(f'on_declined: {on_declined!r} is neither "skip" nor "raise"')
    refuse_unknown(options)
    check_name(name)
    # The other terms come from the settings, which a decorator must not read on import.
    given(options)
    check_heartbeat(options)
    if options.get("wait") is not None:
        named_duration("wait", options["wait"])


def _check_decorated(name: str, function: object) -> None:
    if not callable(function):
        raise TypeError(f'leased({name!r}): write @leased("{name}", …) above a function')
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"leased({name!r}) cannot decorate a generator: its body would run after the "
            "release; use `with lease(...)` inside it"
        )
