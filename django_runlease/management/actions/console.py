"""The terminal, pipe or test that an action writes to."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import no_style

from ... import display, history, jobs
from ...history import Row
from ...holder import this_process
from ...runner import FAILED, USAGE

INTERRUPTED = 130


class Verdict(CommandError):
    """An exit code, after everything has been said."""


class Console:
    """Where an action of *command* writes: JSON if *as_json*, else text, coloured on a terminal."""

    def __init__(self, command: BaseCommand, *, as_json: bool, coloured: bool) -> None:
        self._stdout, self._stderr = command.stdout, command.stderr
        self._as_json = as_json
        # Django's own choice looks at the process's stdout, which need not be this one.
        self._style = command.style if coloured or command.stdout.isatty() else no_style()

    def write(self, data: Row | list[Row], text: Callable[[], str]) -> None:
        if self._as_json:
            self._stdout.write(history.to_json(data))
        else:
            self._stdout.write(_encodable(text(), self._stdout))

    def lay_out(self, layout: Callable[..., str], rows: Any, empty: str = "") -> str:
        """*rows* as wide as the terminal, or of 80 columns where there is none."""
        if not rows:
            return empty
        room = shutil.get_terminal_size().columns if self._stdout.isatty() else display.WIDTH
        return layout(rows, self._style, room)

    def confirm(self, warning: str) -> None:
        """Return if a person at the terminal says yes to breaking. Raises CommandError else."""
        if sys.stdin is None or not sys.stdin.isatty():
            raise CommandError(
                "break asks before it takes a lease away, and there is no terminal: add --yes",
                returncode=USAGE,
            )
        # To stderr, because stdout may be JSON.
        question = _encodable(f"{warning}\nBreak it? [y/N] ", self._stderr)
        try:
            self._stderr.write(question, lambda text: text, ending="")
            self._stderr.flush()
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            raise CommandError("interrupted: nothing changed", returncode=INTERRUPTED) from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("not confirmed: nothing changed", returncode=FAILED)


def find_lease(name: str, alias: str) -> Row:
    """The lease as ``list`` shows it; exit 2 if there is none."""
    lease = history.lease(name, alias)
    if lease is not None:
        return lease
    remedy = "`manage.py runlease list` shows them all"
    if jobs.is_known(name):
        remedy = "the job has not run yet, and its first run makes it"
    raise CommandError(f"there is no lease {name!r}: {remedy}", returncode=USAGE)


def check_known(name: str, alias: str) -> None:
    """Exit 2 unless *name* has a lease or is a job."""
    if history.lease(name, alias) is None and not jobs.is_known(name):
        find_lease(name, alias)


def operator() -> str:
    """Who gives this command: ``alice@web1``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        # No passwd entry, as often in a container. Python 3.13 made it an OSError.
        user = str(os.getuid())
    return f"{user}@{this_process().host}"


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
