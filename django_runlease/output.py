"""What a job prints: put aside, or kept back until it is known whether anybody has to read it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any


class Quiet:
    """What is kept back, until :meth:`show` is called or the block ends."""

    def __init__(self) -> None:
        self.keep = True
        """Whether the end of the block shows it."""
        self._streams: list[tuple[int, IO[bytes], IO[bytes]]] = []

    def keep_back(self, stream: Any, stack: ExitStack) -> None:
        # The descriptor and not the object, for what children and C code print.
        descriptor = stream.fileno()
        stream.flush()
        kept = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  the stack closes it
        original = stack.enter_context(os.fdopen(os.dup(descriptor), "wb"))
        os.dup2(kept.fileno(), descriptor)
        self._streams.append((descriptor, kept, original))

    def show(self) -> None:
        """Print what was kept back, and from now on everything at once; in any thread."""
        for kept, original in self._restore():
            kept.seek(0)
            shutil.copyfileobj(kept, original)
            original.flush()

    def drop(self) -> None:
        self._restore()

    def _restore(self) -> list[tuple[IO[bytes], IO[bytes]]]:
        streams, self._streams = self._streams, []
        for descriptor, _, original in streams:
            os.dup2(original.fileno(), descriptor)
        return [(kept, original) for _, kept, original in streams]


def open_standard_streams() -> bool:
    """Put /dev/null where a standard stream is closed: the next socket would take its number, and
    be sent what is meant for people. Returns whether any was."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return False
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    return True


@contextmanager
def quiet(*, until_failure: bool) -> Iterator[Quiet]:
    """Keep back what this process and its children print within the block.

    It is printed at the end if ``keep`` is set or an exception leaves the block, and dropped
    otherwise. Where *until_failure* is false, nothing is kept back.
    """
    state = Quiet()
    with ExitStack() as stack:
        if until_failure:
            for stream in _open_streams():
                state.keep_back(stream, stack)
        try:
            yield state
        except BaseException:
            state.keep = True
            raise
        finally:
            for stream in _open_streams():
                stream.flush()
            if state.keep:
                state.show()
            else:
                state.drop()


def _open_streams() -> list[Any]:
    # Python has None where a process began without the stream.
    return [stream for stream in (sys.stdout, sys.stderr) if stream is not None]


@contextmanager
def aside(*, wanted: bool) -> Iterator[None]:
    """Within the block, what is printed on standard output goes to standard error, so that the
    former has nothing but what is printed after it. Where it is not *wanted*, nothing changes."""
    if not wanted or len(_open_streams()) < 2:
        yield
        return
    sys.stdout.flush()
    descriptor = sys.stdout.fileno()
    original = os.dup(descriptor)
    os.dup2(sys.stderr.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(original, descriptor)
        os.close(original)
