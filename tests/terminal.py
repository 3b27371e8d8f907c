"""``manage.py runlease`` on a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import tty
from collections.abc import Callable, Iterator
from subprocess import Popen
from typing import Any

import pytest

from .support import DEADLINE, spawn_manage


class Terminal:
    """A process with a terminal of *columns* as its stdin and as *also* what is named."""

    def __init__(
        self, *words: str, also: tuple[str, ...] = ("stderr",), columns: int = 80, **env: str
    ) -> None:
        self.ours, theirs = pty.openpty()
        tty.setraw(theirs)
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.shown = ""
        streams = dict.fromkeys(("stdin", *also), theirs)
        self.process: Popen[str] = spawn_manage("runlease", *words, env=env, **streams)
        os.close(theirs)

    def read_until(self, text: str) -> None:
        while text not in self.shown:
            assert select.select([self.ours], [], [], DEADLINE)[0], self.shown
            self.shown += os.read(self.ours, 10_000).decode()

    def type(self, text: str) -> None:
        os.write(self.ours, text.encode())

    def end(self) -> tuple[int, str]:
        """The exit code, and what went to a stdout that is not the terminal."""
        out, _ = self.process.communicate(timeout=DEADLINE)
        try:
            while chunk := os.read(self.ours, 10_000):
                self.shown += chunk.decode()
        except OSError:
            pass
        return self.process.returncode, out


Start = Callable[..., Terminal]


@pytest.fixture
def terminal() -> Iterator[Start]:
    started: list[Terminal] = []

    def start(*words: str, **more: Any) -> Terminal:
        started.append(Terminal(*words, **more))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()
        os.close(each.ours)
