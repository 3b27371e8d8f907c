"""What operators did, alone or among the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..history import Row
from ..models import ActionKind
from ..text import printable
from .page import Cell, Column, Page, Table
from .runs import run_columns, run_line
from .text import cut_end, cut_middle
from .times import brief_moment, moment

_ROLES = {ActionKind.PAUSED: "WARNING", ActionKind.BROKEN: "ERROR", ActionKind.REMOVED: "WARNING"}


def action_table(actions: Iterable[Row], *, named: bool = True, heading: str = "") -> Page:
    """One line for each action: when, on which lease (if *named*), what, who, why, and what else
    there is to know."""
    columns = [
        Column(title="WHEN (UTC)"),
        *([Column(title="NAME", cut=cut_middle)] if named else []),
        Column(title="ACTION"),
        Column(title="BY", cut=cut_middle),
        Column(title="REASON", cut=cut_end),
        Column(title="DETAIL", cut=cut_end),
    ]
    rows = [
        [
            *_who_and_what(action, named=named),
            Cell(printable(action["by"])),
            Cell(printable(action["reason"])),
            Cell(_detail(action)),
        ]
        for action in actions
    ]
    return [Table(columns, rows, heading)]


def history_table(rows: Iterable[Row]) -> Page:
    """Runs and actions of operators in the order of *rows*, one line each, in the columns of the
    runs."""
    lines = [_line(row) if "kind" in row else run_line(row, named=True) for row in rows]
    return [Table(run_columns(named=True), lines)]


def _line(action: Row) -> list[Cell]:
    reason, detail = printable(action["reason"]), _detail(action)
    why = f"{reason} ({detail})" if reason and detail else reason or detail
    who_and_what = _who_and_what(action, named=True)
    return [*who_and_what, Cell(""), Cell(printable(action["by"])), Cell(why)]


def _who_and_what(action: Row, *, named: bool) -> Iterator[Cell]:
    yield Cell(brief_moment(action["at"]))
    if named:
        yield Cell(printable(action["lease_name"]))
    yield Cell(printable(action["kind"]), _ROLES.get(action["kind"], ""))


def _detail(action: Row) -> str:
    detail = action["detail"] if isinstance(action["detail"], Mapping) else {}
    return printable(", ".join(_parts(action["kind"], detail, action["at"])))


def _parts(kind: str, detail: Mapping[str, Any], at: str) -> Iterator[str]:
    if kind == ActionKind.BROKEN:
        yield from _break(detail, at)
    if "alert" in detail:
        until = f" until {moment(str(detail['until']))}" if detail.get("until") else ""
        yield f"{detail['alert']}{until}"
    if kind == ActionKind.REMOVED:
        yield f"at generation {detail.get('generation')}"


def _break(detail: Mapping[str, Any], at: str) -> Iterator[str]:
    free_at = detail.get("free_at")
    if not detail.get("was_held"):
        yield "it was free"
    else:
        yield f"held by {detail.get('holder')}, generation {detail.get('generation')}"
        waits = free_at is not None and str(free_at) > at
        yield f"free at {moment(str(free_at))}" if waits else "free at once"
    if ended := detail.get("connections_ended"):
        yield f"{ended} connection{'' if ended == 1 else 's'} ended"
    if detail.get("tick_forgotten"):
        yield "last tick forgotten"
