"""The guard of a supervised program, and the gate before it. Run as a script, without Django.

``guard.py guard [FACT…]`` reads facts from the runner, a line each on standard input, and kills
the program's process group at end-of-file (the runner is gone), or when the last time it was given
has passed (the runner is frozen). One that replaces another starts with what is known::

    group 4711          the process group to kill
    until 12345.678     kill it then, in seconds of the local clock

``guard.py gate FD PROGRAM ARG…`` waits for a byte on the descriptor and then becomes the program;
at end-of-file it ends. So a program does not start before its group is known.
"""

import os
import select
import signal
import sys
import time

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
NOT_EXECUTABLE, NOT_FOUND = 126, 127


def guard(facts: list[str]) -> None:
    # Whoever ends a whole service at once should end this one last, by closing its pipe.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    group, until, rest = 0, float("inf"), "".join(f"{fact}\n" for fact in facts).encode()
    ended = False
    while not ended:
        *lines, rest = rest.split(b"\n")
        for line in lines:
            word, _, value = line.decode().partition(" ")
            if word == "group":
                group = int(value)
            if word == "until":
                until = float(value)
        left = until - time.clock_gettime(_CLOCK)
        # A wait does not count the time that the machine is suspended, so it is cut in pieces.
        ready, _, _ = select.select([0], [], [], min(max(left, 0.0), 60.0))
        received = os.read(0, 4096) if ready else b""
        rest += received
        ended = not received if ready else until <= time.clock_gettime(_CLOCK)
    if group:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass


def gate(descriptor: int, program: list[str]) -> None:
    _let_interrupts_through()
    if not os.read(descriptor, 1):
        return
    os.close(descriptor)
    # Python ignores these two, and a program would inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    if _has_terminal():
        # Suspended, it would keep the lease and the terminal from everybody.
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    try:
        os.execvp(program[0], program)  # noqa: S606  it is its task
    except OSError as error:
        missing = isinstance(error, FileNotFoundError | NotADirectoryError)
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        sys.exit(NOT_FOUND if missing else NOT_EXECUTABLE)


def _let_interrupts_through() -> None:
    # The runner has blocked it. Ctrl-C ends the gate as it would end a program that is not Python.
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])


def _has_terminal() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


if __name__ == "__main__":
    if sys.argv[1] == "guard":
        guard(sys.argv[2:])
    else:
        gate(int(sys.argv[2]), sys.argv[3:])
