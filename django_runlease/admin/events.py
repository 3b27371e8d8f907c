"""What happens to a lease in a period besides its runs: by one name each, on all pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy

from .figures import Window


@dataclass(frozen=True, kw_only=True)
class Event:
    label: Any
    """What several of it are called, in legends and tables."""
    counted: Any
    """So many of it, in a sentence: ``count`` in words, and the ``number`` that they go by."""
    count: Callable[[Window], int]
    """How many of it are drawn."""


DECLINES = Event(
    label=_("declined ticks"),
    counted=ngettext_lazy("%(count)s declined tick", "%(count)s declined ticks", "number"),
    count=lambda window: len(window.ticks),
)
TAKEOVERS = Event(
    label=_("takeovers"),
    counted=ngettext_lazy("%(count)s takeover", "%(count)s takeovers", "number"),
    count=lambda window: window.takeovers,
)
BREAKS = Event(
    label=_("breaks"),
    counted=ngettext_lazy("%(count)s break", "%(count)s breaks", "number"),
    count=lambda window: window.breaks,
)
OVERLAPS = Event(
    label=_("overlaps"),
    counted=ngettext_lazy("%(count)s overlap", "%(count)s overlaps", "number"),
    count=lambda window: len(window.overlaps),
)
PAUSES = Event(
    label=_("pauses"),
    counted=ngettext_lazy("%(count)s pause", "%(count)s pauses", "number"),
    count=lambda window: len(window.pauses),
)
EVENTS = (DECLINES, TAKEOVERS, BREAKS, OVERLAPS, PAUSES)

WRONG = _("went wrong")
"""Of runs: what is neither a success nor stopped on purpose."""
