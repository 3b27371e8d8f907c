"""How the script of the pages keeps them up to date."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from . import words

PERIOD = 5
"""Seconds between two refreshes."""

HEADER = "Runlease-Refresh"
"""By which the script says that it asks for the page that is shown already."""


def of_refresh(request: HttpRequest) -> dict[str, Any]:
    """What ``refresh.html`` takes.

    Messages are shown once, and a refresh shows nothing but parts of a page: so it leaves them to
    the page that the reader comes to.
    """
    unread: dict[str, Any] = {"messages": ()} if HEADER in request.headers else {}
    return {"units": words.units(), "period_of_refresh": PERIOD, **unread}
