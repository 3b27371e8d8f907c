"""What the page of one run shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Outcome
from . import words
from .reasons import reason

_Facts = Iterator[tuple[str, object]]


def run_context(run: Any) -> dict[str, Any]:
    """All that the template takes, besides what the admin gives to each."""
    return {
        "headline": _headline(run),
        "times": list(_times(run)),
        "who": list(_who(run)),
        "error": run.error,
        "error_end": _last_line(run.error),
        "output": run.output,
        "output_end": _last_line(run.output),
        "ended": run.outcome not in (Outcome.DECLINED, Outcome.RUNNING),
    }


def _headline(run: Any) -> SafeString:
    badge, why = words.outcome(run.outcome), reason(run.reason, run.outcome)
    return format_html("{}: {}", badge, words.name(why)) if why else badge


def _times(run: Any) -> _Facts:
    ended = run.end is not None
    lines = [words.at(run.start), words.ago(run.now - run.start)]
    if run.outcome == Outcome.DECLINED:
        yield _("Declined"), words.lines(lines)
    else:
        yield _("Started"), words.lines(lines)
        yield _("Finished"), words.at(run.end) if ended else _("it is still running")
        yield _("Duration"), words.length(run.until - run.start)
        yield _("Waited for the lease"), words.length(run.waited_seconds) or words.nothing()
    if run.tick_epoch is not None:
        yield _("Scheduled for"), words.at(run.tick_epoch)
    yield _("Started after its tick"), words.length(run.lag_seconds) or words.nothing()


def _who(run: Any) -> _Facts:
    if run.outcome == Outcome.DECLINED:
        yield _("Tick on"), words.name(run.host) if run.host else words.nothing()
        yield _("Held by"), words.name(run.holder) if run.holder else words.nothing()
    else:
        yield _("Holder"), words.name(run.holder)
        yield _("Host"), words.name(run.host)
        yield _("Generation"), run.generation
    yield _("Started by"), words.trigger(run.trigger)
    if run.took_over_from:
        yield _("Took over from"), words.name(run.took_over_from)
    if run.exit_code is not None:
        yield _("Exit code"), run.exit_code


def _last_line(text: str) -> str:
    lines = text.rstrip().splitlines()
    return lines[-1][:500] if lines else ""
