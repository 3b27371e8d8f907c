"""The one setting, ``RUNLEASE``: a dict whose keys are the attributes of :class:`Conf`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings


class Conf:
    """Read lazily: each attribute is looked up in ``settings.RUNLEASE`` at the moment of use."""

    DATABASE: str | None = None
    """Alias of the database that holds the leases; None asks the router's ``db_for_write``."""
    TTL: Any = "5m"
    """How long a lease lasts without renewal, where no job or call says otherwise."""
    JOBS: Mapping[str, Mapping[str, Any]] = {}
    """Terms by job name, and the management command or program to run under that name."""
    RECORD_DECLINES: bool = True
    """Whether a declined tick leaves a Run in the history."""
    KEEP_RUNS: Any = "30d"
    """How long the history keeps runs."""
    KEEP_DECLINES: Any = "7d"
    """How long the history keeps declined ticks."""
    CONFLICT_EXIT_CODE: int = 0
    """The exit code of ``runjob`` for a declined tick."""
    ALERTS: Mapping[str, Any] = {}
    """Thresholds of the alert rules."""

    def __getattribute__(self, key: str) -> Any:
        values: Mapping[str, Any] = getattr(settings, "RUNLEASE", {})
        return values.get(key, getattr(type(self), key))


KEYS = tuple(Conf.__annotations__)
conf = Conf()
