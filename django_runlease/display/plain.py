"""Pages as lines of text, for pipes and for any terminal."""

from __future__ import annotations

from django.core.management.color import Style

from .page import BAR, GAP, WIDTH, Cell, Grid, Page, fitted


def plain(page: Page, style: Style, room: int = WIDTH) -> str:
    """*page* in at most *room* columns, if it can do with them, coloured by *style*."""
    return "\n\n".join(_grid(grid, style) for grid in fitted(page, room))


def _grid(grid: Grid, style: Style) -> str:
    lines = [grid.heading] if grid.heading else []
    for line in grid.lines:
        cells = zip(line, grid.widths, grid.right, strict=True)
        lines.append((" " * GAP).join(_padded(*cell, style) for cell in cells).rstrip())
    return "\n".join(lines)


def _padded(cell: Cell, size: int, right: bool, style: Style) -> str:
    padding = " " * (size - cell.width)
    painted = _bar(cell) + cell.painted(style)
    return padding + painted if right else painted + padding


def _bar(cell: Cell) -> str:
    if cell.share is None:
        return ""
    room = BAR - 2
    done = int(cell.share * room)
    return f"[{'#' * done}{'-' * (room - done)}]" + (" " if cell.text else "")
