"""How far back a page looks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

PERIODS = {
    "1h": (timedelta(hours=1), _("1 hour")),
    "24h": (timedelta(hours=24), _("24 hours")),
    "7d": (timedelta(days=7), _("7 days")),
    "30d": (timedelta(days=30), _("30 days")),
}
DEFAULT = "24h"


def choices() -> list[tuple[str, Any]]:
    """The key and the label of each."""
    return [(key, label) for key, (_length, label) in PERIODS.items()]


def chosen(request: HttpRequest) -> str:
    """The period that the reader has asked for."""
    asked = request.GET.get("within", DEFAULT)
    return asked if asked in PERIODS else DEFAULT
