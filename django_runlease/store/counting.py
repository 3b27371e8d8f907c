"""The history counted into the tallies, ahead of its deletion, so that nobody counts it again.

A :class:`TallyMark` says how far. It is a primary key and not a time, since clocks are set back;
and it rises only past rows whose transactions have ended, since one that is still under way may
have a lower key than what is there to be seen. Runs that go on are left out by name. Whoever
counts, or changes what may have been counted, locks the mark first, and then looks at the rows.
"""

from __future__ import annotations

import time
from functools import partial
from uuid import UUID

from django.db import connections

from ..models import Measure, Outcome, Run, TallyMark
from ..tallies import Key, Total, add_up, parts, sums
from . import tallying
from .connection import in_test, in_transaction

BATCH = 5_000
"""How many rows one transaction counts."""

PATIENCE = 1.0
"""Seconds to wait for transactions that may be writing to the history."""
POLL = 0.01

IDLE = 10.0
"""Seconds after which the server ends the transaction of a process that was frozen in it: as long
as that lasts, nobody else can count, and no abandoned holder that wakes can say how it ended."""


def count_runs(alias: str, *, batch: int = BATCH) -> None:
    """Count what has ended of the history, in short transactions; nothing that counts already.

    Where somebody else is counting, or a transaction that writes to the history goes on, what is
    left is left for the next time. Raises RunLeaseError within an open transaction, and Django's
    database errors.
    """
    end = _settled(alias)
    if end is not None:
        while in_transaction(alias, partial(_count_batch, alias, end, batch)):
            pass


_WRITERS = """
    SELECT virtualtransaction FROM pg_locks
     WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND pid IS DISTINCT FROM
           pg_backend_pid() AND relation = 'runlease_run'::regclass
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


def _settled(alias: str) -> int | None:
    """A primary key below which no row will come to be seen any more; None if none was found.

    A lower one was drawn before, by a transaction that had locked the table for that.
    """
    newest = Run.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first()
    before = writers = _writers(alias)
    deadline = time.monotonic() + PATIENCE
    while writers:
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL)
        writers = before & _writers(alias)
    return newest


def _writers(alias: str) -> set[str]:
    with connections[alias].cursor() as cursor:
        cursor.execute(_WRITERS)
        return {transaction for (transaction,) in cursor.fetchall()}


_LIMIT_IDLE = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"

_LAST_OF_BATCH = """
    SELECT max(id) FROM (SELECT id FROM runlease_run WHERE id > %s AND id <= %s
                          ORDER BY id LIMIT %s) AS batch
"""

_COUNT = f"""
    WITH seen AS MATERIALIZED (
        SELECT * FROM runlease_run WHERE id > %(after)s AND id <= %(last)s
         UNION ALL
        SELECT * FROM runlease_run WHERE id = ANY (%(still_open)s::bigint[])),
    grouped AS ({sums("(SELECT * FROM seen WHERE outcome <> 'running') AS ended")})
    SELECT still_open.ids, grouped.*
      FROM (SELECT array(SELECT id FROM seen WHERE outcome = 'running' ORDER BY id) AS ids)
               AS still_open
      LEFT JOIN grouped ON true
"""  # noqa: S608  made of texts of ours


def _count_batch(alias: str, end: int, batch: int) -> bool:
    """Whether there is more to count, up to the primary key *end*."""
    mark = _lock(alias, skip_locked=True)
    if mark is None:
        return False
    with connections[alias].cursor() as cursor:
        # Else it would be the timeout of the test.
        if not in_test(alias):
            cursor.execute(_LIMIT_IDLE, [f"{IDLE * 1000:.0f}"])
        cursor.execute(_LAST_OF_BATCH, [mark.up_to, end, batch])
        last = cursor.fetchone()[0] or mark.up_to
        rows = {"after": mark.up_to, "last": last, "still_open": mark.still_open}
        cursor.execute(_COUNT, rows)
        found = cursor.fetchall()
    still_open = found[0][0]
    groups = [row[1:] for row in found if row[1] is not None]
    tallying.add(add_up(part for group in groups for part in parts(group)), alias)
    if (last, still_open) != (mark.up_to, mark.still_open):
        mark.up_to, mark.still_open = last, still_open
        mark.save(using=alias)
    return last < end


_ONE = sums("(SELECT * FROM runlease_run WHERE id = %s AND token = %s) AS one")


def recount_abandoned(name: str, run_id: int, token: UUID, alias: str) -> None:
    """Count a Run that was abandoned for what its holder has changed it to.

    It goes on to count as abandoned too, so no counter falls.
    """
    mark = _lock(alias, skip_locked=False)
    if mark is None or not mark.has_counted(run_id):
        abandoned = Key(name, Measure.DURATION, Outcome.ABANDONED)
        tallying.add({abandoned: Total(count=1)}, alias)
        return
    with connections[alias].cursor() as cursor:
        cursor.execute(_ONE, [run_id, token])
        counted = [part for row in cursor.fetchall() for part in parts(row)]
    # What it waited, its lag and its takeover are the same as before.
    ended = (part for part in counted if part[0].measure == Measure.DURATION)
    tallying.add(add_up(ended), alias)


def _lock(alias: str, *, skip_locked: bool) -> TallyMark | None:
    marks = TallyMark.objects.using(alias)
    marks.bulk_create([TallyMark(pk=TallyMark.ONLY)], ignore_conflicts=True)
    return marks.select_for_update(skip_locked=skip_locked).first()
