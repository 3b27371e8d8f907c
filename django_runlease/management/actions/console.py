"""The terminal, pipe or test that an action writes to."""

from __future__ import annotations

import getpass
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.core.management.color import Style, no_style

from ... import display, history, jobs
from ...display import Page
from ...history import Row
from ...holder import this_process
from ...runner import FAILED, USAGE

INTERRUPTED = 130

CLEAR_LINE = "\x1b[K"
"""Ends a line on a terminal whose former content was longer."""


class Verdict(CommandError):
    """An exit code, after everything has been said."""


class Console:
    """Where an action of *command* writes: JSON if *as_json*, else text, coloured on a terminal."""

    def __init__(self, command: BaseCommand, *, as_json: bool, coloured: bool) -> None:
        self._stdout, self._stderr = command.stdout, command.stderr
        self._as_json = as_json
        # Django's own choice looks at the process's stdout, which need not be this one.
        on_colours = command.stdout.isatty() and _environment_takes_colours()
        self.style = command.style if coloured or on_colours else no_style()
        self._draw = display.plain
        if on_colours and _is_coloured(self.style) and _can_draw(command.stdout):
            from ...display.drawn import drawn

            self._draw = drawn

    def write(self, data: Row | list[Row], text: Callable[[], str]) -> None:
        if self._as_json:
            self._stdout.write(history.to_json(data))
        else:
            self.say(text())

    def say(self, text: str) -> None:
        """Write *text* as it is, JSON or not."""
        self._stdout.write(_encodable(text, self._stdout))

    def warn(self, text: str) -> None:
        """Write *text* to stderr."""
        self._stderr.write(_encodable(text, self._stderr))

    @contextmanager
    def progress(self) -> Iterator[Callable[[str], None]]:
        """In the block, the call that it gives shows a line on a terminal, in place of the last;
        elsewhere nothing. The line goes to stderr, and is gone after the block."""
        if not self._stderr.isatty():
            yield lambda line: None
            return

        def show(line: str) -> None:
            room = shutil.get_terminal_size().columns - 1
            self._stderr.write(f"\r{line[:room]}{CLEAR_LINE}", lambda text: text, ending="")
            self._stderr.flush()

        try:
            yield show
        finally:
            show("")

    def lay_out(self, describe: Callable[[Any], Page], rows: Any, empty: str = "") -> str:
        """*rows* as wide as the terminal, or of 80 columns where there is none."""
        if not rows:
            return empty
        room = shutil.get_terminal_size().columns if self._stdout.isatty() else display.WIDTH
        return self._draw(describe(rows), self.style, room)

    def confirm(
        self,
        warning: str,
        *,
        question: str = "Break it?",
        without_terminal: str = "break asks before it takes a lease away",
    ) -> None:
        """Return if a person at the terminal says yes to *question*. Raises CommandError else."""
        if sys.stdin is None or not sys.stdin.isatty():
            raise CommandError(
                f"{without_terminal}, and there is no terminal: add --yes", returncode=USAGE
            )
        # To stderr, because stdout may be JSON.
        asked = _encodable(f"{warning}\n{question} [y/N] ", self._stderr)
        try:
            self._stderr.write(asked, lambda text: text, ending="")
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


def _environment_takes_colours() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in ("dumb", "unknown")


def _is_coloured(style: Style) -> bool:
    return bool(style.SUCCESS("") != "")


def _can_draw(stream: Any) -> bool:
    """Whether rich is installed, and the stream takes the lines that it draws."""
    encoding = getattr(stream, "encoding", None) or ""
    return find_spec("rich") is not None and encoding.lower().replace("-", "") == "utf8"


def _encodable(text: str, stream: Any) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
