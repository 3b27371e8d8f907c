"""Programs under ``runjob``, for the tests: started, found among the processes, and waited for."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil
from django.db import connection

from django_runlease.models import RunLease

from .support import UNHURRIED, spawn_manage, wait_for

# What a program of the tests may call. It reads its orders from standard input.
PRELUDE = """
import os, signal, subprocess, sys, time

def say(*words):
    # Not print(), which a signal handler must not call.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def sleep():
    while True:
        # Python answers a signal that comes in the moment before a wait when that has ended.
        time.sleep(0.05)

def child(code, **popen):
    # It says "up" and the ids of its own children; returned with its own.
    there = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", "PRELUDE = " + repr(PRELUDE) + PRELUDE + code],
        stdout=subprocess.PIPE,
        **popen,
    )
    up, *pids = there.stdout.readline().split()
    assert up == b"up"
    return [there.pid, *map(int, pids)]
"""


def python(code: str) -> list[str]:
    """The words of a program that runs *code*."""
    prelude = f"PRELUDE = {PRELUDE!r}\n{PRELUDE}"
    return [sys.executable, "-I", "-S", "-c", prelude + textwrap.dedent(code)]


def start(
    *words: str,
    options: tuple[str, ...] = (),
    name: str = "prog",
    env: dict[str, str] | None = None,
    **popen: Any,
) -> Any:
    """Start a program under the lease *name*, with time for all that has to happen in time."""
    popen = {"stdin": subprocess.PIPE, "env": {**UNHURRIED, **(env or {})}, **popen}
    return spawn_manage("runjob", name, *options, "--", *words, **popen)


def started(code: str, **more: Any) -> tuple[Any, list[int]]:
    """Start a program that says the ids of its processes on its first line; wait for that."""
    runjob = start(*python(code), **more)
    line = runjob.stdout.readline()
    assert line, runjob.communicate()
    return runjob, [int(pid) for pid in line.split()]


@contextmanager
def ended(runjob: Any, pids: list[int] | None = None) -> Iterator[None]:
    """Whatever becomes of the test, leave no process behind."""
    try:
        yield
    finally:
        for pid in [runjob.pid, *(pids or [])]:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        runjob.communicate()


def close_input(runjob: Any) -> None:
    """Let a program go on that waits for the end of its input."""
    runjob.stdin.close()
    # Else communicate() would flush it.
    runjob.stdin = None


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not yet collected does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(pids: list[int]) -> None:
    """Wait until none of the processes is alive."""
    wait_for(lambda: not any(map(is_alive, pids)))


def guards(runjob: Any) -> list[psutil.Process]:
    """The guard processes of a runjob, alive."""
    found = []
    for process in psutil.Process(runjob.pid).children():
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.cmdline()[4:5] == ["guard"]:
                found.append(process)
    return found


def expired(name: str = "prog") -> bool:
    """Whether somebody else could claim the lease, by the database's clock."""
    return RunLease.objects.with_state().get(name=name).state in ("free", "expired")


def gone_before_expiry(pids: list[int], name: str = "prog") -> None:
    """Wait until the processes are gone; never may one be seen alive after the lease has
    expired."""

    def gone() -> bool:
        was_expired = expired(name)
        alive = [pid for pid in pids if is_alive(pid)]
        assert not (was_expired and alive), "alive after the lease had expired"
        return not alive

    wait_for(gone)


def end_backends() -> None:
    """End all other sessions of the database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
