"""Why runs ended, as the history keeps it, in the language of the reader.

The history is in English. What this package writes there is known again by its form, with its
facts: holders, lengths, instants. All else was said by jobs and operators, and stays as it is.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import islice

from django.utils.translation import gettext_lazy

from ..models import Outcome
from ..phrases import Phrase
from ..phrases import gettext as _
from ..terms import in_unit, pair
from . import words

DECLINED = {
    "held": gettext_lazy("the lease was held"),
    "busy": gettext_lazy("the lease's row was locked"),
    "paused": gettext_lazy("the lease was paused"),
    "not_due": gettext_lazy("too early: its minimum hold lasted, or the wait after a break"),
    "same_tick": gettext_lazy("the tick had had its run"),
}
"""Why ticks are declined."""

FORMS = (
    # The store closes a run that its holder has not, or finds out why a lease is gone.
    _("broken by %(who)s"),
    _("never closed; its lease has changed hands"),
    _("never released; %(who)s took over"),
    _("never released; its lease had expired"),
    _("never released; its process is gone"),
    _("it expired before it was renewed"),
    _("it expired and %(who)s took it over"),
    _("it expired and somebody else has run since"),
    _("its row was deleted"),
    _("the claim's answer was lost, so the job did not run"),
    # A holder loses its lease, or stops its job.
    _("the database has renewed nothing for %(length)s, since %(moment)s"),
    _("it was not renewed for %(length)s, since %(moment)s"),
    _(
        "the job has made no progress since %(moment)s, for longer than its stall_after of"
        " %(length)s"
    ),
    _("the lease is lost: %(why)s"),
    _("the lease is no longer ours, so nothing is written"),
    _("the lease is ours, but it was not a moment ago"),
    _("the lease was lost before the program started"),
    _("only %(length)s of the lease can be trusted, less than %(least)s"),
    _("ran longer than its timeout of %(length)s"),
    _("made no progress for %(length)s"),
    _("expired"),
    _("stopped by %(signal)s"),
    # A program ends.
    _("exit code %(number)s"),
    _("killed by %(signal)s"),
    _("killed by signal %(number)s"),
)

_LENGTH = r"[\d.e+-]+?(?:ms|[dhms])(?: \d+[hms])?"
_FACTS = {
    "length": _LENGTH,
    "least": _LENGTH,
    "moment": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC",
    "number": r"-?\d+",
    "signal": r"SIG\S+",
}


def _pattern(form: Phrase) -> re.Pattern[str]:
    # Every second piece is the name of a fact.
    pieces = re.split(r"%\((\w+)\)s", form)
    shapes = (
        f"(?P<{piece}>{_FACTS.get(piece, '.+')})" if n % 2 else re.escape(piece)
        for n, piece in enumerate(pieces)
    )
    return re.compile("".join(shapes), re.DOTALL)


_PATTERNS = {form: _pattern(form) for form in FORMS}


CUTS = 10
"""At how many semicolons a reason is taken apart."""


def reason(text: str, outcome: str) -> str:
    """Why a run ended so, or a tick was declined, in the active language: as far as this package
    has written it."""
    if outcome == Outcome.DECLINED and text in DECLINED:
        return str(DECLINED[text])
    return _translated(text)


def _translated(text: str) -> str:
    # What a holder says of its end follows what became of its lease.
    cuts = islice(re.finditer("; ", text), CUTS)
    pieces = [(text[: cut.start()], text[cut.end() :]) for cut in cuts]
    known = [(_known(first), _known(then), then) for first, then in pieces]
    for first, second, _then in known:
        if first and second:
            return f"{first}; {second}"
    if whole := _known(text):
        return whole
    return next((f"{first}; {then}" for first, _second, then in known if first), text)


def _known(text: str) -> str | None:
    for form, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(text):
            facts = {name: _fact(name, value) for name, value in found.groupdict().items()}
            return form.translated() % facts
    return None


def _fact(name: str, text: str) -> str:
    if name in ("length", "least"):
        return _length(text)
    if name == "moment":
        return _moment(text)
    return _translated(text) if name == "why" else text


def _length(text: str) -> str:
    counts = [re.fullmatch("(.+?)(ms|[dhms])", word) for word in text.split()]
    first, *more = (in_unit(*found.groups()) for found in counts if found)
    return (pair(first, *more) if more else first).translated()


def _moment(text: str) -> str:
    instant = datetime.strptime(text, "%Y-%m-%d %H:%M:%S UTC").replace(tzinfo=UTC)
    return words.exact(instant.timestamp())
