"""The one setting, ``RUNLEASE``: a dict whose keys are the attributes of :class:`Conf`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings


class Conf:
    """Read lazily: each attribute is looked up in ``settings.RUNLEASE`` at the moment of use.

    Reading one raises ValueError if the setting is not a dict, or that value is of a wrong type.
    """

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
        if key not in KEYS:
            return super().__getattribute__(key)
        value = configured().get(key, getattr(Conf, key))
        expected, fits = _TYPES.get(key, ("", _anything))
        if not fits(value):
            raise ValueError(f'RUNLEASE["{key}"] is {expected}, not {value!r}')
        return value


def configured() -> Mapping[str, Any]:
    """The setting as it is written, unchecked. Raises ValueError if it is not a dict."""
    values = getattr(settings, "RUNLEASE", {})
    if not _mapping(values):
        raise ValueError(f"the setting RUNLEASE is a dict, not {values!r}")
    checked: Mapping[str, Any] = values
    return checked


def _anything(value: object) -> bool:
    return True


def _mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _alias(value: object) -> bool:
    return value is None or isinstance(value, str)


def _boolean(value: object) -> bool:
    return isinstance(value, bool)


def _exit_code(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 255


# The durations check themselves where they are read (``terms.duration``).
_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "DATABASE": ("the alias of a database, or None", _alias),
    "JOBS": ("a dict of dicts by job name", _mapping),
    "RECORD_DECLINES": ("True or False", _boolean),
    "CONFLICT_EXIT_CODE": ("an integer from 0 to 255", _exit_code),
    "ALERTS": ("a dict", _mapping),
}

KEYS = tuple(Conf.__annotations__)
conf = Conf()
