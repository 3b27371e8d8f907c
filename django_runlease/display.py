"""Leases and runs as people read them on a terminal.

Everything that comes out of the database goes through :func:`printable`: a name, a holder or a
reason may hold what somebody else wrote, and must not steer the terminal.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.core.management.color import Style

from .models import EffectState, Outcome, State
from .store import Broken
from .terms import short
from .text import printable

Row = Mapping[str, Any]

WIDTH = 80
NARROWEST = 4
"""Terminal columns to which a column that can be shortened shrinks at most."""
GAP = "  "
ELLIPSIS = "…"

_ROLES = {
    State.HELD: "SUCCESS",
    State.EXPIRED: "ERROR",
    State.PAUSED: "WARNING",
    Outcome.RUNNING: "MIGRATE_HEADING",
    Outcome.SUCCEEDED: "SUCCESS",
    Outcome.TERMINATED: "WARNING",
    Outcome.FAILED: "ERROR",
    Outcome.LOST: "ERROR",
    Outcome.TIMED_OUT: "ERROR",
    Outcome.STALLED: "ERROR",
    Outcome.ABANDONED: "ERROR",
}

_EFFECT_ROLES = {
    EffectState.STARTED: "ERROR",
    EffectState.CONFIRMED: "SUCCESS",
    EffectState.FAILED: "WARNING",
}


# -- text and its width


def width(text: str) -> int:
    """How many columns of a terminal *text* takes."""
    return len(text) if text.isascii() else sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def cut_end(text: str, room: int) -> str:
    """*text* in at most *room* columns, with … for what its end lost."""
    return text if width(text) <= room else _beginning(text, room - 1) + ELLIPSIS


def cut_middle(text: str, room: int) -> str:
    """*text* in at most *room* columns, with … for what its middle lost."""
    if width(text) <= room:
        return text
    end = _end(text, (room - 1) // 2)
    return _beginning(text, room - 1 - width(end)) + ELLIPSIS + end


def _beginning(text: str, room: int) -> str:
    for index, char in enumerate(text):
        room -= _char_width(char)
        if room < 0:
            return text[:index]
    return text


def _end(text: str, room: int) -> str:
    end = _beginning(text[::-1], room)[::-1]
    # A mark whose letter is cut off would settle on the ellipsis.
    while end and _char_width(end[0]) == 0:
        end = end[1:]
    return end


def _wrapped(text: str, room: int) -> Iterator[str]:
    while width(text) > room:
        line = _beginning(text, room)
        yield line
        text = text[len(line) :]
    yield text


# -- tables


class Cell(NamedTuple):
    """Printable text, and the role of ``Style`` that colours it."""

    text: str
    role: str = ""

    def painted(self, style: Style) -> str:
        return str(getattr(style, self.role)(self.text)) if self.role else self.text


@dataclass(frozen=True, kw_only=True)
class Column:
    title: str
    cut: Callable[[str, int], str] | None = None
    """How a text that is too long is shortened; None: it never is."""
    right: bool = False


def table(
    columns: Sequence[Column], rows: Iterable[Sequence[Cell]], style: Style, room: int = WIDTH
) -> str:
    """Lines of aligned cells below a line of titles, at most *room* columns wide."""
    lines = [[Cell(column.title) for column in columns], *rows]
    widths = _fitted(columns, [max(map(width, texts)) for texts in _texts(lines)], room)
    return "\n".join(
        GAP.join(
            _padded(cell, column, size, style)
            for cell, column, size in zip(line, columns, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def _texts(lines: Sequence[Sequence[Cell]]) -> Iterator[list[str]]:
    for column in zip(*lines, strict=True):
        yield [cell.text for cell in column]


def _fitted(columns: Sequence[Column], wanted: list[int], room: int) -> list[int]:
    """*wanted*, with the widest of the columns that can be shortened shrunk until all fit."""
    widths = [
        min(size, room) if column.cut else size
        for column, size in zip(columns, wanted, strict=True)
    ]
    while sum(widths) + len(GAP) * (len(widths) - 1) > room:
        size, index = max(
            (size if column.cut else 0, -index)
            for index, (column, size) in enumerate(zip(columns, widths, strict=True))
        )
        if size <= NARROWEST:
            break
        widths[-index] -= 1
    return widths


def _padded(cell: Cell, column: Column, size: int, style: Style) -> str:
    if column.cut:
        cell = cell._replace(text=column.cut(cell.text, size))
    padding = " " * (size - width(cell.text))
    painted = cell.painted(style)
    return padding + painted if column.right else painted + padding


# -- leases


def lease_table(leases: Iterable[Row], style: Style, room: int = WIDTH) -> str:
    """One line for each lease: its name, state with ages, holder and generation."""
    columns = [
        Column(title="NAME", cut=cut_middle),
        Column(title="STATE"),
        Column(title="HOLDER", cut=cut_middle),
        Column(title="GENERATION", right=True),
    ]
    rows = [
        [
            Cell(printable(lease["name"])),
            _state(lease),
            Cell(printable(lease["holder"])),
            Cell(str(lease["generation"])),
        ]
        for lease in leases
    ]
    return table(columns, rows, style, room)


def lease_page(lease: Row, style: Style, room: int = WIDTH) -> str:
    """All that is known of one lease, labelled, and its last runs (``lease["runs"]``)."""
    labelled = [(label, cell) for label, cell in _labelled(lease) if cell.text]
    indent = max(width(label) for label, _ in labelled) + len(GAP)
    value_room = max(room - indent, NARROWEST)
    lines = []
    for label, cell in labelled:
        for text in _wrapped(cell.text, value_room):
            lines.append(label.ljust(indent) + cell._replace(text=text).painted(style))
            label = ""
    runs = run_table(lease["runs"], style, room, named=False) if lease["runs"] else "No run yet."
    return "\n".join([*lines, "", runs])


def _labelled(lease: Row) -> Iterator[tuple[str, Cell]]:
    yield "Name", Cell(printable(lease["name"]))
    yield "State", _state(lease)
    yield "Holder", Cell(printable(lease["holder"]))
    yield "Generation", Cell(str(lease["generation"]))
    for label, key in (("TTL", "ttl"), ("Every", "every")):
        yield label, Cell("" if lease[key] is None else short(lease[key]))
    for key in ("claimed_at", "renewed_at", "expires_at", "not_before", "last_tick"):
        yield key.removesuffix("_at").replace("_", " ").capitalize(), Cell(moment(lease[key]))
    yield "Progress", Cell(_progress(lease["progress"]))
    yield "Paused by", Cell(printable(lease["paused_by"]))
    yield "Reason", Cell(printable(lease["paused_reason"]))


def _progress(progress: Any) -> str:
    if not isinstance(progress, Mapping):
        return ""
    total = progress.get("total")
    count = f"{progress.get('done')}" + (f" of {total}" if total is not None else "")
    message = progress.get("message")
    return printable(f"{count}: {message}" if message else count)


def moment(iso: str | None) -> str:
    """An instant of the history for people, to the second."""
    return f"{iso[:10]} {iso[11:19]} UTC" if iso else ""


def _state(lease: Row) -> Cell:
    state, expires_in = lease["state"], lease["expires_in"]
    if state == State.EXPIRED:
        words = [f"expired {age(expires_in)} ago"]
    elif state == State.HELD:
        words = [held_for(lease), f"expires in {age(expires_in)}"]
    else:
        words = [state]
        if expires_in is not None:
            words.append(held_for(lease) if expires_in > 0 else "expired")
    if lease["due_in"] is not None and expires_in is None:
        words.append(f"due in {age(lease['due_in'])}")
    return Cell(", ".join(words), _ROLES.get(state, ""))


def _duration(run: Row) -> str:
    return "?" if run["duration"] is None else short(run["duration"])


def age(seconds: float | None) -> str:
    """How far an instant lies from now, whichever way, in whole seconds: ``2m 10s``; ``?`` for one
    that no calendar has."""
    return "?" if seconds is None else short(int(abs(seconds)))


def held_for(lease: Row) -> str:
    """``held 2m 10s``."""
    return "held" if lease["held_for"] is None else f"held {age(lease['held_for'])}"


# -- runs


def run_table(runs: Iterable[Row], style: Style, room: int = WIDTH, *, named: bool = True) -> str:
    """One line for each run: when, of which lease (if *named*), how it ended, after how long,
    who ran it (or where the declined tick came), and why it ended so."""
    columns = [
        Column(title="WHEN (UTC)"),
        *([Column(title="NAME", cut=cut_middle)] if named else []),
        Column(title="OUTCOME"),
        Column(title="DURATION", right=True),
        Column(title="BY", cut=cut_middle),
        Column(title="REASON", cut=cut_end),
    ]
    rows = [
        [
            # Without the year, so that names and reasons have room.
            Cell(run["started_at"][5:19].replace("T", " ")),
            *([Cell(printable(run["lease_name"]))] if named else []),
            _outcome(run),
            Cell("" if run["outcome"] == Outcome.DECLINED else _duration(run)),
            *map(Cell, _by_and_reason(run)),
        ]
        for run in runs
    ]
    return table(columns, rows, style, room)


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


# -- external effects


def effect_table(effects: Iterable[Row], style: Style, room: int = WIDTH) -> str:
    """One line for each external action: when it was begun, of which lease, what it is, what is
    known of it, after how many attempts, and what it gave or why it failed."""
    columns = [
        Column(title="BEGUN (UTC)"),
        Column(title="NAME", cut=cut_middle),
        Column(title="EFFECT", cut=cut_middle),
        Column(title="STATE"),
        Column(title="ATTEMPTS", right=True),
        Column(title="RESULT", cut=cut_end),
    ]
    rows = [
        [
            Cell(effect["started_at"][5:19].replace("T", " ")),
            Cell(printable(effect["lease_name"])),
            Cell(printable(" ".join([effect["kind"], *map(_as_text, effect["key"])]))),
            Cell(printable(effect["state"]), _EFFECT_ROLES.get(effect["state"], "")),
            Cell(str(effect["attempts"])),
            Cell(printable(effect["reason"] or _as_text(effect["result"], none=""))),
        ]
        for effect in effects
    ]
    return table(columns, rows, style, room)


def _as_text(value: Any, none: str = "null") -> str:
    return none if value is None else json.dumps(value, ensure_ascii=False)


# -- what an operator did, or is about to do


def paused(lease: Row) -> str:
    text = f"{printable(lease['name'])}: paused; every claim declines until it is resumed."
    if lease["expires_in"] is not None and lease["expires_in"] > 0:
        text += f" Its holder {printable(lease['holder'])} goes on."
    return text


def resumed(lease: Row, *, was_paused: bool) -> str:
    name = printable(lease["name"])
    return f"{name}: resumed." if was_paused else f"{name}: it was not paused."


def before_break(lease: Row, *, at_once: bool) -> str:
    """What somebody who is about to break *lease* has to know."""
    name, expires_in = printable(lease["name"]), lease["expires_in"]
    if expires_in is None:
        return f"{name} is free. A break only lifts its minimum hold.{_still_paused(lease)}"
    since = f"held by {printable(lease['holder'])} since {moment(lease['claimed_at'])}"
    if expires_in <= 0:
        what = f"{name} was {since} and expired {age(expires_in)} ago."
        when = "The next claim may come at once, with or without a break."
        if group := printable(str((lease["holder_process"] or {}).get("group", ""))):
            when = f"Without a break, claims on its host wait for process group {group} to end."
    elif at_once:
        what = f"{name} is {since} ({held_for(lease)})."
        when = "--now gives up exclusion: the next claim may come at once, beside that holder."
    else:
        what = f"{name} is {since} ({held_for(lease)})."
        when = f"The next claim may come in {age(expires_in)}, when the lease would have expired."
    return f"{what}\nIts holder may still be running. {when}{_still_paused(lease)}"


def after_break(lease: Row, broken: Broken, *, at_once: bool, tick_forgotten: bool) -> str:
    """What a break did; *lease* is how it left the lease."""
    name = printable(lease["name"])
    if not broken.was_held:
        text = f"{name}: it was free, so only its minimum hold was lifted."
    else:
        when = "at once, since the lease had expired."
        if at_once:
            when = "at once: exclusion is given up."
        elif lease["due_in"] is not None:
            when = f"in {age(lease['due_in'])}, at {moment(lease['not_before'])}."
        holder = printable(broken.holder)
        text = (
            f"{name}: broken. It was held by {holder}, which may still be running.\n"
            f"The next claim may come {when}"
        )
    if tick_forgotten:
        text += " Its last tick may run again."
    return text + _still_paused(lease)


def _still_paused(lease: Row) -> str:
    return " It stays paused until it is resumed." if lease["paused"] else ""
