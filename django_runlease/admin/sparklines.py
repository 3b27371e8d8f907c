"""The lengths of the last runs, so small that it stands in a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .charts import number

WIDTH, GAP, TOP, HEIGHT = 4, 1, 5, 22
TICK_HEIGHT = 5


class Timed(Protocol):
    """What is drawn of a run."""

    @property
    def start(self) -> float: ...
    @property
    def length(self) -> float: ...
    @property
    def outcome(self) -> str: ...


def sparkline(
    runs: Sequence[Timed], ticks: Iterable[Timed], *, label: str, tones: dict[str, str]
) -> SafeString:
    """A bar for each of *runs*, as high as its length; below, a mark before the run that followed
    a declined one of *ticks*. *tones* has the colours of outcomes that are not bad."""
    step = WIDTH + GAP
    longest = max((run.length for run in runs), default=0.0) or 1.0
    bars = format_html_join(
        "",
        "{}",
        (
            (_bar(tones.get(run.outcome, "bad"), index * step, run.length / longest),)
            for index, run in enumerate(runs)
        ),
    )
    places = sorted({_place(tick, runs) for tick in ticks})
    bottom = TOP + HEIGHT
    marks = format_html_join(
        "",
        '<rect class="runlease-tick" x="{}" y="{}" width="3" height="{}"/>',
        ((max(place * step - 2, 0), bottom + 2, TICK_HEIGHT - 2) for place in places),
    )
    return format_html(
        '<svg class="runlease-spark" width="{}" height="{}" role="img" aria-label="{}">{}{}</svg>',
        max(len(runs), 1) * step + 2,
        bottom + TICK_HEIGHT,
        label,
        bars,
        marks,
    )


def _bar(tone: str, x: int, share: float) -> SafeString:
    """One bar: with a dot on top if the run went wrong, hollow if it was stopped, and narrow while
    it goes on."""
    height = max(2.0, HEIGHT * share)
    y = TOP + HEIGHT - height
    if tone == "warn":
        hollow = (
            '<rect class="runlease-hollow runlease-warn" x="{}" y="{}" width="{}" height="{}"/>'
        )
        inner = WIDTH - 1
        return format_html(hollow, x + 0.5, number(y + 0.5), inner, number(height - 1))
    inset = 1 if tone == "active" else 0
    dot = ""
    if tone == "bad":
        at = x + WIDTH / 2, number(y - 3)
        dot = format_html(
            '<circle class="runlease-fill runlease-bad" cx="{}" cy="{}" r="1.5"/>', *at
        )
    return format_html(
        '<rect class="runlease-fill runlease-{}" x="{}" y="{}" width="{}" height="{}"/>{}',
        tone,
        x + inset,
        number(y),
        WIDTH - 2 * inset,
        number(height),
        dot,
    )


def _place(tick: Timed, runs: Sequence[Timed]) -> int:
    """How many of *runs* began before *tick* did."""
    return sum(run.start <= tick.start for run in runs)
