"""Changes of rows that somebody else may have locked: who has, and an end to that."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import TypeVar

from django.db import OperationalError, connections

from ..exceptions import RunLeaseError
from ..phrases import Phrase
from ..phrases import gettext as _
from .connection import in_test, in_transaction, is_contention, start_apart

Result = TypeVar("Result")

POLL = 0.05
"""Seconds between two looks at what keeps a change waiting."""

_BLOCKERS = """
    SELECT pid, coalesce(nullif(application_name, ''), usename), coalesce(state, 'unknown'),
           extract(epoch FROM clock_timestamp() - xact_start)::int
      FROM pg_stat_activity
     WHERE pid = ANY(pg_blocking_pids(%s))
"""


class Blocked(RunLeaseError):
    """The lease was not changed: its row is locked (the message names by which backends), it has
    changed hands, or it is in use."""

    blockers: Phrase | None = None
    """Which backends lock the row, where that could be seen."""


def unless_blocked(
    name: str,
    alias: str,
    work: Callable[[], Result],
    *,
    ended: set[int] | None = None,
    remedy: Phrase | None = None,
) -> Result:
    """Call *work* in a lease transaction. With *ended*, end the database connections that keep it
    waiting, and add their processes there.

    Raises Blocked if a row that it changes stays locked: by whom, and the *remedy*, which is to try
    again where none is given.
    """
    if in_test(alias):
        return _or_blocked(name, alias, work, {}, remedy)
    blockers: dict[int, Phrase] = {}
    pids: queue.SimpleQueue[int] = queue.SimpleQueue()
    is_over = threading.Event()

    def tell_and_work() -> Result:
        with connections[alias].cursor() as cursor:
            # Not libpq's idea of it: behind a pooler that is another process.
            cursor.execute("SELECT pg_backend_pid()")
            pids.put(cursor.fetchone()[0])
        return work()

    watching = start_apart(alias, partial(_watch, alias, pids, is_over, blockers, ended))
    try:
        return _or_blocked(name, alias, tell_and_work, blockers, remedy)
    except Blocked:
        is_over.set()
        # Why it could not see them, or not end them, explains more.
        watching.result()
        raise
    finally:
        is_over.set()
        wait([watching])


def _or_blocked(
    name: str,
    alias: str,
    work: Callable[[], Result],
    blockers: Mapping[int, Phrase],
    remedy: Phrase | None,
) -> Result:
    try:
        return in_transaction(alias, work)
    except OperationalError as error:
        if not is_contention(error):
            raise
        raise _blocked(name, list(blockers.values()), remedy) from error


def _blocked(name: str, blockers: Sequence[Phrase], remedy: Phrase | None) -> Blocked:
    if not blockers:
        return Blocked(_("%(lease)s: its row is locked; try again", lease=name))
    who = blockers[0]
    for blocker in blockers[1:]:
        who = _("%(blockers)s; %(blocker)s", blockers=who, blocker=blocker)
    what = remedy if remedy is not None else _("try again")
    facts = {"lease": name, "who": who, "remedy": what}
    text = _("%(lease)s: its row is locked by %(who)s; %(remedy)s", **facts)
    blocked = Blocked(text)
    blocked.blockers = who
    return blocked


def _watch(
    alias: str,
    pids: queue.SimpleQueue[int],
    is_over: threading.Event,
    blockers: dict[int, Phrase],
    ended: set[int] | None,
) -> None:
    """Until it *is_over*, keep in *blockers* the last ones that were seen."""
    pid = None
    while not is_over.wait(POLL):
        pid = pid if pids.empty() else pids.get()
        if pid is not None and (found := _blockers(alias, pid)):
            blockers.clear()
            blockers.update(found)
            if ended is not None:
                ended.update(found)
                _terminate(alias, found)


def _blockers(alias: str, pid: int) -> dict[int, Phrase]:
    with connections[alias].cursor() as cursor:
        cursor.execute(_BLOCKERS, [pid])
        return {
            blocker: _(
                "process %(pid)s (%(name)s, %(state)s, in its transaction for %(seconds)s s)",
                pid=blocker,
                name=name,
                state=state,
                seconds=seconds,
            )
            for blocker, name, state, seconds in cursor.fetchall()
        }


def _terminate(alias: str, pids: Iterable[int]) -> None:
    with connections[alias].cursor() as cursor:
        for pid in pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
