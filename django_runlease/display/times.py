"""Instants and lengths of time as people read them."""

from __future__ import annotations

from ..terms import short


def moment(iso: str | None) -> str:
    """An instant of the history, to the second."""
    return f"{iso[:10]} {iso[11:19]} UTC" if iso else ""


def brief_moment(iso: str) -> str:
    """As :func:`moment`, without the year, so that the other columns of a table have room."""
    return iso[5:19].replace("T", " ")


def age(seconds: float | None) -> str:
    """How far an instant lies from now, whichever way, in whole seconds: ``2m 10s``; ``?`` for one
    that no calendar has."""
    return "?" if seconds is None else short(int(abs(seconds)))


def length(seconds: float | None) -> str:
    """A length of time; ``?`` for one that is not known."""
    return "?" if seconds is None else short(seconds)
