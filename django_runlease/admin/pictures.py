"""What happened in a period, as pictures with their words."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..history import Row
from ..models import Outcome
from . import charts, words
from .events import DECLINES, EVENTS, WRONG, Event
from .figures import DECLINES as MOST_TICKS
from .figures import SPARKS, Bar, Pause, Recent, Window
from .reasons import reason
from .sparklines import sparkline as picture_of

PIXEL = 1 / 1_000
"""Of the width of a timeline."""


def timeline(window: Window, scale: charts.Scale, *, key: str, title: str) -> SafeString:
    """The lane of one lease."""
    return charts.timeline(
        scale,
        [*_merged(window.runs, scale)],
        [tick.start for tick in window.ticks],
        window.overlaps,
        [band(pause) for pause in window.pauses],
        key=key,
        title=title,
        says=summary(window),
        drawn_since=window.drawn_since,
    )


def sparkline(found: Recent) -> SafeString:
    """The durations of the last runs, and which of them came after declined ticks."""
    runs = found.runs[-SPARKS:]
    ticks = tuple(tick for tick in found.declines if tick.start >= runs[0].start)
    # No older ones have been read.
    cut = (DECLINES,) if len(ticks) == MOST_TICKS else ()
    window = Window(runs=runs, ticks=ticks)
    label = words.listed([*_ends(runs, cut=False), *_events(window, cut)])
    picture = picture_of(runs, ticks, label=label, tones=words.TONES)
    return format_html('<span title="{}">{}</span>', label, picture)


def summary(window: Window) -> str:
    """How many runs there were, how they ended, and what was odd."""
    events = _events(window, EVENTS if window.cut else ())
    return words.listed([*_ends(window.runs, cut=window.cut), *events])


def _ends(runs: Sequence[Bar], *, cut: bool) -> Iterator[str]:
    count = len(runs)
    text = ngettext("%(count)s run", "%(count)s runs", _number(count, cut))
    yield text % {"count": words.at_least(count, cut=cut)}
    for outcome in Outcome:
        count = sum(run.outcome == outcome for run in runs)
        if count:
            text = _ended(outcome, _number(count, cut))
            yield text % {"count": words.at_least(count, cut=cut)}


def _events(window: Window, cut: Collection[Event]) -> Iterator[str]:
    """How often what else happened; of those in *cut* there may be more."""
    for event in EVENTS:
        if count := event.count(window):
            told = words.at_least(count, cut=event in cut)
            yield event.counted % {"number": _number(count, event in cut), "count": told}


def _number(count: int, cut: bool) -> int:
    """By which the form of a word goes: "1 or more" goes with that of several."""
    return count + cut


def _ended(outcome: Outcome, count: int) -> str:
    """How many ended so; or have not."""
    return {
        Outcome.RUNNING: ngettext("%(count)s running", "%(count)s running", count),
        Outcome.SUCCEEDED: ngettext("%(count)s succeeded", "%(count)s succeeded", count),
        Outcome.FAILED: ngettext("%(count)s failed", "%(count)s failed", count),
        Outcome.DECLINED: ngettext("%(count)s declined", "%(count)s declined", count),
        Outcome.LOST: ngettext("%(count)s lost", "%(count)s lost", count),
        Outcome.TIMED_OUT: ngettext("%(count)s timed out", "%(count)s timed out", count),
        Outcome.STALLED: ngettext("%(count)s stalled", "%(count)s stalled", count),
        Outcome.TERMINATED: ngettext("%(count)s terminated", "%(count)s terminated", count),
        Outcome.ABANDONED: ngettext("%(count)s abandoned", "%(count)s abandoned", count),
    }[outcome]


def mark(run: Bar) -> charts.Mark:
    return charts.Mark(
        start=run.start,
        end=run.end,
        tone=words.tone(run.outcome),
        says=note(run),
        signs=_signs(run),
    )


def _signs(run: Bar) -> tuple[str, ...]:
    happened = {
        "takeover": run.is_takeover,
        "break": run.is_broken,
        "wrong": words.tone(run.outcome) == "bad",
    }
    return tuple(sign for sign, is_there in happened.items() if is_there)


def band(pause: Pause) -> charts.Band:
    return charts.Band(start=pause.start, end=pause.end, says=_pause_note(pause))


def _pause_note(pause: Pause) -> str:
    """One pause in a line."""
    facts = {"start": words.exact(pause.start), "end": words.exact(pause.end)}
    lasts, over = _("paused since %(start)s"), _("paused from %(start)s to %(end)s")
    parts = [(lasts if pause.lasts else over) % facts, pause.by, pause.reason]
    return words.listed(parts)


def _merged(runs: Sequence[Bar], scale: charts.Scale) -> Iterator[charts.Mark]:
    """Those that nobody could tell apart as one: of the same colour, with less than a pixel between
    them, and without a takeover or a break."""
    gap = (scale.until - scale.since) * PIXEL
    group: list[Bar] = []
    for each in runs:
        if group and not _are_one(group[-1], each, gap):
            yield _one(group)
            group = []
        group.append(each)
    if group:
        yield _one(group)


def _are_one(last: Bar, each: Bar, gap: float) -> bool:
    alike = words.tone(last.outcome) == words.tone(each.outcome)
    is_odd = any((run.is_takeover or run.is_broken) for run in (last, each))
    return alike and not is_odd and 0 <= each.start - last.end < gap


def _one(group: list[Bar]) -> charts.Mark:
    if len(group) == 1:
        return mark(group[0])
    start, end = group[0].start, group[-1].end
    facts = {"count": len(group), "start": words.exact(start), "end": words.exact(end)}
    says = _("%(count)s runs from %(start)s to %(end)s") % facts
    signs = _signs(group[0])
    return charts.Mark(
        start=start, end=end, tone=words.tone(group[0].outcome), says=says, signs=signs
    )


def note(run: Bar) -> str:
    """One run in a line."""
    parts: list[object] = [
        str(dict(Outcome.choices).get(run.outcome, run.outcome)),
        words.exact(run.start),
        words.length(run.length),
        run.holder,
        reason(run.reason, run.outcome),
    ]
    if run.took_over_from:
        parts.append(_("took over from %(holder)s") % {"holder": run.took_over_from})
    return words.listed(parts)


def trend(window: Window, scale: charts.Scale, found: Row, *, key: str) -> SafeString:
    """How long the runs took, with the median, the 95th percentile and the interval; and what each
    line stands for."""
    runs = [mark(run) for run in window.ended]
    levels = [
        (charts.Level(length=length, kind=kind), text % {"length": words.length(length)})
        for kind, length, text in (
            ("every", found["every"], _("every %(length)s")),
            ("p95", found["duration"]["p95"], _("95%% within %(length)s")),
            ("median", found["duration"]["median"], _("half within %(length)s")),
        )
        if length
    ]
    picture = charts.trend(
        scale,
        runs,
        [level for level, _text in levels if not level.is_above(runs)],
        key=key,
        title=_("How long the runs took"),
        says=words.listed(text for _level, text in levels),
    )
    told = [*_ways(runs), *(_told(level, text, runs) for level, text in levels)]
    signs = format_html_join("", "<li>{} {}</li>", told)
    return format_html('{}<ul class="runlease-legend">{}</ul>', picture, signs)


def _ways(runs: Sequence[charts.Mark]) -> Iterator[tuple[SafeString, object]]:
    """In which ways *runs* ended, with their signs."""
    tones = {run.tone for run in runs}
    ended = Outcome.SUCCEEDED.label, WRONG, Outcome.TERMINATED.label
    for tone, label in zip(("good", "bad", "warn"), ended, strict=True):
        if tone in tones:
            yield charts.dot_sign(tone), label


def _told(level: charts.Level, text: str, runs: Sequence[charts.Mark]) -> tuple[SafeString, str]:
    """The sign of a level and its words; of one that is not drawn, the words alone."""
    if level.is_above(runs):
        return SafeString(""), _("%(level)s: far above all that is drawn") % {"level": text}
    return charts.line_sign(level), text
