"""What is logged, under ``django_runlease``: one line an event, with nothing raw in it.

Names of hosts and reasons come from elsewhere; without a LOGGING setting a line of theirs would
reach the operator's terminal as it is.
"""

from __future__ import annotations

import logging

from .text import printable

_logger = logging.getLogger("django_runlease")


def info(message: str, *parts: object) -> None:
    _logger.info(message, *map(_shown, parts))


def warning(message: str, *parts: object) -> None:
    _logger.warning(message, *map(_shown, parts))


def _shown(part: object) -> str:
    return printable(str(part))
