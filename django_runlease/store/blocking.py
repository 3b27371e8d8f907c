"""Changes of rows that somebody else may have locked: who has, and an end to that."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from django.db import Error, OperationalError, connections

from ..exceptions import RunLeaseError
from ..phrases import Phrase
from ..phrases import gettext as _
from ..text import printable
from .connection import explain, in_test, in_transaction, is_contention, start_apart

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
    """The lease was not changed: its row is locked (the message names by which backends), it is
    not what it was seen to be (:class:`Changed`), or it is in use."""

    blockers: Phrase | None = None
    """Which backends lock the row, if that could be seen and is all that there is to say."""


class Changed(Blocked):
    """The lease was not changed: it is no longer what the operator saw."""


def unless_blocked(
    name: str,
    alias: str,
    work: Callable[[], Result],
    *,
    ended: set[int] | None = None,
    check: Callable[[], None] = lambda: None,
    remedy: Phrase | None = None,
) -> Result:
    """Call *work* in a lease transaction. With *ended*, end the database connections that keep it
    waiting, unless *check* raises Changed by then, and add their processes there.

    Raises Blocked if a row that it changes stays locked: by whom, and the *remedy*, which is to try
    again where none is given.
    """
    watch = _Watch(alias=alias, ended=ended, check=check)
    try:
        return in_transaction(alias, work) if in_test(alias) else watch.over(work)
    except OperationalError as error:
        if not is_contention(error):
            raise
        raise watch.change or _blocked(name, watch, remedy or _("try again")) from error


@dataclass(kw_only=True)
class _Watch:
    """A look, from another connection, at what keeps a change waiting."""

    alias: str
    ended: set[int] | None
    check: Callable[[], None]
    blockers: list[Phrase] = field(default_factory=list)
    """The last ones that were seen."""
    failure: str = ""
    """Why they could not be seen, or not be ended."""
    change: Changed | None = None
    """Why they were not ended."""
    pids: queue.SimpleQueue[int] = field(default_factory=queue.SimpleQueue)
    is_over: threading.Event = field(default_factory=threading.Event)

    def over(self, work: Callable[[], Result]) -> Result:
        """Call *work* in a lease transaction, watched."""

        def tell_and_work() -> Result:
            with connections[self.alias].cursor() as cursor:
                # Not libpq's idea of it: behind a pooler that is another process.
                cursor.execute("SELECT pg_backend_pid()")
                self.pids.put(cursor.fetchone()[0])
            return work()

        watching = start_apart(self.alias, self._look_on)
        try:
            return in_transaction(self.alias, tell_and_work)
        except OperationalError as error:
            if not is_contention(error) or self.blockers or self.failure:
                raise
            # Nobody was seen: they have just ended, or this process stood still for as long.
            return in_transaction(self.alias, tell_and_work)
        finally:
            self.is_over.set()
            watching.result()

    def _look_on(self) -> None:
        pid = None
        try:
            while not self.is_over.wait(POLL):
                pid = pid if self.pids.empty() else self.pids.get()
                if pid is not None and (found := _blockers(self.alias, pid)):
                    self.blockers[:] = found.values()
                    if self.ended is not None:
                        # After the look: whoever holds it since then has locked nothing before.
                        self.check()
                        self.ended.update(found)
                        _terminate(self.alias, found)
        except Changed as change:
            self.change = change
        except Error as error:
            # The change may be made all the same; if it is not, this is told.
            self.failure = explain(error)


def _blocked(name: str, watch: _Watch, remedy: Phrase) -> Blocked:
    who = _listed(watch.blockers)
    facts = {"lease": name, "who": who, "why": watch.failure, "remedy": remedy}
    if who is None and watch.failure:
        text = _("%(lease)s: its row is locked; who locks it could not be seen: %(why)s", **facts)
    elif who is None:
        text = _("%(lease)s: its row is locked; try again", **facts)
    elif watch.failure:
        text = _("%(lease)s: its row is locked by %(who)s; to end that failed: %(why)s", **facts)
    else:
        text = _("%(lease)s: its row is locked by %(who)s; %(remedy)s", **facts)
    blocked = Blocked(text)
    blocked.blockers = None if watch.failure else who
    return blocked


def _listed(blockers: Sequence[Phrase]) -> Phrase | None:
    if not blockers:
        return None
    who = blockers[0]
    for blocker in blockers[1:]:
        who = _("%(blockers)s; %(blocker)s", blockers=who, blocker=blocker)
    return who


def _blockers(alias: str, pid: int) -> dict[int, Phrase]:
    with connections[alias].cursor() as cursor:
        cursor.execute(_BLOCKERS, [pid])
        return {
            blocker: _described(pid=blocker, name=printable(name), state=state, seconds=seconds)
            for blocker, name, state, seconds in cursor.fetchall()
        }


def _described(*, seconds: int | None, **facts: object) -> Phrase:
    if seconds is None:
        # Of another role's backends the server tells no more to most.
        return _("database process %(pid)s (%(name)s, %(state)s)", **facts)
    return _(
        "database process %(pid)s (%(name)s, %(state)s, in its transaction for %(seconds)s s)",
        seconds=seconds,
        **facts,
    )


def _terminate(alias: str, pids: Iterable[int]) -> None:
    with connections[alias].cursor() as cursor:
        for pid in pids:
            cursor.execute("SELECT pg_terminate_backend(%s)", [pid])
