"""How much room text takes on a terminal, and how it is made to fit."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

ELLIPSIS = "…"


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


def wrapped(text: str, room: int) -> Iterator[str]:
    """*text* in lines of at most *room* columns (two at least), broken at spaces if it has any."""
    while width(text) > room:
        line = _beginning(text, room)
        # A space that just did not fit ends a word too.
        at = text.rfind(" ", 1, len(line) + 1)
        if at > 0:
            line = text[:at]
        yield line
        text = text[len(line) :].removeprefix(" ")
    yield text


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
