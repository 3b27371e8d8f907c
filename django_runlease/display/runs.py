"""Runs and declined ticks."""

from __future__ import annotations

from collections.abc import Iterable

from ..history import Row
from ..models import Outcome
from ..text import printable
from .page import Cell, Column, Page, Table
from .text import cut_end, cut_middle
from .times import brief_moment, length

_ROLES = {
    Outcome.RUNNING: "MIGRATE_HEADING",
    Outcome.SUCCEEDED: "SUCCESS",
    Outcome.TERMINATED: "WARNING",
    Outcome.FAILED: "ERROR",
    Outcome.LOST: "ERROR",
    Outcome.TIMED_OUT: "ERROR",
    Outcome.STALLED: "ERROR",
    Outcome.ABANDONED: "ERROR",
}


def run_table(runs: Iterable[Row], *, named: bool = True, heading: str = "") -> Page:
    """One line for each run: when, of which lease (if *named*), how it ended, after how long,
    who ran it (or where the declined tick came), and why it ended so."""
    rows = [run_line(run, named=named) for run in runs]
    return [Table(run_columns(named=named), rows, heading)]


def run_columns(*, named: bool) -> list[Column]:
    return [
        Column(title="WHEN (UTC)"),
        *([Column(title="NAME", cut=cut_middle)] if named else []),
        Column(title="OUTCOME"),
        Column(title="DURATION", right=True),
        Column(title="BY", cut=cut_middle),
        Column(title="REASON", cut=cut_end),
    ]


def run_line(run: Row, *, named: bool) -> list[Cell]:
    return [
        Cell(brief_moment(run["started_at"])),
        *([Cell(printable(run["lease_name"]))] if named else []),
        _outcome(run),
        Cell("" if run["outcome"] == Outcome.DECLINED else length(run["duration"])),
        *map(Cell, _by_and_reason(run)),
    ]


def decline_table(declines: Iterable[Row], *, heading: str = "") -> Page:
    """One line for each declined tick of one lease: when, where it came, and why."""
    columns = [
        Column(title="WHEN (UTC)"),
        Column(title="BY", cut=cut_middle),
        Column(title="REASON", cut=cut_end),
    ]
    rows = [
        [Cell(brief_moment(run["started_at"])), *map(Cell, _by_and_reason(run))] for run in declines
    ]
    return [Table(columns, rows, heading)]


def _outcome(run: Row) -> Cell:
    return Cell(printable(run["outcome"]).replace("_", " "), _ROLES.get(run["outcome"], ""))


def _by_and_reason(run: Row) -> tuple[str, str]:
    by, reason = run["holder"] or run["host"], run["reason"]
    if not reason and run["exit_code"]:
        reason = f"exit code {run['exit_code']}"
    if run["outcome"] == Outcome.DECLINED:
        by = run["host"]
        reason += f" by {run['holder']}" if run["holder"] and reason == "held" else ""
    return printable(by), printable(reason)
