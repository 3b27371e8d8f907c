"""Pictures: figures in, SVG out. No page, no query, no translation.

Under a strict Content-Security-Policy nothing may stand in ``style``: geometry is in attributes,
colours come from the classes of ``runlease/admin.css``. Across, lengths are percentages, so that a
picture is as wide as its place while its text keeps its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString


def share_bar(
    share: float, *, tone: str, mark: float | None = None, of: float | None = None
) -> SafeString:
    """A bar that is filled by *share* of 1, with a line at *mark*; what it says stands beside it in
    words, too.

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
    data = "" if of is None else format_html(' data-runlease-of="{}"', number(of))
    return format_html(
        '<svg class="runlease-bar" width="100%" height="6" aria-hidden="true"{}>'
        '<rect class="runlease-track" width="100%" height="6" rx="2"/>{}{}</svg>',
        data,
        fill,
        line,
    )


LANE_TOP, LANE_HEIGHT = 16, 26
LANE_BOTTOM = LANE_TOP + LANE_HEIGHT
NARROWEST = 0.15
"""How many percent of the width the shortest run takes."""

Ticks = Sequence[tuple[float, str]]
"""The labels of an axis: where they stand, and what they say."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A period across the width of a picture."""

    since: float
    until: float
    ticks: Ticks = ()

    def share(self, instant: float) -> float:
        """Where an instant lies, from 0 to 1; what lies outside, at the edge."""
        span = self.until - self.since
        return min(max((instant - self.since) / span, 0.0), 1.0) if span > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Band:
    """A time that lies behind the runs of a timeline, with what is said of it on hover."""

    start: float
    end: float
    says: str


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A run in a timeline, with what is said of it on hover."""

    start: float
    end: float
    tone: str
    says: str
    signs: tuple[str, ...] = ()
    """Keys of :data:`SIGNS`: what stands above it."""


def timeline(
    scale: Scale,
    runs: Sequence[Mark],
    ticks: Iterable[float],
    overlaps: Iterable[tuple[float, float]],
    pauses: Iterable[Band] = (),
    *,
    key: str,
    title: str,
    says: str,
    drawn_since: float | None = None,
) -> SafeString:
    """One lane: pauses as bands behind it, runs as bars, declined ticks as marks below, takeovers
    and breaks as signs above, and what overlaps on top of all. Before *drawn_since* it is a broken
    line: nothing is known of that time. *key* tells its ids from those of other pictures."""
    bars = format_html_join("", "{}", ((_lane_bar(scale, run),) for run in runs))
    signs = format_html_join(
        "", "{}", ((_sign(scale, run, sign),) for run in runs for sign in run.signs)
    )
    places = sorted({round(scale.share(tick), 3) for tick in ticks})
    declined = format_html_join(
        "",
        "{}",
        ((tick(_percent(place), LANE_BOTTOM + 3),) for place in places),
    )
    double = format_html_join(
        "",
        '<rect class="runlease-overlap" x="{}" y="{}" width="{}" height="{}"/>',
        (
            (x, LANE_TOP - 4, width, LANE_HEIGHT + 8)
            for start, end in overlaps
            for x, width in [_extent(scale, start, end)]
        ),
    )
    bands = format_html_join("", "{}", ((_band(scale, pause),) for pause in pauses))
    body = format_html(
        "{}{}{}{}{}{}{}",
        _lane(scale, drawn_since),
        bands,
        _axis(scale, LANE_TOP, LANE_BOTTOM + 12),
        bars,
        declined,
        signs,
        double,
    )
    height = LANE_BOTTOM + (30 if any(label for _at, label in scale.ticks) else 14)
    return _picture("runlease-timeline", height, body, key=key, title=title, says=says)


def _band(scale: Scale, pause: Band) -> SafeString:
    x, width = _extent(scale, pause.start, pause.end)
    return format_html(
        '<rect class="runlease-paused" x="{}" y="{}" width="{}" height="{}">'
        "<title>{}</title></rect>",
        x,
        LANE_TOP - 6,
        width,
        LANE_HEIGHT + 12,
        pause.says,
    )


def _lane(scale: Scale, drawn_since: float | None) -> SafeString:
    since = 0.0 if drawn_since is None else scale.share(drawn_since)
    undrawn = '<line class="runlease-undrawn" x1="0" x2="{}" y1="{}" y2="{}"/>' if since else ""
    middle = LANE_TOP + LANE_HEIGHT / 2
    return format_html(
        '<rect class="runlease-lane" x="{}" y="{}" width="{}" height="{}"/>{}',
        _percent(since),
        LANE_TOP,
        _percent(1 - since),
        LANE_HEIGHT,
        format_html(undrawn, _percent(since), middle, middle) if undrawn else "",
    )


def _lane_bar(scale: Scale, run: Mark) -> SafeString:
    x, width = _extent(scale, run.start, run.end)
    return bar(run.tone, x, width, LANE_TOP, LANE_HEIGHT, says=run.says)


BARS = {"active": (1 / 3, 1 / 3), "warn": (1 / 2, 1 / 2)}
"""Which part of its lane a run takes that goes on, or that was stopped: how far below the top it
begins, and how high it is. All others take the whole."""


def bar(tone: str, x: str, width: str, top: float, height: float, *, says: str = "") -> SafeString:
    """A run in a lane; however narrow it is, its height tells what its colour does."""
    below, share = BARS.get(tone, (0, 1))
    return format_html(
        '<rect class="runlease-fill runlease-{}" x="{}" y="{}" width="{}" height="{}">{}</rect>',
        tone,
        x,
        number(top + below * height),
        width,
        number(share * height),
        format_html("<title>{}</title>", says) if says else "",
    )


SIGNS = {
    "break": '<path d="M-4 -8 4 0 M4 -8-4 0" fill="none" stroke="currentColor" stroke-width="2"/>',
    "takeover": '<path d="M-5 -9H5L0 -1Z" fill="currentColor"/>',
    "wrong": '<circle cy="-5" r="3" fill="currentColor"/>',
}
"""What stands above a run; the top of the run is at 0."""


def _sign(scale: Scale, run: Mark, sign: str) -> SafeString:
    shape = SafeString(SIGNS[sign])
    if sign == "wrong" and len(run.signs) > 1:
        # Beside what stands there already.
        shape = format_html('<g transform="translate(-9)">{}</g>', shape)
    return format_html(
        '<svg class="runlease-{}" x="{}" y="{}" overflow="visible">{}<title>{}</title></svg>',
        run.tone,
        _percent(scale.share(run.end if sign == "break" else run.start)),
        LANE_TOP,
        shape,
        run.says,
    )


def tick(x: object, y: float) -> SafeString:
    return format_html('<rect class="runlease-tick" x="{}" y="{}" width="2" height="8"/>', x, y)


def _extent(scale: Scale, start: float, end: float) -> tuple[str, str]:
    left, right = scale.share(start), scale.share(end)
    width = max(100 * (right - left), NARROWEST)
    return _percent(min(left, 1 - width / 100)), f"{number(width)}%"


def _axis(scale: Scale, top: int, bottom: int) -> SafeString:
    lines = format_html_join(
        "",
        '<line class="runlease-grid" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>',
        ((_percent(scale.share(at)), top, bottom) for at, _label in scale.ticks),
    )
    labels = format_html_join(
        "",
        '<text class="runlease-label" x="{}" y="{}" text-anchor="{}">{}</text>',
        (
            (_percent(share), bottom + 14, _anchor(share), label)
            for at, label in scale.ticks
            for share in [scale.share(at)]
        ),
    )
    return format_html("{}{}", lines, labels)


def axis(scale: Scale) -> SafeString:
    """The labels alone, above lanes that have none. Who cannot see them hears the instants."""
    return format_html(
        '<svg class="runlease-axis" width="100%" height="20" aria-hidden="true">{}</svg>',
        _axis(scale, 16, 0),
    )


def _anchor(share: float) -> str:
    return "start" if share < 0.04 else "end" if share > 0.96 else "middle"


TREND_TOP, TREND_HEIGHT = 8, 120


@dataclass(frozen=True, kw_only=True)
class Level:
    """A length of time that is drawn across, such as the median."""

    length: float
    kind: str
    """``median``, ``p95`` or ``every``: each is a line of its own look."""

    @property
    def line(self) -> str:
        return f"runlease-level runlease-{self.kind}"

    def is_above(self, runs: Sequence[Mark]) -> bool:
        """Whether it is so far above *runs* that it would press them to the ground."""
        return self.length > 4 * _longest(runs)


def trend(
    scale: Scale, runs: Sequence[Mark], levels: Sequence[Level], *, key: str, title: str, says: str
) -> SafeString:
    """The lengths of *runs* over the time when they began; squares are those that went wrong, rings
    those that were stopped."""
    top = 1.05 * max([_longest(runs), *(level.length for level in levels)])

    def y(length: float) -> float:
        return TREND_TOP + TREND_HEIGHT * (1 - min(max(length, 0.0) / top, 1.0))

    lines = format_html_join(
        "",
        '<line class="{0}" x1="0" x2="100%" y1="{1}" y2="{1}"/>',
        ((level.line, number(y(level.length))) for level in levels),
    )
    dots = format_html_join("", "{}", ((_dot(scale, run, y(run.end - run.start)),) for run in runs))
    bottom = TREND_TOP + TREND_HEIGHT
    body = format_html("{}{}{}", _axis(scale, TREND_TOP, bottom), lines, dots)
    return _picture("runlease-trend", bottom + 20, body, key=key, title=title, says=says)


def line_sign(level: Level) -> SafeString:
    """A piece of the line of *level*, for a legend."""
    return format_html(
        '<svg width="24" height="12" aria-hidden="true">'
        '<line class="{}" x1="0" x2="24" y1="6" y2="6"/></svg>',
        level.line,
    )


def _longest(runs: Sequence[Mark]) -> float:
    return max((run.end - run.start for run in runs), default=0.0) or 1.0


_DOTS = {
    "bad": '<rect x="-3" y="-3" width="6" height="6" fill="currentColor"/>',
    "warn": '<circle class="runlease-hollow" r="3"/>',
}
_DOT = '<circle r="3" fill="currentColor"/>'


def _dot(scale: Scale, run: Mark, y: float) -> SafeString:
    return format_html(
        '<svg class="runlease-{}" x="{}" y="{}" overflow="visible">{}<title>{}</title></svg>',
        run.tone,
        _percent(scale.share(run.start)),
        number(y),
        SafeString(_DOTS.get(run.tone, _DOT)),
        run.says,
    )


def dot_sign(tone: str) -> SafeString:
    """The sign of a run of that *tone*, for a legend."""
    return format_html(
        '<svg class="runlease-{}" width="8" height="12" viewBox="-4 -6 8 12" aria-hidden="true">'
        "{}</svg>",
        tone,
        SafeString(_DOTS.get(tone, _DOT)),
    )


def _picture(
    kind: str, height: int, body: SafeString, *, key: str, title: str, says: str
) -> SafeString:
    return format_html(
        '<svg class="{0}" width="100%" height="{1}" role="img" aria-labelledby="{2}-title"'
        ' aria-describedby="{2}-desc"><title id="{2}-title">{3}</title>'
        '<desc id="{2}-desc">{4}</desc>{5}</svg>',
        kind,
        height,
        key,
        title,
        says,
        body,
    )


def _percent(share: float) -> str:
    return f"{number(100 * share)}%"


def number(value: float) -> str:
    """As an attribute has it."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
