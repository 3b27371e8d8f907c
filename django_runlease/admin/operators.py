"""What operators did to a lease, in the admin or on a command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import history
from ..history import Row
from ..models import ActionKind
from . import words

ACTIONS = 20
"""How many of them are shown."""


def actions(name: str, alias: str) -> dict[str, Any]:
    """Those of the lease, the newest first; and whether there are more."""
    found = history.actions(alias, name, limit=ACTIONS + 1)
    return {
        "operator_actions": [_line(row) for row in found[:ACTIONS]],
        "more_operator_actions": len(found) > ACTIONS,
    }


def _line(row: Row) -> dict[str, Any]:
    detail = row["detail"] if isinstance(row["detail"], Mapping) else {}
    label = dict(ActionKind.choices).get(row["kind"], row["kind"])
    at = _epoch(row["at"])
    return {
        "at": words.at(at),
        "by": words.name(row["by"]),
        "what": words.lines([label, *_detail(row["kind"], detail, at)]),
        "reason": words.name(row["reason"]) if row["reason"] else words.nothing(),
    }


def _detail(kind: str, detail: Mapping[str, Any], at: float | None) -> Iterator[object]:
    if kind == ActionKind.BROKEN:
        yield from _break(detail, at)
    if "alert" in detail:
        alert, until = words.kind(detail["alert"]), words.at(_epoch(detail.get("until")))
        yield format_html(_("{alert} until {when}"), alert=alert, when=until) if until else alert
    if kind == ActionKind.REMOVED:
        yield _("at generation %(number)s") % {"number": detail.get("generation")}


def _break(detail: Mapping[str, Any], at: float | None) -> Iterator[object]:
    if not detail.get("was_held"):
        yield _("nobody held it; the next run could start at once")
    else:
        held = _("{who} held it, in generation {number}")
        who = words.name(detail.get("holder"))
        yield format_html(held, who=who, number=detail.get("generation"))
        free_at = _epoch(detail.get("free_at"))
        if free_at is not None and at is not None and free_at > at:
            yield format_html(_("the next run had to wait until {}"), words.at(free_at))
        else:
            yield _("the next run could start at once")
    if ended := detail.get("connections_ended"):
        text = ngettext(
            "%(count)s database connection ended", "%(count)s database connections ended", ended
        )
        yield text % {"count": ended}
    if detail.get("tick_forgotten"):
        yield _("its last tick could run again")


def _epoch(iso: Any) -> float | None:
    """None for what is no instant, as somebody may have written by hand."""
    try:
        return datetime.fromisoformat(iso).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
