"""Run a job under its lease: claim, call, stop it if need be, release, say how it ended."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from django.core.management import CommandError, call_command
from django.db import DatabaseError, InterfaceError

from . import clock, store
from .claiming import Claim
from .endings import closing_for
from .exceptions import Declined, JobTimeout, LeaseLost, RunLeaseError, Stopped
from .held import HeldLease
from .interrupts import Interrupts
from .jobs import Job
from .models import Outcome
from .store import Closing
from .supervisor import Program, ProgramFailed
from .text import one_line, printable, summary
from .watch import Watch, backstop, last_words

FAILED, USAGE, UNAVAILABLE, LOST, CONFLICT, TIMED_OUT = 1, 2, 69, 70, 75, 124

SLACK = 1.0
"""Seconds beyond its grace before a job, or the supervisor of a program, is not waited for."""


class Refused(Exception):
    """The claim cannot be made as it was asked for; the message says what to write instead."""


class Unavailable(Exception):
    """The database could not be asked for the lease, so the job did not run."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """How a tick ended."""

    outcome: Outcome
    exit_code: int
    message: str
    """One line for people, without the job's name."""
    run_id: int | None = None
    """Its Run in the history; None if there is none."""
    declined: Declined | None = None
    error: BaseException | None = None
    """What the job raised, if it did."""


def run(
    job: Job,
    claim: Claim,
    *,
    grace: float,
    own_process: bool,
    before_exit: Callable[[], None] = lambda: None,
) -> Report:
    """Claim the lease, run *job* under it, release; report how that went.

    An exception of the job is in the report and is not raised. *grace* is how many seconds a job
    that is told to stop has for cleaning up. In *own_process*, a job that does not stop in time is
    ended together with the process, after *before_exit* was called.

    Raises Refused for a claim that cannot be made, Unavailable if the database does not give it;
    then the job has not run.
    """
    with Interrupts() as interrupts:
        try:
            held = _claim(job, claim, interrupts)
        except (KeyboardInterrupt, Stopped) as stop:
            return Report(
                outcome=Outcome.TERMINATED,
                exit_code=_exit_code(stop),
                message="stopped while waiting for the lease",
            )
        if isinstance(held, Declined):
            return Report(
                outcome=Outcome.DECLINED,
                exit_code=0,
                message=f"declined, {held}",
                run_id=held.run_id,
                declined=held,
            )
        execution = _Execution(job, held, interrupts, before_exit)
        return execution.run(grace=grace, own_process=own_process)


def preview(claim: Claim) -> Declined | None:
    """What *claim* would be declined for at this moment. Raises as :func:`run` does."""
    with _asking():
        return claim.preview()


@contextmanager
def _asking() -> Iterator[None]:
    try:
        yield
    except (DatabaseError, InterfaceError) as error:
        raise Unavailable(store.explain(error)) from error
    except (ValueError, RunLeaseError) as error:
        raise Refused(str(error)) from error


def _claim(job: Job, claim: Claim, interrupts: Interrupts) -> HeldLease | Declined:
    def sleep(seconds: float) -> None:
        with interrupts.allowed():
            time.sleep(seconds)

    with _asking():
        return replace(claim, supervised=True, runs=job.what).run(sleep)


class _Execution:
    """One run of a job, from the granted claim to the release."""

    def __init__(
        self,
        job: Job,
        held: HeldLease,
        interrupts: Interrupts,
        before_exit: Callable[[], None],
    ) -> None:
        self._job = job
        self._held = held
        self._interrupts = interrupts
        self._before_exit = before_exit
        self._result = "did not start"
        self._program: Program | None = None

    def run(self, *, grace: float, own_process: bool) -> Report:
        error: BaseException | None = None
        threads = set(threading.enumerate())
        with ExitStack() as stack:
            try:
                self._watched(stack, grace=grace, own_process=own_process)
                with self._held.current():
                    self._call()
            except BaseException as raised:  # noqa: BLE001  it is in the report
                error = raised
            if cause := self._interrupts.cause:
                # The block that it has left between its beginning and its first line, or after its
                # last, ends only when its frame is gone: a fence would keep the row locked.
                traceback.clear_frames(cause.__traceback__)
            if own_process and cause:
                _await_threads_since(threads)
            return self._release(self._interrupts.cause, error)

    def _watched(self, stack: ExitStack, *, grace: float, own_process: bool) -> None:
        trust = self._guarded(stack, grace=grace, own_process=own_process)
        end = self._end_process if own_process else None
        each_look = self._program.look_after_guard if self._program else lambda: None
        watch = Watch(
            self._held,
            self._interrupts,
            grace=grace + SLACK,
            end=end,
            trust=trust,
            each_look=each_look,
        )
        stack.enter_context(watch)

    def _guarded(
        self, stack: ExitStack, *, grace: float, own_process: bool
    ) -> Callable[[float], None]:
        """What ends the job should this process be unable to, told how long trust lasts."""
        if self._job.program:
            self._program = Program(self._job.program, self._held, grace=grace)
            return self._program.trust
        return stack.enter_context(backstop(self._held)) if own_process else lambda until: None

    def _call(self) -> None:
        # The answer to the claim may have come after the lease had expired.
        self._held.raise_if_lost()
        self._result = "was still running"
        if self._program is not None:
            return self._program.run(self._interrupts)
        with self._interrupts.allowed():
            return self._call_here()

    def _call_here(self) -> None:
        function = self._job.function
        if function is None:
            call_command(*self._job.command)
        elif inspect.iscoroutinefunction(function):
            # Not async_to_sync, which waits for the loop's thread before it lets an exception by.
            asyncio.run(function(self._held))
        else:
            function(self._held)

    def _release(self, cause: BaseException | None, error: BaseException | None) -> Report:
        """Release, and judge: what stopped the job weighs more than what it made of that."""
        closing = replace(_closing(cause or error), error=_traceback(error), output=self._output())
        if self._result == "was still running":
            self._result = _own_result(cause, error)
        report = Report(
            outcome=closing.outcome,
            exit_code=closing.exit_code or 0,
            message=closing.reason or closing.outcome.value.replace("_", " "),
            run_id=self._held.run_id,
            error=error,
        )
        try:
            released = self._held.end(closing)
        except (DatabaseError, InterfaceError, RunLeaseError) as problem:
            message = f"the lease could not be released: {one_line(problem)}"
            with suppress(DatabaseError, InterfaceError):
                self._held.close_run(closing)
        else:
            if released or not self._held.lost.is_set():
                return report
            report = replace(report, outcome=Outcome.LOST)
            message = f"the lease was lost: {self._held.loss}"
        message = f"{message}; the job: {self._result}"
        return replace(report, exit_code=LOST, message=message)

    def _output(self) -> str:
        return self._program.output if self._program is not None else ""

    def _end_process(self, cause: BaseException) -> NoReturn:
        """End this process, in the watch's thread, because the job does not."""
        if self._program is not None:
            self._program.kill()
        closing = replace(_closing(cause), output=self._output())
        code = closing.exit_code or FAILED
        line = f"{self._held.name}: {closing.reason}; the process is ended; the job: {self._result}"

        def say() -> None:
            self._before_exit()
            os.write(2, printable(line).encode("utf-8", "replace") + b"\n")

        # While words are written the job must not go on.
        self._interrupts.park()
        # Neither a frozen database nor a full pipe may keep it from its end.
        words: list[Callable[[], None]] = [say, partial(self._held.close_run, closing)]
        threads = [threading.Thread(target=word, daemon=True) for word in words]
        for thread in threads:
            thread.start()
        end = clock.local() + last_words(self._held)
        for thread in threads:
            thread.join(max(end - clock.local(), 0.0))
        os._exit(code)


def _await_threads_since(before: set[threading.Thread]) -> None:
    """Wait for what a stopped job has started and left at work; the watch bounds that. A lease
    that was released meanwhile would let the next run begin beside them."""
    started = set(threading.enumerate()) - before
    _dismiss_pools(started)
    for thread in started:
        if not thread.daemon:
            thread.join()


def _dismiss_pools(threads: set[threading.Thread]) -> None:
    """Let the pools that *threads* work for end once their work is done, as the interpreter does
    at its end. Their idle workers would wait for more, and an async job has one of these for the
    database."""
    for pool in gc.get_objects():
        # Not isinstance(), which asks objects that are lazy what they are.
        if issubclass(type(pool), Executor) and threads & _workers(pool):
            pool.shutdown(wait=False)


def _workers(pool: Executor) -> set[threading.Thread | None]:
    # There is no public name for them.
    return {*getattr(pool, "_threads", ()), getattr(pool, "_executor_manager_thread", None)}


def _traceback(error: BaseException | None) -> str:
    # A program's exit code has no story to tell.
    return "" if isinstance(error, ProgramFailed) else closing_for(error).error


def _own_result(cause: BaseException | None, error: BaseException | None) -> str:
    if error is None:
        return "returned"
    return "stopped when it was told" if error is cause else summary(error)


def _closing(error: BaseException | None) -> Closing:
    return replace(closing_for(error), exit_code=_exit_code(error))


def _exit_code(error: BaseException | None) -> int:
    match error:
        case None:
            return 0
        case LeaseLost():
            return LOST
        case JobTimeout():
            return TIMED_OUT
        case KeyboardInterrupt():
            return 130
        case SystemExit(code=code):
            return _byte(code)
        case CommandError(returncode=code) | ProgramFailed(returncode=code):
            return _byte(code)
        case _:
            return FAILED


def _byte(code: object) -> int:
    """What a shell would see of *code*, but never 0 for a failure."""
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF or (FAILED if code else 0)
    return FAILED
