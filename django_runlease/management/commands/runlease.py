"""``manage.py runlease``: parse, call an action, and map what it raises to exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError

from ... import history, store
from ...exceptions import RunLeaseError
from ...models import AlertKind
from ...runner import FAILED, UNAVAILABLE, USAGE
from ...text import check_name, printable
from ..actions import looking, monitoring, operating
from ..actions.console import Console, Verdict
from ._errors import OneLineErrors


class Command(OneLineErrors, BaseCommand):
    help = "List the leases, show their history, check them, and pause, resume or break one."
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
            "--uncertain",
            action="store_true",
            help="only those that were never confirmed, by a holder that is gone",
        )
        for listing, shown in ((runs, history.RUNS_SHOWN), (effects, None)):
            listing.add_argument("--limit", type=int, default=shown, metavar="N", help="how many")
        pause = add("pause", "Make every claim of a lease decline. Its holder goes on.", name="")
        pause.add_argument("--reason", default="", metavar="TEXT", help="shown to the others")
        add("resume", "Let a paused lease be claimed again.", name="")
        _add_break_options(add("break", "Take a lease away from its holder.", name=""))
        check = add("check", "Say what is wrong: exit 1 for a warning, 2 if critical.", name="?")
        check.add_argument(
            "--notify", action="store_true", help="tell the admins, once of each incident"
        )
        _add_silence_options(add("silence", "Let nobody be told of an alert.", name=""))

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except Verdict as verdict:
            if not getattr(self, "_called_from_command_line", False):
                raise
            sys.exit(verdict.returncode)

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        console = Console(self, as_json=options["json"], coloured=options["force_color"])
        alias = _alias(options["using"])
        with _exit_codes(alias):
            if options.get("name") is not None:
                check_name(options["name"])
            _ACTIONS[action](console, alias, **options)


_ACTIONS: dict[str, Callable[..., None]] = {
    "list": looking.leases,
    "show": looking.lease,
    "history": looking.runs,
    "effects": looking.effects,
    "pause": operating.pause,
    "resume": operating.resume,
    "break": operating.break_lease,
    "check": monitoring.check,
    "silence": monitoring.silence,
}


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


def _add_silence_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", choices=AlertKind.values, help="such as overrun")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--for", dest="length", metavar="DURATION", help="how long")
    length.add_argument("--until", metavar="ISO8601", help="a moment with its UTC offset")
    length.add_argument("--lift", action="store_true", help="let it be told again")


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
