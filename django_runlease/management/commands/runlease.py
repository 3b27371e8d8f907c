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
from ...models import AlertKind, Outcome
from ...runner import FAILED, UNAVAILABLE, USAGE
from ...text import check_name, printable
from ..actions import exporting, looking, monitoring, operating, retention
from ..actions.console import Console, Verdict
from ._errors import OneLineErrors


class Command(OneLineErrors, BaseCommand):
    help = "List the leases, show their history, check them, and pause, resume or break one."
    # An operator may need it in the very moment when something is wrong with the project.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        parser.error = self.usage_error  # type: ignore[method-assign]  # there is no hook for it

        def add(action: str, text: str, *, name: str | None = None) -> argparse.ArgumentParser:
            sub: argparse.ArgumentParser = actions.add_parser(action, help=text, description=text)
            sub.error = self.usage_error  # type: ignore[method-assign]  # there is no hook for it
            if name is not None:
                sub.add_argument("name", metavar="NAME", nargs=name or None)
            sub.add_argument("--json", action="store_true", help="print JSON")
            sub.add_argument("--using", metavar="ALIAS", help="the database of the leases")
            _add_base_options(sub)
            return sub

        leases = add("list", "Show all leases.")
        leases.add_argument(
            "--unused",
            action="store_true",
            help="only those of no known job that nobody holds or has claimed for KEEP_RUNS",
        )
        add("show", "Show one lease and its last runs.", name="")
        runs = add("history", "Show the last runs, and what operators did between.", name="?")
        _add_filters(runs)
        effects = add("effects", "Show the external actions that jobs have begun.", name="?")
        effects.add_argument(
            "--uncertain",
            action="store_true",
            help="only those that were never confirmed, by a holder that is gone",
        )
        for listing, shown in ((runs, history.RUNS_SHOWN), (effects, None)):
            listing.add_argument("--limit", type=int, default=shown, metavar="N", help="how many")
        pause = add("pause", "Make every claim of a lease decline. Its holder goes on.", name="")
        resume = add("resume", "Let a paused lease be claimed again.", name="")
        breaking = add("break", "Take a lease away from its holder.", name="")
        _add_break_options(breaking)
        _add_prune_options(add("prune", "Remove what is older than it is kept for."))
        metrics = add("metrics", "Print the metrics for Prometheus.")
        metrics.add_argument("--output", metavar="FILE", help="replace this file, all at once")
        check = add("check", "Say what is wrong: exit 1 for a warning, 2 if critical.", name="?")
        check.add_argument(
            "--notify", action="store_true", help="tell the admins, once of each incident"
        )
        silence = add("silence", "Let nobody be told of an alert.", name="")
        _add_silence_options(silence)
        for action in (pause, resume, breaking, silence):
            action.add_argument("--reason", default="", metavar="TEXT", help="why, for the others")

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
            for named in ("name", "remove"):
                if options.get(named) is not None:
                    check_name(options[named])
            act = retention.unused if options.get("unused") else _ACTIONS[action]
            act(console, alias, **options)


_ACTIONS: dict[str, Callable[..., None]] = {
    "list": looking.leases,
    "show": looking.lease,
    "history": looking.runs,
    "effects": looking.effects,
    "pause": operating.pause,
    "resume": operating.resume,
    "break": operating.break_lease,
    "prune": retention.prune,
    "metrics": exporting.export,
    "check": monitoring.check,
    "silence": monitoring.silence,
}


def _add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--outcome",
        action="append",
        choices=Outcome.values,
        metavar="OUTCOME",
        help=f"one of {', '.join(Outcome.values)}; may be given several times",
    )
    when = "an instant with its UTC offset (ISO 8601), or how long ago (2h)"
    parser.add_argument("--since", metavar="WHEN", help=f"started then or later: {when}")
    parser.add_argument("--until", metavar="WHEN", help=f"started then or earlier: {when}")
    parser.add_argument("--host", help="where the tick came, or the holder was")
    parser.add_argument(
        "--stats",
        action="store_true",
        help="instead of the runs, what they come to: success rate, durations, declined ticks",
    )
    parser.add_argument(
        "--actions", action="store_true", help="instead of the runs, only what operators did"
    )


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


def _add_prune_options(parser: argparse.ArgumentParser) -> None:
    for option, what in (("--keep-runs", "runs"), ("--keep-declines", "declined ticks")):
        setting = option.strip("-").replace("-", "_").upper()
        parser.add_argument(
            option, metavar="DURATION", help=f"how long to keep {what}, in place of {setting}"
        )
    parser.add_argument(
        "--remove", metavar="NAME", help="instead, remove this lease, which is unused"
    )
    parser.add_argument("--yes", action="store_true", help="with --remove, do not ask")


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
