"""What the reader of an alert can do about it in the admin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..history import Row
from ..models import AlertKind, Outcome
from .actions import BREAK, SILENCE
from .base import ReadOnly
from .confirming import url
from .links import runs_of, sees_runs

RUNS = {
    AlertKind.CONTENTION: (Outcome.DECLINED.value, gettext_lazy("Its declined ticks")),
    AlertKind.FAILING: ("", gettext_lazy("Its runs")),
    AlertKind.LOST: (Outcome.LOST.value, gettext_lazy("Its lost runs")),
}
"""The kinds that the history explains; the outcome of the runs that do, and what these are."""

HOLDERS = (AlertKind.STARVED, AlertKind.STUCK, AlertKind.GHOST)
"""The kinds that a break may end."""


def steps(
    site: ReadOnly, request: HttpRequest, lease: Any, alert: Row
) -> Iterator[tuple[str, object]]:
    """Where to go, with what the link says; nothing that the reader may not do."""
    kind = alert["kind"]
    if kind in RUNS and sees_runs(site, request):
        outcome, label = RUNS[AlertKind(kind)]
        yield runs_of(site, lease.name, outcome), label
    if kind in HOLDERS and BREAK.may(request) and BREAK.applies(lease):
        yield url(site, BREAK, lease), BREAK.label
    if kind == AlertKind.UNCERTAIN:
        yield "#runlease-effects", _("Which they are")
    if SILENCE.may(request):
        is_silenced = alert["silenced"]
        yield (
            url(site, SILENCE, lease, kind),
            _("Change the silence") if is_silenced else SILENCE.label,
        )
