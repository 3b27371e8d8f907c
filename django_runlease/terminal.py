"""The terminal of a program: which process group reads it, and gets its Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def foreground(group: int) -> Iterator[None]:
    """On a terminal, let the program's group read it for the block, as a shell would."""
    own = os.getpgrp()
    try:
        ours = os.tcgetpgrp(0) == own
    except OSError:
        # No terminal, or not the one of our session.
        ours = False
    if not ours:
        yield
        return
    _give_to(group)
    try:
        yield
    finally:
        _give_to(own)


def _give_to(group: int) -> None:
    # Asked from the background, the terminal would stop us; and it may have been hung up.
    with blocked(signal.SIGTTOU), suppress(OSError):
        os.tcsetpgrp(0, group)


@contextmanager
def blocked(number: int) -> Iterator[None]:
    """Keep a signal from the calling thread, and from what it starts, for the block."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [number])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
