"""What the signs of the timelines stand for."""

from __future__ import annotations

from collections.abc import Iterator

from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..models import Outcome
from . import words
from .charts import SIGNS, bar, tick
from .events import BREAKS, DECLINES, OVERLAPS, PAUSES, TAKEOVERS, WRONG

BOX = '<rect class="runlease-{}" x="-6" y="1" width="12" height="10"/>'


def legend() -> list[tuple[SafeString, object]]:
    """Each sign with its name."""
    return list(_legend())


def _legend() -> Iterator[tuple[SafeString, object]]:
    yield _bar(Outcome.SUCCEEDED), Outcome.SUCCEEDED.label
    wrong = SafeString(SIGNS["wrong"]) + bar("bad", "-7", "14", 0, 12)
    yield _sample(wrong, tone="bad", top=-9, height=16), WRONG
    yield _bar(Outcome.RUNNING), Outcome.RUNNING.label
    yield _bar(Outcome.TERMINATED), Outcome.TERMINATED.label
    yield _sample(tick(-1, 3)), DECLINES.label
    yield _sample(SafeString(SIGNS["takeover"]), top=-11), TAKEOVERS.label
    yield _sample(SafeString(SIGNS["break"]), top=-10), BREAKS.label
    yield _sample(format_html(BOX, "overlap")), OVERLAPS.label
    yield _sample(format_html(BOX, "paused")), PAUSES.label


def _bar(outcome: Outcome) -> SafeString:
    return _sample(bar(words.tone(outcome), "-7", "14", 0, 12))


def _sample(body: SafeString, *, tone: str = "", top: int = 0, height: int = 12) -> SafeString:
    return format_html(
        '<svg width="14" height="{0}" viewBox="-7 {1} 14 {0}" aria-hidden="true"{2}>{3}</svg>',
        height,
        top,
        format_html(' class="runlease-{}"', tone) if tone else "",
        body,
    )
