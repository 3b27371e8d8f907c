"""What the history of a period comes to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from ..history import Row
from ..text import printable
from .page import Cell, Column, Page, Table
from .text import cut_middle
from .times import length

_FIGURES = ("median", "p95", "max")


def statistics_table(rows: Iterable[Row]) -> Page:
    """One line for each lease: its runs and how many of them succeeded, how long they took and
    which part of its interval, and the ticks it declined."""
    columns = [
        Column(title="NAME", cut=cut_middle),
        *(Column(title=title, right=True) for title in ("RUNS", "SUCCEEDED", "DECLINED")),
        *(Column(title=title, right=True) for title in ("MEDIAN", "P95", "MAX", "OF EVERY")),
    ]
    lines = [
        [
            Cell(printable(row["lease_name"])),
            Cell(str(row["runs"])),
            Cell(_percent(row["success_rate"])),
            Cell(str(row["declined"])),
            *(Cell(_length(row["duration"][key])) for key in _FIGURES),
            Cell(_percent(row["share"]["max"])),
        ]
        for row in rows
    ]
    return [Table(columns, lines)]


def summary(row: Row) -> Iterator[tuple[str, Cell]]:
    """The figures of one lease, labelled, for its card; nothing where there are none."""
    if not row["runs"] and not row["declined"]:
        return
    counts = [f"{row['runs']} {'run' if row['runs'] == 1 else 'runs'}"]
    if row["success_rate"] is not None:
        counts.append(f"{_percent(row['success_rate'])} succeeded")
    if row["declined"]:
        counts.append(f"{row['declined']} {'tick' if row['declined'] == 1 else 'ticks'} declined")
    yield "Last week", Cell(", ".join(counts))
    yield "Duration", Cell(_duration(row))
    for key in ("waited", "lag"):
        if row[key]["max"]:
            yield key.capitalize(), Cell(_figures(row[key]))


def _duration(row: Row) -> str:
    share = _percent(row["share"]["max"])
    return _figures(row["duration"]) + (f": up to {share} of every" if share else "")


def _figures(lengths: Mapping[str, float | None]) -> str:
    parts = (f"{key} {length(lengths[key])}" for key in _FIGURES if lengths[key] is not None)
    return ", ".join(parts)


def _length(seconds: float | None) -> str:
    return "" if seconds is None else length(seconds)


def _percent(share: float | None) -> str:
    """Rounded down, so that it is not 100 % where something is missing."""
    return "" if share is None else f"{math.floor(round(1000 * share, 6)) / 10:g} %"
