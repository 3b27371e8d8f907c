"""Run a program under a lease: in a process group of its own, guarded, and ended as a whole."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from . import clock, log
from .held import HeldLease
from .holder import is_empty
from .interrupts import Interrupts
from .terminal import blocked, foreground
from .text import TAIL_LENGTH

GUARD = str(Path(__file__).with_name("guard.py"))
FORWARDED = ("SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH")
POLL = 0.02
CHUNK = 65_536
LAST_OUTPUT = 0.5
"""Seconds after which the end of a program is noticed where a daemon keeps its output open."""


class ProgramFailed(Exception):
    """A program that did not end with exit code 0; ``returncode`` is what a shell would give."""

    def __init__(self, returncode: int) -> None:
        if returncode < 0:
            self.detail = f"killed by {_signal_name(-returncode)}"
        else:
            self.detail = f"exit code {returncode}"
        self.returncode = returncode if returncode >= 0 else 128 - returncode
        super().__init__(self.detail)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Most real-time signals have none.
        return f"signal {number}"


class Program:
    """A program that runs under *held*. :meth:`run` is called once.

    Processes that leave the program's group, as daemons do, are not covered.
    """

    def __init__(self, words: Sequence[str], held: HeldLease, *, grace: float) -> None:
        self._words = words
        self._held = held
        self._grace = grace
        self._guard = Guard()
        self._group = 0
        self._output = Tail()

    @property
    def output(self) -> str:
        """The end of what the program has printed."""
        return self._output.text()

    def trust(self, until: float) -> None:
        """Let the guard know until when the lease can be trusted, on the local clock."""
        self._guard.tell(until=until)

    def look_after_guard(self) -> None:
        """Replace a guard that somebody has killed."""
        self._guard.check()

    def kill(self) -> None:
        """Kill the whole group at once."""
        if self._group:
            _send(self._group, signal.SIGKILL)

    def run(self, interrupts: Interrupts) -> None:
        """Start the program, and return when it and its group have ended.

        Raises ProgramFailed for an exit code other than 0, what *interrupts* raises, LeaseLost if
        the lease is gone before the start, and Django's database errors; the group is dead then.
        """
        with ExitStack() as stack:
            stack.enter_context(_collecting())
            stack.enter_context(self._guard)
            process, gate = stack.enter_context(self._behind_gate())
            # All is ready before the program can take its first breath.
            stack.enter_context(_forwarding(self._group))
            self._guard.tell(group=self._group)
            self._held.note_group(self._group)
            # Last, because from here on the terminal's Ctrl-C goes past us.
            stack.enter_context(foreground(self._group))
            try:
                with interrupts.allowed():
                    _open(gate)
                    _wait(process, interrupts)
            finally:
                self._end_group(process)
        if process.returncode:
            raise ProgramFailed(process.returncode)

    @contextmanager
    def _behind_gate(self) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
        """The process that becomes the program when a byte is written to the file."""
        waiting, go = os.pipe()
        command = [sys.executable, "-I", "-S", GUARD, "gate", str(waiting), *self._words]
        environment = {
            **os.environ,
            "RUNLEASE_NAME": self._held.name,
            "RUNLEASE_TOKEN": str(self._held.token),
            "RUNLEASE_GENERATION": str(self._held.generation),
            "RUNLEASE_DATABASE": self._held.alias,
        }
        with os.fdopen(go, "wb", buffering=0) as gate:
            try:
                # Which the gate lifts again: Python would make a traceback of it.
                with blocked(signal.SIGINT):
                    process = subprocess.Popen(
                        command,
                        env=environment,
                        process_group=0,
                        pass_fds=[waiting],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
            finally:
                os.close(waiting)
            self._group = process.pid
            with process, self._output.streaming(process, self._held):
                try:
                    yield process, gate
                finally:
                    # Before the pipes of a program that has not started are waited for.
                    if process.poll() is None:
                        self.kill()

    def _end_group(self, process: subprocess.Popen[bytes]) -> None:
        """Stop whatever of the group still runs: SIGTERM, grace, SIGKILL."""
        if _is_dead(process, self._group):
            return
        # A stopped process takes no SIGTERM before it goes on. It has to go on first, for a group
        # whose leader ends while a member is stopped gets a SIGHUP from the kernel, which would
        # come before the SIGTERM; and once more, if it has been stopped again.
        for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGCONT):
            _send(self._group, number)
        deadline = clock.local() + self._grace
        hurry = min(0.2, self._held.ttl.total_seconds() / 60)
        while not _is_dead(process, self._group):
            if clock.local() >= min(deadline, self._held.trusted_until - hurry):
                self.kill()
            time.sleep(POLL)


class Guard:
    """The guard process: kills the group if this process ends, or is frozen for too long."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Guard:
        with self._lock:
            self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            process, self._process = self._process, None
            assert process is not None
            # The group has ended, so there is nothing left to guard.
            _discard(process)

    def tell(self, **facts: float) -> None:
        """Send the process ``group``, or ``until`` when the lease can be trusted."""
        with self._lock:
            self._told |= facts
            if self._process is None:
                return
            try:
                _write(self._process, facts)
            except (BrokenPipeError, BlockingIOError):
                # It is gone, or it is frozen and has left its pipe to fill up.
                self._replace(self._process)

    def check(self) -> None:
        """Start another process if this one has been killed."""
        with self._lock:
            # One that ended by itself has done its work: this process was frozen for too long.
            if self._process is not None and (self._process.poll() or 0) < 0:
                self._replace(self._process)

    def _replace(self, old: subprocess.Popen[bytes]) -> None:
        """Somebody has killed or frozen it; the program must not go on without one."""
        log.warning("guard_replaced", "the guard process was killed; another one is started")
        try:
            self._start()
        except OSError as error:
            log.warning("guard_replaced", "no guard process could be started: %s", error)
        else:
            _discard(old)

    def _start(self) -> None:
        # Told with its start, so that there is no moment in which it knows nothing.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", GUARD, "guard", *_lines(self._told)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        # The watch, which tells it of each renewal, must not wait for it.
        os.set_blocking(self._process.stdin.fileno(), False)


def _lines(facts: dict[str, float]) -> list[str]:
    return [f"{word} {value}" for word, value in facts.items()]


def _write(guard: subprocess.Popen[bytes], facts: dict[str, float]) -> None:
    assert guard.stdin is not None
    # Lines as short as these are written as a whole, or not at all.
    os.write(guard.stdin.fileno(), "".join(f"{line}\n" for line in _lines(facts)).encode())


def _discard(guard: subprocess.Popen[bytes]) -> None:
    guard.kill()
    # Closes the pipe and waits.
    with guard:
        pass


class Tail:
    """What a program prints: passed on as it comes, and its end kept, in bounded memory."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def text(self) -> str:
        with self._lock:
            return self._kept.decode("utf-8", "replace")

    @contextmanager
    def streaming(self, process: subprocess.Popen[bytes], held: HeldLease) -> Iterator[None]:
        """Pass on the output of *process* within the block; all of it has been at its end."""
        sys.stdout.flush()
        sys.stderr.flush()
        pumps = [
            threading.Thread(target=self._pump, args=[source, target, held], daemon=True)
            for source, target in ((process.stdout, 1), (process.stderr, 2))
        ]
        for pump in pumps:
            pump.start()
        try:
            yield
        finally:
            self._ended.set()
            for pump in pumps:
                pump.join()

    def _pump(self, source: IO[bytes], target: int, held: HeldLease) -> None:
        with source:
            for chunk in self._chunks(source.fileno()):
                held.touch()
                with self._lock:
                    self._kept += chunk
                    del self._kept[:-TAIL_LENGTH]
                try:
                    _write_all(target, chunk)
                except OSError:
                    # Nobody reads us any more; let the program notice as if it wrote there itself.
                    break

    def _chunks(self, source: int) -> Iterator[bytes]:
        """What the program prints, to the end of the file; or, where a daemon keeps that open, to
        the end of the program."""
        while not self._ended.is_set():
            if _is_ready(source, select.POLLIN, LAST_OUTPUT):
                chunk = os.read(source, CHUNK)
                if not chunk:
                    return
                yield chunk
        # Its group has ended: what it has printed is in the pipe, and no more will come.
        (left,) = struct.unpack("i", fcntl.ioctl(source, termios.FIONREAD, bytes(4)))
        while left:
            chunk = os.read(source, min(left, CHUNK))
            left -= len(chunk)
            yield chunk


def _write_all(target: int, chunk: bytes) -> None:
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(target, view) :]
        except BlockingIOError:
            _is_ready(target, select.POLLOUT)


def _is_ready(descriptor: int, event: int, seconds: float | None = None) -> bool:
    # Not select(), which knows no descriptors from 1024 on, and a busy server has these.
    poll = select.poll()
    poll.register(descriptor, event)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def _open(gate: IO[bytes]) -> None:
    # One that was ended before, by the terminal perhaps, tells how by its exit code.
    with suppress(BrokenPipeError):
        gate.write(b"!")


def _wait(process: subprocess.Popen[bytes], interrupts: Interrupts) -> None:
    # Not by process.wait(): a signal that comes in the moment before that would have to wait, too.
    while process.poll() is None:
        if interrupts.cause is not None and not interrupts.possible:
            raise interrupts.cause
        time.sleep(POLL)


def _send(group: int, number: int) -> None:
    # What runs as another user now can only be waited for.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _is_dead(process: subprocess.Popen[bytes], group: int) -> bool:
    if process.poll() is None:
        return False
    _reap(group)
    return is_empty(group)


def _reap(group: int) -> None:
    """Collect orphans of the group that became our children, as they do of process 1."""
    try:
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


@contextmanager
def _collecting() -> Iterator[None]:
    """Be told how children end, also where whoever started us chose to ignore that."""
    ignored = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    )
    if ignored:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        if ignored:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)


@contextmanager
def _forwarding(group: int) -> Iterator[None]:
    """Pass on the signals that are not ours to answer."""
    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for name in FORWARDED:
            number = getattr(signal, name)
            if signal.getsignal(number) == signal.SIG_DFL:
                previous[number] = signal.signal(number, lambda sent, frame: _send(group, sent))
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
