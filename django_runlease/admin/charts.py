"""Pictures: figures in, SVG out. No page, no query, no translation.

Under a strict Content-Security-Policy nothing may stand in ``style``: geometry is in attributes,
colours come from the classes of ``runlease/admin.css``. Across, lengths are percentages, so that a
picture is as wide as its place while its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

SPARK_WIDTH, SPARK_GAP, SPARK_HEIGHT = 4, 1, 24
TICK_HEIGHT = 5


class Timed(Protocol):
    """What is drawn of a run."""

    @property
    def start(self) -> float: ...
    @property
    def length(self) -> float: ...
    @property
    def outcome(self) -> str: ...


_CHECK = '<path d="M2 6.5 5 9.5 10.5 3" fill="none" stroke="currentColor" stroke-width="2"/>'
_CROSS = '<path d="M2.5 2.5 9.5 9.5 M9.5 2.5 2.5 9.5" stroke="currentColor" stroke-width="2"/>'
_PLAY = '<path d="M3 1.5 10.5 6 3 10.5Z" fill="currentColor"/>'
_PAUSE = '<path d="M2.5 2h2.5v8H2.5z M7 2h2.5v8H7z" fill="currentColor"/>'
_RING = '<circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="1.8"/>'
_ALARM = (
    '<path d="M6 .8 11.6 11H.4Z" fill="currentColor"/>'
    '<path d="M5.3 4.2h1.4v3.4H5.3z M5.3 8.4h1.4v1.4H5.3z" class="runlease-cut"/>'
)
_CLOCK = (
    '<circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M6 3.2V6L8 7.4" fill="none" stroke="currentColor" stroke-width="1.4"/>'
)
_DASH = '<path d="M2 5h8v2H2z" fill="currentColor"/>'
_STOP = '<path d="M2.5 2.5h7v7h-7z" fill="currentColor"/>'

# Every one is a shape of its own: what is told by a colour is told without it, too.
_ICONS = {
    "free": _RING,
    "held": _PLAY,
    "expired": _CLOCK,
    "paused": _PAUSE,
    "stalled": _ALARM,
    "running": _PLAY,
    "succeeded": _CHECK,
    "declined": _DASH,
    "terminated": _STOP,
    "timed_out": _CLOCK,
    "warning": _ALARM,
    "critical": _ALARM,
}


def icon(word: str) -> SafeString:
    """The sign of a state, an outcome or a severity; what it says stands beside it in words."""
    shape = SafeString(_ICONS.get(word, _CROSS))
    return format_html(
        '<svg class="runlease-icon" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"'
        ' focusable="false">{}</svg>',
        shape,
    )


def share_bar(
    share: float, *, label: str, tone: str, mark: float | None = None, of: float | None = None
) -> SafeString:
    """A bar that is filled by *share* of 1, with a line at *mark*.

    With *of*, it stands for so many seconds, and a script may let it run down.
    """
    width = _percent(min(max(share, 0.0), 1.0))
    fill = format_html(
        '<rect class="runlease-fill runlease-{}" width="{}" height="6" rx="2"/>', tone, width
    )
    line = SafeString("")
    if mark is not None:
        line = format_html(
            '<rect class="runlease-mark" x="{}" width="2" height="6"/>', _percent(mark)
        )
    data = "" if of is None else format_html(' data-runlease-of="{}"', _number(of))
    return format_html(
        '<svg class="runlease-bar" width="100%" height="6" role="img" aria-label="{}"{}>'
        '<rect class="runlease-track" width="100%" height="6" rx="2"/>{}{}</svg>',
        label,
        data,
        fill,
        line,
    )


def sparkline(
    runs: Sequence[Timed], ticks: Iterable[Timed], *, label: str, tones: dict[str, str]
) -> SafeString:
    """A bar for each of *runs*, as high as its length; below, a mark before the run that followed
    a declined one of *ticks*. *tones* has the colours of outcomes that are not bad."""
    step = SPARK_WIDTH + SPARK_GAP
    longest = max((run.length for run in runs), default=0.0) or 1.0
    bars = format_html_join(
        "",
        '<rect class="runlease-fill runlease-{}" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (
                tones.get(run.outcome, "bad"),
                index * step,
                _number(SPARK_HEIGHT - height),
                SPARK_WIDTH,
                _number(height),
            )
            for index, run in enumerate(runs)
            for height in [max(2.0, SPARK_HEIGHT * run.length / longest)]
        ),
    )
    places = sorted({_place(tick, runs) for tick in ticks})
    marks = format_html_join(
        "",
        '<rect class="runlease-tick" x="{}" y="{}" width="3" height="{}"/>',
        ((max(place * step - 2, 0), SPARK_HEIGHT + 2, TICK_HEIGHT - 2) for place in places),
    )
    return format_html(
        '<svg class="runlease-spark" width="{}" height="{}" role="img" aria-label="{}">{}{}</svg>',
        max(len(runs), 1) * step + 2,
        SPARK_HEIGHT + TICK_HEIGHT,
        label,
        bars,
        marks,
    )


def _place(tick: Timed, runs: Sequence[Timed]) -> int:
    """How many of *runs* began before *tick* did."""
    return sum(run.start <= tick.start for run in runs)


def _percent(share: float) -> str:
    return f"{_number(100 * share)}%"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
