"""``pause``, ``resume`` and ``break``: what an operator does to a lease."""

from __future__ import annotations

from typing import Any

from ... import display, store
from ...history import Row
from .console import Console, check_known, find_lease, operator


def pause(console: Console, alias: str, name: str, reason: str, **options: Any) -> None:
    check_known(name, alias)
    store.pause(name, alias, by=operator(), reason=reason)
    lease = find_lease(name, alias)
    console.write(lease, lambda: display.paused(lease))


def resume(console: Console, alias: str, name: str, reason: str, **options: Any) -> None:
    find_lease(name, alias)
    was_paused = store.resume(name, alias, by=operator(), reason=reason)
    lease = find_lease(name, alias)
    console.write(lease, lambda: display.resumed(lease, was_paused=was_paused))


def break_lease(
    console: Console, alias: str, name: str, now: bool, forget_tick: bool, **options: Any
) -> None:
    found = find_lease(name, alias)
    if not options["yes"]:
        console.confirm(display.before_break(found, at_once=now))
    broken = store.break_lease(
        name,
        alias,
        by=operator(),
        reason=options["reason"],
        at_once=now,
        force=options["force"],
        forget_tick=forget_tick,
        seen=None if options["yes"] else _seen(found),
    )
    lease = find_lease(name, alias)
    text = display.after_break(lease, broken, at_once=now, tick_forgotten=forget_tick)
    console.write(lease, lambda: text)


def _seen(lease: Row) -> store.Seen:
    return store.Seen(generation=lease["generation"], is_held=lease["expires_at"] is not None)
