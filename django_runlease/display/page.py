"""What a page for people consists of, and how it is fitted into the columns of a terminal.

Each kind of page is described one time, as tables, cards and sentences. Fitted into a width they
are grids, all of whose texts have their final length. ``plain`` and ``drawn`` draw these.

Everything that comes out of the database goes through :func:`..text.printable` on its way into a
cell: a name, a holder or a reason may hold what somebody else wrote, and must not steer the
terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from django.core.management.color import Style

from .text import width, wrapped

WIDTH = 80
"""Columns where there is no terminal that has a width."""
NARROWEST = 8
"""Columns to which a column that can be shortened shrinks at most."""
NARROWEST_VALUE = 20
"""Columns that a value of a card has in any case."""
BAR = 20
"""Columns of a bar."""
GAP = 2
"""Columns between two columns of a grid."""


class Cell(NamedTuple):
    """Printable text, and the role of ``Style`` that colours it."""

    text: str
    role: str = ""
    share: float | None = None
    """From 0 to 1: drawn as a bar before the text."""

    def painted(self, style: Style) -> str:
        return str(getattr(style, self.role)(self.text)) if self.role else self.text

    @property
    def width(self) -> int:
        bar = 0 if self.share is None else BAR
        return bar + width(self.text) + (1 if bar and self.text else 0)


@dataclass(frozen=True, kw_only=True)
class Column:
    title: str
    cut: Callable[[str, int], str] | None = None
    """How a text that is too long is shortened; None: it never is."""
    right: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells below a line of titles. Where it does not fit, each row is a card."""

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    heading: str = ""


@dataclass(frozen=True)
class Card:
    """Labels and their values; those without text are left out."""

    lines: Sequence[tuple[str, Cell]]


Block = Table | Card | Cell
Page = Sequence[Block]


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Lines of cells that fit into columns of fixed *widths*."""

    lines: Sequence[Sequence[Cell]]
    widths: Sequence[int]
    right: Sequence[bool]
    heading: str = ""
    titled: bool = False
    """Whether the first line holds the titles of the columns."""
    labelled: bool = False
    """Whether the first column holds labels."""

    @property
    def width(self) -> int:
        return sum(self.widths) + GAP * (len(self.widths) - 1)


def fitted(page: Page, room: int) -> Iterator[Grid]:
    """The blocks of *page* in at most *room* columns, or as few as they can do with."""
    for block in page:
        if isinstance(block, Table):
            yield from _table(block, room)
        elif isinstance(block, Card):
            yield _card(block, room)
        else:
            yield _paragraph(block, room)


def _table(table: Table, room: int) -> Iterator[Grid]:
    titles = [Cell(column.title) for column in table.columns]
    lines = [titles, *table.rows]
    wanted = [max(cell.width for cell in column) for column in zip(*lines, strict=True)]
    widths = _shrunk(table.columns, wanted, room)
    grid = Grid(
        lines=[
            [_cut(*each) for each in zip(line, table.columns, widths, strict=True)]
            for line in lines
        ],
        widths=widths,
        right=[column.right for column in table.columns],
        heading=table.heading,
        titled=True,
    )
    if grid.width <= room:
        yield grid
        return
    if table.heading:
        yield _paragraph(Cell(table.heading), room)
    for row in table.rows:
        labels = [column.title for column in table.columns]
        yield _card(Card(list(zip(labels, row, strict=True))), room)


def _shrunk(columns: Sequence[Column], wanted: list[int], room: int) -> list[int]:
    """*wanted*, with the widest of the columns that can be shortened shrunk until all fit."""
    widths = [
        min(size, room) if column.cut else size
        for column, size in zip(columns, wanted, strict=True)
    ]
    while sum(widths) + GAP * (len(widths) - 1) > room:
        size, index = max(
            (size if column.cut else 0, -index)
            for index, (column, size) in enumerate(zip(columns, widths, strict=True))
        )
        if size <= NARROWEST:
            break
        widths[-index] -= 1
    return widths


def _cut(cell: Cell, column: Column, size: int) -> Cell:
    return cell._replace(text=column.cut(cell.text, size)) if column.cut else cell


def _card(card: Card, room: int) -> Grid:
    told = [(label, cell) for label, cell in card.lines if cell.text]
    labels = max(width(label) for label, _ in told)
    value_room = max(room - labels - GAP, NARROWEST_VALUE)
    lines = []
    for label, value in told:
        for cell in _broken(value, value_room):
            lines.append([Cell(label), cell])
            label = ""
    widths = [labels, max(cell.width for _, cell in lines)]
    return Grid(lines=lines, widths=widths, right=[False, False], labelled=True)


def _paragraph(text: Cell, room: int) -> Grid:
    lines = [[cell] for cell in _broken(text, max(room, NARROWEST_VALUE))]
    return Grid(lines=lines, widths=[max(cell.width for (cell,) in lines)], right=[False])


def _broken(cell: Cell, room: int) -> Iterator[Cell]:
    if cell.width <= room:
        yield cell
        return
    if cell.share is not None and room >= BAR:
        yield Cell("", cell.role, cell.share)
    for text in wrapped(cell.text, room):
        yield Cell(text, cell.role)
