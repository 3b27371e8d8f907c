"""Worker processes that count under one lease, and are really stopped while they do.

One process sets Django up and forks the workers of each round, so that a round costs no imports.
A worker stops itself, at a point that the round's schedule names: no other process could hit it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import psutil
from django.db import DatabaseError, connection, connections

from django_runlease import HeldLease, LeaseLost
from django_runlease.claiming import Claim
from django_runlease.models import RunLease

from .support import DEADLINE, spawn_python, wait_for

WORKERS, INCREMENTS = 8, 200
TTL = 0.5
PAUSE = 0.1
"""Seconds between two tries to claim."""

INCREMENT = """
    WITH counted AS (UPDATE billing_invoice SET cents = cents + 1 WHERE id = %s RETURNING cents)
    INSERT INTO billing_invoice (customer, cents, charged_by, due_at)
    SELECT 'log', cents, %s, now() FROM counted
"""

Turn = tuple[int, Any, int]
"""What is done under one claim: so many increments; one more with a stop ``"before"`` its fence,
``"in"`` it, or in it with the increment ``"written"``, or a stop so many milliseconds after the
claim, wherever that may be; and how many more are tried by a worker that does not care."""

LAST: Turn = (49, None, 0)
"""What a turn is that the schedule does not name."""


@dataclass
class Round:
    """What became of the increments of one round."""

    accepted: int = 0
    refused: int = 0
    stops: int = 0
    ended: int = 0
    """How many workers have done all of theirs."""


class Nursery:
    """The process that forks the workers."""

    def __init__(self) -> None:
        code = "from tests.counting import serve; serve()"
        self._process = spawn_python(code, stdin=-1)

    def count(self, counter: int, turns: list[Turn]) -> Round:
        """Have a round counted, in the invoice *counter*. Turn *n* belongs to generation *n + 1*,
        whoever claims that."""
        self._process.stdin.write(json.dumps([counter, turns]) + "\n")
        self._process.stdin.flush()
        done = Round()
        with ThreadPoolExecutor(WORKERS) as pool:
            waking = []
            while (words := self._process.stdout.readline().split()) != ["end"]:
                match words:
                    case ["stopped", pid, generation]:
                        done.stops += 1
                        waking.append(pool.submit(wake, int(pid), int(generation), done))
                    case ["done", accepted, refused]:
                        done.ended += 1
                        done.accepted += int(accepted)
                        done.refused += int(refused)
                    case _:
                        raise AssertionError(self.end())
        for woken in waking:
            woken.result()
        return done

    def end(self) -> str:
        """Leave no process behind; what they had to complain about."""
        if self._process.poll() is None:
            for process in psutil.Process(self._process.pid).children():
                process.send_signal(SIGKILL)
            self._process.send_signal(SIGKILL)
        if self._process.stdin.closed:
            return ""
        return self._process.communicate()[1]


@contextmanager
def nursery() -> Iterator[Nursery]:
    there = Nursery()
    try:
        yield there
    finally:
        there.end()


def wake(pid: int, generation: int, done: Round) -> None:
    """Wake a worker that has stopped once another has claimed, or nobody is left who could."""
    try:
        wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        wait_for(lambda: done.ended == WORKERS - 1 or last_generation() > generation)
    finally:
        os.kill(pid, SIGCONT)
        connections.close_all()


def last_generation() -> int:
    return RunLease.objects.get().generation


# -- in the processes


def serve() -> None:
    """Fork the workers of a round for each line of the standard input; tell its end."""
    for line in sys.stdin:
        counter, turns = json.loads(line)
        workers = []
        for _ in range(WORKERS):
            pid = os.fork()
            if not pid:
                Worker(counter).work(turns)
                os._exit(0)
            workers.append(pid)
        failed = [status for pid in workers if (status := os.waitpid(pid, 0)[1])]
        say("failed" if failed else "end")


class Worker:
    def __init__(self, counter: int) -> None:
        self.counter = counter
        self.left, self.accepted = INCREMENTS, 0

    def work(self, turns: list[Turn]) -> None:
        """Try all increments of one worker, and tell how many were accepted."""
        while self.left:
            held = claimed()
            mine = held.generation - 1
            self.take(held, *(turns[mine] if mine < len(turns) else LAST))
            held.release()
            time.sleep(PAUSE)
        say("done", self.accepted, INCREMENTS - self.accepted)

    def take(self, held: HeldLease, before: int, stop: Any, after: int) -> None:
        """Take one turn."""
        timer = threading.Timer(stop / 1000, halt, [held]) if isinstance(stop, int) else None
        if timer:
            timer.start()
        for each in [None] * before + [stop] + [None] * after:
            if self.left:
                self.left -= 1
                self.accepted += self.increment(held, each)
        if timer:
            timer.join()

    def increment(self, held: HeldLease, stop: Any) -> bool:
        """Whether it was accepted."""
        if stop == "before":
            halt(held)
        try:
            with held.fence(), connection.cursor() as cursor:
                if stop == "in":
                    halt(held)
                cursor.execute(INCREMENT, [self.counter, held.generation])
                if stop == "written":
                    halt(held)
        except LeaseLost:
            return False
        except DatabaseError:
            # The server has ended it, because it was silent in the fence.
            connection.close()
            return False
        return True


def claimed() -> HeldLease:
    terms = {"ttl": TTL, "heartbeat": False, "wait": 4 * DEADLINE}
    attempts = Claim.from_options("job", terms).start()
    while (held := attempts.once()) is None:
        time.sleep(PAUSE)
    assert held, held
    return held


def halt(held: HeldLease) -> None:
    say("stopped", os.getpid(), held.generation)
    os.kill(os.getpid(), SIGSTOP)


def say(*words: object) -> None:
    # In one write: the processes share this pipe.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())
