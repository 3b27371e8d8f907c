"""``prune``, and ``list --unused``: what the history and the leases need no longer be kept for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError

from ... import display, history, jobs, store
from ...conf import conf
from ...runner import FAILED
from ...store import Pruned
from ...terms import LONGEST_KEPT, named_duration, short
from ...text import printable
from .console import INTERRUPTED, Console, find_lease, operator

BAR = 30
"""Columns of the bar that shows how far a prune is."""


def prune(
    console: Console,
    alias: str,
    keep_runs: str | None,
    keep_declines: str | None,
    remove: str | None,
    **options: Any,
) -> None:
    runs = _kept("KEEP_RUNS", "--keep-runs", keep_runs)
    declines = _kept("KEEP_DECLINES", "--keep-declines", keep_declines)
    if remove is not None:
        return _remove(console, alias, remove, runs, confirmed=options["yes"])
    done, finished = Pruned(), False
    with (
        suppress(KeyboardInterrupt),
        _stop_asked_for() as stop_asked_for,
        console.progress() as show,
    ):
        for done in store.prune(alias, keep_runs=runs, keep_declines=declines):
            show(_bar(done))
            if stop_asked_for():
                break
        else:
            finished = True
    if not finished:
        raise CommandError(
            f"interrupted: removed {_what(done)}; the next prune goes on from there",
            returncode=INTERRUPTED,
        )
    counts = {name: getattr(done, name) for name in ("runs", "declines", "alerts", "actions")}
    seconds = {"keep_runs": runs.total_seconds(), "keep_declines": declines.total_seconds()}
    kept = f"Runs are kept for {short(runs)}, declined ticks for {short(declines)}."
    return console.write({**counts, **seconds}, lambda: f"Removed {_what(done)}. {kept}")


def unused(console: Console, alias: str, **options: Any) -> None:
    keep = _kept("KEEP_RUNS", "", None)
    known = jobs.all_names()
    idle = history.idle_leases(alias, keep)
    found = [lease for lease in idle if lease["name"] not in known]
    empty = f"No lease is unused: each was claimed in the last {short(keep)}, or belongs to a job."
    console.write(found, lambda: console.lay_out(display.lease_table, found, empty))


def _remove(
    console: Console, alias: str, name: str, unclaimed_for: timedelta, *, confirmed: bool
) -> None:
    lease = find_lease(name, alias)
    if name in jobs.all_names():
        raise CommandError(
            f"{name} was not removed: it is a job that may run again. Take it out of jobs.py or "
            'RUNLEASE["JOBS"], or its command out of the project, first',
            returncode=FAILED,
        )
    if not confirmed:
        last = display.moment(lease["claimed_at"]) if lease["claimed_at"] else "never"
        console.confirm(
            f"{printable(name)}: last claimed {last}, generation {lease['generation']}. Its "
            "minimum hold and last tick are forgotten; its history stays until it is pruned.",
            question="Remove it?",
            without_terminal="prune --remove asks before it removes a lease",
        )
    generation = store.remove(name, alias, by=operator(), unclaimed_for=unclaimed_for)
    text = f"{printable(name)}: removed. If it is claimed again, it starts above {generation}."
    console.write({"name": name, "generation": generation}, lambda: text)


def _kept(key: str, flag: str, given: str | None) -> timedelta:
    if given is not None:
        return named_duration(flag, given, LONGEST_KEPT)
    return named_duration(f'RUNLEASE["{key}"]', getattr(conf, key), LONGEST_KEPT)


def _bar(done: Pruned) -> str:
    filled = int(done.share * BAR)
    bar = "#" * filled + "-" * (BAR - filled)
    return f"[{bar}] {done.share:4.0%}  {done.runs + done.declines:,} removed"


def _what(done: Pruned) -> str:
    counts = [
        f"{count:,} {word}{'' if count == 1 else 's'}"
        for count, word in (
            (done.runs, "run"),
            (done.declines, "declined tick"),
            (done.alerts, "resolved alert"),
            (done.actions, "operator action"),
        )
    ]
    return f"{', '.join(counts[:-1])} and {counts[-1]}"


@contextmanager
def _stop_asked_for() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C be asked about, after the batch, and the second one interrupt it."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def note(number: int, frame: object) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
