"""``manage.py runjob NAME``: parse, run, map to an exit code."""

from __future__ import annotations

import math
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from django.core.management import BaseCommand, CommandError
from django.core.management.base import CommandParser
from django.db import DatabaseError, InterfaceError

from ... import history, jobs, runner, store
from ...claiming import Claim
from ...conf import conf
from ...exceptions import Declined, RunLeaseError
from ...jobs import Job
from ...output import aside, quiet
from ...runner import CONFLICT, UNAVAILABLE, USAGE, Report
from ...terms import TERM_NAMES, named_duration, resolve, short
from ...text import check_name, printable
from ._errors import OneLineErrors

TERM_HELP = {
    "ttl": "how long the lease lasts without renewal",
    "every": "the interval between ticks, for warnings",
    "at_least": "minimum hold, counted from the claim",
    "timeout": "stop the job after this long (exit 124)",
    "stall_after": "stop the job after this long without progress (exit 124)",
}


ONE_LINE = (CommandError, KeyboardInterrupt, SystemExit)
"""What a job may end with and tell all by its message."""


class JobExit(CommandError):
    """The job's exit code, with a line to print, or without one."""

    def __init__(self, message: str, *, returncode: int, silent: bool = False) -> None:
        super().__init__(message, returncode=returncode)
        self.silent = silent


class Command(OneLineErrors, BaseCommand):
    help = (
        "Run a job under its lease, if nobody else does. NAME is a function registered with @job, "
        'an entry of RUNLEASE["JOBS"], or a management command; or it names the lease under which '
        "a program runs: runjob NAME [options] -- PROGRAM ARG… A DURATION is written as 90, 90s, "
        "5m, 1h30m or PT5M."
    )
    # A fault in another app must not keep this one from its ticks; `check` reports it.
    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **kwargs)
        parse = parser.parse_args

        def parse_args(args: Sequence[str] = (), namespace: Any = None) -> Namespace:
            # argparse takes the words after "--" for NAME where options stand between.
            words = list(args)
            at = words.index("--") if "--" in words else len(words)
            options: Namespace = parse(words[:at], namespace)
            options.program = words[at + 1 :] if at < len(words) else None
            return options

        parser.parse_args = parse_args  # type: ignore[assignment, method-assign]  # there is no hook for it
        parser.error = self.usage_error  # type: ignore[method-assign]  # there is no hook for it
        return parser

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", metavar="NAME")
        add = parser.add_argument
        add("-w", "--wait", metavar="DURATION", help="wait this long for the lease")
        add("-n", "--nonblock", action="store_true", help="decline at once (the default)")
        add("--standby", action="store_true", help="wait for ever, through pauses too")
        add("-E", "--conflict-exit-code", metavar="N", help="exit code of a declined tick")
        for term in TERM_NAMES:
            flag = "--" + term.replace("_", "-")
            add(flag, metavar="DURATION", help=TERM_HELP[term])
        add("--tick", metavar="ISO8601", help="the scheduled moment; each runs once")
        add("--now", action="store_true", help="ignore the minimum hold and the tick")
        add("--grace", metavar="DURATION", default="10s", help="time to clean up when stopped")
        add("--using", metavar="ALIAS", help="the lease's database")
        add("--quiet-success", action="store_true", help="print nothing unless the job fails")
        add(
            "--json",
            action="store_true",
            help="print the run as JSON, and the job's own output on stderr",
        )
        add("--dry-run", action="store_true", help="say what would happen, and do nothing")

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except JobExit as ending:
            if not getattr(self, "_called_from_command_line", False):
                raise
            # Not as Django prints it: a silent one would show the name of its class.
            if not ending.silent:
                self.stderr.write(str(ending))
            sys.exit(ending.returncode)

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            job, claim = _job_and_claim(options)
            conflict_code = _conflict_code(options)
            grace = named_duration("grace", options["grace"]).total_seconds()
        except (ValueError, RunLeaseError) as error:
            raise JobExit(f"runjob: {error}", returncode=USAGE) from error
        try:
            if options["dry_run"]:
                return self._preview(job, claim)
            report = self._run(job, claim, grace, options)
        except runner.Refused as error:
            raise JobExit(f"runjob: {error}", returncode=USAGE) from error
        except runner.Unavailable as error:
            line = printable(f"{claim.name}: the job did not run: {error}")
            raise JobExit(line, returncode=UNAVAILABLE) from error
        if options["json"]:
            self.stdout.write(history.to_json(_row(report, claim)))
        line = printable(f"{claim.name}: {report.message}")
        if report.declined is not None:
            return self._decline(line, conflict_code(report.declined), options["verbosity"])
        return self._finish(line, report, options["verbosity"], tell_where=not job.program)

    def _run(self, job: Job, claim: Claim, grace: float, options: dict[str, Any]) -> Report:
        own_process = getattr(self, "_called_from_command_line", False)
        with (
            aside(wanted=options["json"] and own_process),
            quiet(until_failure=options["quiet_success"] and own_process) as output,
        ):
            report = runner.run(
                job, claim, grace=grace, own_process=own_process, before_exit=output.show
            )
            output.keep = report.exit_code != 0
            return report

    def _preview(self, job: Job, claim: Claim) -> None:
        terms = ", ".join(
            f"{term} {short(length)}"
            for term in TERM_NAMES
            if (length := getattr(claim.terms, term)) is not None
        )
        declined = runner.preview(claim)
        would = "would run now" if declined is None else f"would be declined, {declined}"
        self.stdout.write(printable(f"{claim.name}: {job} {would} ({terms})"))

    def _decline(self, line: str, code: int, verbosity: int) -> None:
        if verbosity >= 2:
            self.stdout.write(line)
        if code:
            raise JobExit(line, returncode=code, silent=True)

    def _finish(self, line: str, report: Report, verbosity: int, *, tell_where: bool) -> None:
        if report.exit_code == 0:
            if verbosity >= 2:
                self.stdout.write(line)
            return
        error = report.error
        if error is not None and tell_where and not isinstance(error, ONE_LINE):
            self.stderr.write("".join(traceback.format_exception(error)))
        raise JobExit(line, returncode=report.exit_code) from error


def _row(report: Report, claim: Claim) -> history.Row:
    alias = store.write_alias(claim.using)
    # Apart, because the job may have left its own connection in any state.
    try:
        row = store.apart(alias, partial(history.run, report.run_id, alias))
    except (DatabaseError, InterfaceError):
        # The exit code says how it went, all the same.
        row = None
    if row is None:
        declined = report.declined
        row = history.unrecorded(
            claim.name,
            outcome=report.outcome,
            reason=declined.reason if declined is not None else report.message,
            holder=declined.holder if declined is not None else "",
            exit_code=report.exit_code,
        )
    return row


def _job_and_claim(options: dict[str, Any]) -> tuple[Job, Claim]:
    """Raises ValueError and RunLeaseError, which say what to write instead."""
    name = check_name(options["name"])
    if options["dry_run"] and options["json"]:
        raise ValueError("--dry-run and --json contradict each other: a dry run leaves no run")
    waits = [flag for flag in ("wait", "nonblock", "standby") if options[flag]]
    if len(waits) > 1:
        raise ValueError(f"--{waits[0]} and --{waits[1]} contradict each other: give one of them")
    wait = (
        0.0 if options["wait"] is None else named_duration("wait", options["wait"]).total_seconds()
    )
    program = options["program"]
    job = jobs.find(name) if program is None else jobs.for_program(name, program)
    claim = Claim(
        name=name,
        terms=resolve(options, job.terms),
        wait=math.inf if options["standby"] else wait,
        standby=options["standby"],
        tick=None if options["tick"] is None else _tick(options["tick"]),
        ignore_schedule=options["now"],
        trigger="runjob",
        using=options["using"],
    )
    return job, claim


def _tick(text: str | datetime) -> datetime:
    if isinstance(text, datetime):
        return text
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--tick: {text!r} is not ISO 8601: write it as 2030-01-31T06:00:00+00:00"
        ) from None


def _conflict_code(options: dict[str, Any]) -> Callable[[Declined], int]:
    """The exit code of a decline: -E, else 75 after waiting in vain, else the setting."""
    given = options["conflict_exit_code"]
    setting = _exit_code(conf.CONFLICT_EXIT_CODE, 'RUNLEASE["CONFLICT_EXIT_CODE"]')
    if given is not None:
        code = _exit_code(given, "-E")
        return lambda declined: code
    waited_for = {"held", "busy", "not_due"} if options["wait"] is not None else set()
    return lambda declined: CONFLICT if declined.reason in waited_for else setting


def _exit_code(value: int | str, where: str) -> int:
    if str(value).isdecimal() and len(str(value)) <= 3 and int(value) <= 255:
        return int(value)
    raise ValueError(f"{where}: {value!r} is not an exit code: write a number from 0 to 255")
