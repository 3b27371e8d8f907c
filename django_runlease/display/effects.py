"""The ledger of external actions."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from ..history import Row
from ..models import EffectState
from ..text import printable
from .page import Cell, Column, Page, Table
from .text import cut_end, cut_middle
from .times import brief_moment

_ROLES = {
    EffectState.STARTED: "ERROR",
    EffectState.CONFIRMED: "SUCCESS",
    EffectState.FAILED: "WARNING",
}


def effect_table(effects: Iterable[Row]) -> Page:
    """One line for each external action: when it was begun, of which lease, what it is, what is
    known of it, after how many attempts, and what it gave or why it failed."""
    columns = [
        Column(title="BEGUN (UTC)"),
        Column(title="NAME", cut=cut_middle),
        Column(title="EFFECT", cut=cut_middle),
        Column(title="STATE"),
        Column(title="ATTEMPTS", right=True),
        Column(title="RESULT", cut=cut_end),
    ]
    rows = [
        [
            Cell(brief_moment(effect["started_at"])),
            Cell(printable(effect["lease_name"])),
            Cell(printable(" ".join([effect["kind"], *map(_as_text, effect["key"])]))),
            Cell(printable(effect["state"]), _ROLES.get(effect["state"], "")),
            Cell(str(effect["attempts"])),
            Cell(printable(effect["reason"] or _as_text(effect["result"], none=""))),
        ]
        for effect in effects
    ]
    return [Table(columns, rows)]


def _as_text(value: Any, none: str = "null") -> str:
    return none if value is None else json.dumps(value, ensure_ascii=False)
