"""Leases, runs, effects and what operators did, as people read them.

``leases``, ``runs``, ``actions``, ``figures`` and ``effects`` describe pages, ``page`` fits them
into a width, and ``plain`` or ``drawn`` (by ``rich``) draws them. ``sentences`` say what an
operator has just done.
"""

from .actions import action_table, history_table
from .effects import effect_table
from .figures import statistics_table
from .leases import lease_page, lease_table
from .page import WIDTH, Card, Cell, Column, Page, Table
from .plain import plain
from .runs import decline_table, run_table
from .sentences import after_break, before_break, paused, resumed
from .text import cut_end, cut_middle, width
from .times import moment

__all__ = [
    "WIDTH",
    "Card",
    "Cell",
    "Column",
    "Page",
    "Table",
    "action_table",
    "after_break",
    "before_break",
    "cut_end",
    "cut_middle",
    "decline_table",
    "effect_table",
    "history_table",
    "lease_page",
    "lease_table",
    "moment",
    "paused",
    "plain",
    "resumed",
    "run_table",
    "statistics_table",
    "width",
]
