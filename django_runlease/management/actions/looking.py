"""``list``, ``show``, ``history`` and ``effects``: nothing is changed."""

from __future__ import annotations

from typing import Any

from ... import display, history
from .console import Console, check_known, find_lease

RUNS_OF_A_LEASE = 10


def leases(console: Console, alias: str, **options: Any) -> None:
    found = history.leases(alias)
    empty = "No lease yet: `manage.py runjob NAME` makes the first."
    console.write(found, lambda: console.lay_out(display.lease_table, found, empty))


def lease(console: Console, alias: str, name: str, **options: Any) -> None:
    found = find_lease(name, alias)
    found["runs"] = history.runs(alias, name, limit=RUNS_OF_A_LEASE)
    console.write(found, lambda: console.lay_out(display.lease_page, found))


def runs(console: Console, alias: str, name: str | None, limit: int, **options: Any) -> None:
    found = history.runs(alias, name, limit=limit)
    if name is not None and not found:
        check_known(name, alias)
    empty = f"No run yet: `manage.py runjob {name or 'NAME'}` makes the first."
    console.write(found, lambda: console.lay_out(display.run_table, found, empty))


def effects(
    console: Console,
    alias: str,
    name: str | None,
    uncertain: bool,
    limit: int | None,
    **options: Any,
) -> None:
    if limit is None:
        # Of what a person must look at, nothing is left out.
        limit = history.LARGEST_LIMIT if uncertain else history.RUNS_SHOWN
    found = history.effects(alias, name, uncertain=uncertain, limit=limit)
    if name is not None and not found:
        check_known(name, alias)
    empty = "No effect is uncertain." if uncertain else "No effect yet: see held.effect()."
    console.write(found, lambda: console.lay_out(display.effect_table, found, empty))
