"""Pages drawn by ``rich``, which has to be installed to import this module."""

from __future__ import annotations

from io import StringIO

from django.core.management.color import Style
from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .page import BAR, GAP, WIDTH, Cell, Grid, Page, fitted


def drawn(page: Page, style: Style, room: int = WIDTH) -> str:
    """*page* in at most *room* columns, if it can do with them, in the colours of *style*."""
    grids = list(fitted(page, room))
    # A terminal wraps what is too long for it, where rich would cut it off.
    widest = max([room, *(grid.width for grid in grids)])
    console = Console(
        file=StringIO(),
        force_terminal=True,
        force_jupyter=False,
        # Asked before, as for plain text.
        no_color=False,
        width=widest,
        markup=False,
        emoji=False,
        highlight=False,
    )
    with console.capture() as capture:
        for index, grid in enumerate(grids):
            if index:
                console.print()
            if grid.heading:
                console.rule(Text(grid.heading, "bold"), align="left", style="dim")
            console.print(_table(grid, style))
    return capture.get().removesuffix("\n")


def _table(grid: Grid, style: Style) -> Table:
    # Each column has one space of its own, and one comes from the box. Padding is not counted
    # alike by all versions of rich.
    table = Table(
        box=SIMPLE_HEAD, show_edge=False, show_header=grid.titled, padding=0, pad_edge=False
    )
    titles, *lines = [
        [_cell(*each, style) for each in zip(line, grid.widths, grid.right, strict=True)]
        for line in ([*grid.lines] if grid.titled else [[Cell("")] * len(grid.widths), *grid.lines])
    ]
    for index, (title, size) in enumerate(zip(titles, grid.widths, strict=True)):
        table.add_column(
            title,
            style="bold" if grid.labelled and index == 0 else "",
            width=size + (GAP - 1 if index < len(titles) - 1 else 0),
            # Where the two disagree about the width of a character, rich breaks the line.
            overflow="fold",
        )
    for line in lines:
        table.add_row(*line)
    return table


def _cell(cell: Cell, size: int, right: bool, style: Style) -> RenderableType:
    # Neither is read for markup, nor for names of emoji.
    text = Text.from_ansi(cell.painted(style)) if cell.role else Text(cell.text)
    if right:
        text.pad_left(size - cell.width)
    if cell.share is None:
        return text
    bar = Table.grid(padding=(0, 1, 0, 0))
    bar.add_row(ProgressBar(total=1, completed=cell.share, width=BAR), text)
    return bar
