"""``manage.py runlease``: parse, call, and map what happened to text, JSON and exit codes."""

from __future__ import annotations

import argparse
import getpass
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.db import DatabaseError, InterfaceError

from ... import display, history, jobs, store
from ...exceptions import RunLeaseError
from ...history import Row
from ...holder import this_process
from ...runner import FAILED, UNAVAILABLE, USAGE
from ...text import check_name, printable
from ._errors import OneLineErrors

INTERRUPTED = 130
RUNS_OF_A_LEASE = 10


class Command(OneLineErrors, BaseCommand):
    help = "List the leases, show their history, and pause, resume or break one."
    # An operator may need it in the very moment when something is wrong with the project.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        parser.error = self.usage_error  # type: ignore[method-assign]

        def add(action: str, text: str, *, name: str | None = None) -> argparse.ArgumentParser:
            sub: argparse.ArgumentParser = actions.add_parser(action, help=text, description=text)
            sub.error = self.usage_error  # type: ignore[method-assign]
            if name is not None:
                sub.add_argument("name", metavar="NAME", nargs=name or None)
            sub.add_argument("--json", action="store_true", help="print JSON")
            sub.add_argument("--using", metavar="ALIAS", help="the database of the leases")
            _add_base_options(sub)
            return sub

        add("list", "Show all leases.")
        add("show", "Show one lease and its last runs.", name="")
        runs = add("history", "Show the last runs, of one lease or of all.", name="?")
        effects = add("effects", "Show the external actions that jobs have begun.", name="?")
        effects.add_argument(
            "--uncertain", action="store_true", help="only those that were never confirmed"
        )
        for listing, shown in ((runs, history.RUNS_SHOWN), (effects, None)):
            listing.add_argument("--limit", type=int, default=shown, metavar="N", help="how many")
        pause = add("pause", "Make every claim of a lease decline. Its holder goes on.", name="")
        pause.add_argument("--reason", default="", metavar="TEXT", help="shown to the others")
        add("resume", "Let a paused lease be claimed again.", name="")
        _add_break_options(add("break", "Take a lease away from its holder.", name=""))

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        # Django's own choice looks at the process's stdout, which need not be this one.
        coloured = options["force_color"] or self.stdout.isatty()
        self._colours = self.style if coloured else no_style()
        alias = _alias(options["using"])
        with _exit_codes(alias):
            if options.get("name") is not None:
                check_name(options["name"])
            run: Callable[..., None] = getattr(self, f"_{action}")
            run(alias, **options)

    def _list(self, alias: str, **options: Any) -> None:
        leases = history.leases(alias)
        empty = "No lease yet: `manage.py runjob NAME` makes the first."
        self._print(leases, lambda: self._laid_out(display.lease_table, leases, empty), options)

    def _show(self, alias: str, name: str, **options: Any) -> None:
        lease = _lease(name, alias)
        lease["runs"] = history.runs(alias, name, limit=RUNS_OF_A_LEASE)
        self._print(lease, lambda: self._laid_out(display.lease_page, lease), options)

    def _history(self, alias: str, name: str | None, limit: int, **options: Any) -> None:
        runs = history.runs(alias, name, limit=limit)
        if name is not None and not runs:
            _check_known(name, alias)
        empty = f"No run yet: `manage.py runjob {name or 'NAME'}` makes the first."
        self._print(runs, lambda: self._laid_out(display.run_table, runs, empty), options)

    def _effects(
        self, alias: str, name: str | None, uncertain: bool, limit: int | None, **options: Any
    ) -> None:
        if limit is None:
            # Of what a person must look at, nothing is left out.
            limit = history.LARGEST_LIMIT if uncertain else history.RUNS_SHOWN
        effects = history.effects(alias, name, uncertain=uncertain, limit=limit)
        if name is not None and not effects:
            _check_known(name, alias)
        empty = "No effect is uncertain." if uncertain else "No effect yet: see held.effect()."
        self._print(effects, lambda: self._laid_out(display.effect_table, effects, empty), options)

    def _pause(self, alias: str, name: str, reason: str, **options: Any) -> None:
        _check_known(name, alias)
        store.pause(name, alias, by=_operator(), reason=reason)
        lease = _lease(name, alias)
        self._print(lease, lambda: display.paused(lease), options)

    def _resume(self, alias: str, name: str, **options: Any) -> None:
        was_paused = _lease(name, alias)["paused"]
        store.resume(name, alias, by=_operator())
        lease = _lease(name, alias)
        self._print(lease, lambda: display.resumed(lease, was_paused=was_paused), options)

    def _break(self, alias: str, name: str, now: bool, forget_tick: bool, **options: Any) -> None:
        found = _lease(name, alias)
        if not options["yes"]:
            self._confirm(display.before_break(found, at_once=now))
        broken = store.break_lease(
            name,
            alias,
            by=_operator(),
            at_once=now,
            force=options["force"],
            forget_tick=forget_tick,
            generation=None if options["yes"] else found["generation"],
        )
        lease = _lease(name, alias)
        text = display.after_break(lease, broken, at_once=now, tick_forgotten=forget_tick)
        self._print(lease, lambda: text, options)

    def _confirm(self, warning: str) -> None:
        if sys.stdin is None or not sys.stdin.isatty():
            raise CommandError(
                "break asks before it takes a lease away, and there is no terminal: add --yes",
                returncode=USAGE,
            )
        # To stderr, because stdout may be JSON.
        question = _encodable(f"{warning}\nBreak it? [y/N] ", self.stderr)
        try:
            self.stderr.write(question, lambda text: text, ending="")
            self.stderr.flush()
            answer = sys.stdin.readline()
        except KeyboardInterrupt:
            raise CommandError("interrupted: nothing changed", returncode=INTERRUPTED) from None
        if answer.strip().lower() not in ("y", "yes"):
            raise CommandError("not confirmed: nothing changed", returncode=FAILED)

    def _laid_out(self, lay_out: Callable[..., str], rows: Any, empty: str = "") -> str:
        """*rows* as wide as the terminal, or of 80 columns where there is none."""
        if not rows:
            return empty
        room = shutil.get_terminal_size().columns if self.stdout.isatty() else display.WIDTH
        return lay_out(rows, self._colours, room)

    def _print(self, data: Row | list[Row], text: Callable[[], str], options: Any) -> None:
        if options["json"]:
            self.stdout.write(history.to_json(data))
        else:
            self.stdout.write(_encodable(text(), self.stdout))


def _add_break_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--now",
        action="store_true",
        help="let the next claim come at once, although the holder may still be running",
    )
    parser.add_argument(
        "--force",
        action="store_true",
        help="end the database connections that keep the lease's row locked",
    )
    parser.add_argument(
        "--forget-tick", action="store_true", help="let the last tick run once more"
    )


def _add_base_options(parser: argparse.ArgumentParser) -> None:
    """Django's options, which it takes before the action only, after it too."""
    for flag in ("--traceback", "--no-color", "--force-color"):
        parser.add_argument(
            flag, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
    for option in ("--settings", "--pythonpath"):
        parser.add_argument(option, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument(
        "-v",
        "--verbosity",
        type=int,
        choices=range(4),
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )


def _lease(name: str, alias: str) -> Row:
    """The lease as ``list`` shows it; exit 2 if there is none."""
    lease = history.lease(name, alias)
    if lease is not None:
        return lease
    remedy = "`manage.py runlease list` shows them all"
    if jobs.is_known(name):
        remedy = "the job has not run yet, and its first run makes it"
    raise CommandError(f"there is no lease {name!r}: {remedy}", returncode=USAGE)


def _check_known(name: str, alias: str) -> None:
    """Exit 2 unless *name* has a lease or is a job."""
    if history.lease(name, alias) is None and not jobs.is_known(name):
        _lease(name, alias)


def _operator() -> str:
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


def _alias(using: str | None) -> str:
    try:
        return store.write_alias(using)
    except RunLeaseError as error:
        raise CommandError(str(error), returncode=USAGE) from error


@contextmanager
def _exit_codes(alias: str) -> Iterator[None]:
    try:
        yield
    except store.Blocked as error:
        raise CommandError(printable(str(error)), returncode=FAILED) from error
    except (ValueError, RunLeaseError) as error:
        raise CommandError(printable(str(error)), returncode=USAGE) from error
    except (DatabaseError, InterfaceError) as error:
        message = f"the lease database {alias!r}: {printable(store.explain(error))}"
        raise CommandError(message, returncode=UNAVAILABLE) from error
