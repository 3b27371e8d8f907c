"""The tables that stand beside the pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from ..history import Row
from ..models import Outcome, State
from . import words
from .events import DECLINES, EVENTS
from .figures import Bar, Pause, Window
from .reasons import DECLINED, reason


def rows(link: Callable[[int], str], bars: Iterable[Bar]) -> list[dict[str, Any]]:
    """Runs and declined ticks, each with what there is to say of it; *link* gives the page of a
    run by its key, or nothing."""
    return [_row(link, bar) for bar in bars]


def rows_of(link: Callable[[int], str], window: Window, most: int) -> list[dict[str, Any]]:
    """The *most* newest of all that is drawn, the newest first: runs, declined ticks and pauses."""
    found: list[Bar | Pause] = [*window.ticks[::-1], *window.runs[::-1], *window.pauses]
    newest = sorted(found, key=attrgetter("start"), reverse=True)[:most]
    return [_pause_row(each) if isinstance(each, Pause) else _row(link, each) for each in newest]


def _pause_row(pause: Pause) -> dict[str, Any]:
    return {
        "outcome": words.badge(State.PAUSED, State.PAUSED.label),
        "start": words.at(pause.start),
        "length": words.length(pause.length),
        "holder": words.clear(pause.by) if pause.by else "",
        "why": words.lines([words.clear(pause.reason)] if pause.reason else []),
    }


def _row(link: Callable[[int], str], bar: Bar) -> dict[str, Any]:
    declined = bar.outcome == Outcome.DECLINED
    why = [words.clear(text) for text in [reason(bar.reason, bar.outcome)] if text]
    if bar.took_over_from:
        why.append(format_html(_("took over from {}"), words.clear(bar.took_over_from)))
    return {
        "url": link(bar.pk),
        "outcome": words.outcome(bar.outcome),
        "start": words.at(bar.start),
        "length": "" if declined else words.length(bar.length),
        "wait": words.length(bar.wait),
        "delay": words.length(bar.delay),
        "host": words.clear(bar.host) if bar.host else "",
        "holder": words.clear(bar.holder) if bar.holder else "",
        "why": words.lines(why),
    }


def outcomes(found: Row) -> list[tuple[object, int, str]]:
    """How the runs of a period ended: how many did so, and which share of all they are."""
    counts, runs = found["outcomes"], found["runs"]
    return [
        (words.outcome(value), counts[value], words.percent(counts[value] / runs))
        for value in Outcome.values
        if value in counts
    ]


def oddities(found: Row, window: Window) -> list[tuple[str, str]]:
    """What else happened in the period, and how often: ticks declined, by reason; takeovers,
    breaks, overlaps and pauses, of those that are drawn."""
    declines = [
        (_("Declined: %(why)s") % {"why": DECLINED[why]}, str(count))
        for why, count in found["declines"].items()
    ]
    return [*declines, *_events(window)]


def _events(window: Window) -> Iterator[tuple[str, str]]:
    for event in EVENTS:
        # Those have been told by reason.
        if event is not DECLINES and (count := event.count(window)):
            yield capfirst(event.label), words.at_least(count, cut=window.cut)
