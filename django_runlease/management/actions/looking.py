"""``list``, ``show``, ``history`` and ``effects``: nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ... import card, display, history
from ...history import Row
from ...search import Filters, Moment, moment
from ...statistics import statistics, statistics_of_all
from .console import Console, check_known, find_lease


def leases(console: Console, alias: str, **options: Any) -> None:
    found = history.leases(alias)
    empty = "No lease yet: `manage.py runjob NAME` makes the first."
    console.write(found, lambda: console.lay_out(display.lease_table, found, empty))


def lease(console: Console, alias: str, name: str, **options: Any) -> None:
    found = card.card(find_lease(name, alias), alias)
    console.write(found, lambda: console.lay_out(display.lease_page, found))


def runs(
    console: Console,
    alias: str,
    name: str | None,
    limit: int,
    stats: bool = False,
    actions: bool = False,
    **options: Any,
) -> None:
    if actions:
        _actions(console, alias, name, limit, stats=stats, **options)
        return
    if stats:
        _statistics(console, alias, name, **options)
        return
    filters = _filters(**options)
    found = history.runs(alias, name, limit=limit, filters=filters)
    if name is not None and not found:
        _check_told_of(name, alias)
    empty = f"No run yet: `manage.py runjob {name or 'NAME'}` makes the first."
    if filters is not None:
        empty = "No run matches."

    def text() -> str:
        rows = _with_actions(alias, name, found, limit, filters)
        return console.lay_out(display.history_table, rows, empty)

    console.write(found, text)


def _with_actions(
    alias: str, name: str | None, runs: list[Row], limit: int, filters: Filters | None
) -> list[Row]:
    """The *limit* newest of *runs* and of what operators did, which has no outcome and no host."""
    filters = filters or Filters()
    if filters.outcomes or filters.host:
        return runs
    period = {"since": filters.since, "until": filters.until}
    both = [*runs, *history.actions(alias, name, limit=limit, **period)]
    return sorted(both, key=lambda row: row.get("at") or row["started_at"], reverse=True)[:limit]


def _check_told_of(name: str, alias: str) -> None:
    """Exit 2 unless *name* has a lease, is a job, or is told of in the history."""
    if not (history.runs(alias, name, limit=1) or history.actions(alias, name, limit=1)):
        check_known(name, alias)


def _actions(
    console: Console,
    alias: str,
    name: str | None,
    limit: int,
    stats: bool,
    outcome: Sequence[str] | None = None,
    since: Moment | str | None = None,
    until: Moment | str | None = None,
    host: str | None = None,
    **options: Any,
) -> None:
    if stats or outcome or host is not None:
        raise ValueError(
            "--actions shows what operators did, not the runs: leave out --stats, --outcome and "
            "--host"
        )
    period = {"since": _moment("since", since), "until": _moment("until", until)}
    found = history.actions(alias, name, limit=limit, **period)
    if name is not None and not found:
        _check_told_of(name, alias)
    empty = "No operator has done anything yet."
    if since is not None or until is not None:
        empty = "No action matches."
    console.write(found, lambda: console.lay_out(display.action_table, found, empty))


def _statistics(
    console: Console,
    alias: str,
    name: str | None,
    since: Moment | str | None = None,
    until: Moment | str | None = None,
    outcome: Sequence[str] | None = None,
    host: str | None = None,
    **options: Any,
) -> None:
    if outcome or host is not None:
        raise ValueError("--stats counts all outcomes and hosts: leave out --outcome and --host")
    period = {"since": _moment("since", since), "until": _moment("until", until)}
    if name is None:
        found = statistics_of_all(alias, **period)
    else:
        found = [statistics(alias, name, **period)]
        if not found[0]["runs"] and not history.runs(alias, name, limit=1):
            check_known(name, alias)
    empty = "No lease yet: `manage.py runjob NAME` makes the first."
    console.write(found, lambda: console.lay_out(display.statistics_table, found, empty))


def _filters(
    outcome: Sequence[str] | None = None,
    since: Moment | str | None = None,
    until: Moment | str | None = None,
    host: str | None = None,
    **options: Any,
) -> Filters | None:
    """None where nothing is asked for. Raises ValueError that names the option."""
    if not outcome and since is None and until is None and host is None:
        return None
    if host == "":
        # As a variable of a script gives it that is not set.
        raise ValueError("--host: name a host, or leave the option out")
    return Filters(
        outcomes=tuple(dict.fromkeys(outcome or ())),
        since=_moment("since", since),
        until=_moment("until", until),
        host=host or "",
    )


def _moment(option: str, value: Moment | str | None) -> Moment | None:
    try:
        return None if value is None else moment(value)
    except ValueError as error:
        raise ValueError(f"--{option}: {error}") from None


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
