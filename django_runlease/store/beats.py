"""A beat: all leases of a process renewed in one statement, none of them waited for."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.db import OperationalError, connections
from psycopg.types.json import Jsonb

from ..models import RunLease
from .connection import RETRIES, is_contention
from .holding import why_gone
from .records import Answer, Beat, Loss

# Locked first, without waiting: a renewal that waited would revive a lease that has expired
# meanwhile, and one locked row would keep the others from being renewed. The clock is read once
# the rows are locked. FOR NO KEY UPDATE passes fences, which hold FOR KEY SHARE.
_RENEW = """
    WITH wanted AS MATERIALIZED (
        SELECT * FROM unnest(%s::uuid[], %s::float8[], %s::jsonb[]) AS w (token, ttl, progress)
    ), locked AS MATERIALIZED (
        SELECT lease.id, lease.token FROM {table} lease
         WHERE lease.token = ANY(%s::uuid[])
           FOR NO KEY UPDATE SKIP LOCKED
    ), clock AS MATERIALIZED (
        SELECT clock_timestamp() AS now FROM (SELECT count(*) FROM locked) AS all_locked
    ), renewed AS (
        UPDATE {table} lease
           SET expires_at = clock.now + make_interval(secs => wanted.ttl),
               renewed_at = clock.now,
               progress = wanted.progress
          FROM locked, wanted, clock
         WHERE lease.id = locked.id AND wanted.token = locked.token
           AND lease.expires_at > clock.now
     RETURNING lease.token
    )
    SELECT wanted.token,
           renewed.token IS NOT NULL,
           locked.token IS NOT NULL,
           EXISTS (SELECT 1 FROM {table} lease WHERE lease.token = wanted.token)
      FROM wanted LEFT JOIN locked USING (token) LEFT JOIN renewed USING (token)
"""


def beat(beats: list[Beat], alias: str) -> dict[UUID, Answer]:
    """Renew the leases of *beats*; say of each what came of it. Raises Django's database errors."""
    tokens = [beat.claimed.token for beat in beats]
    lengths = [beat.ttl.total_seconds() for beat in beats]
    progress = [None if beat.progress is None else Jsonb(beat.progress) for beat in beats]
    rows = _execute([tokens, lengths, progress, tokens], alias)
    claimed = {beat.claimed.token: beat.claimed for beat in beats}
    answers: dict[UUID, Answer] = {}
    for token, renewed, locked, exists in rows:
        if renewed:
            answers[token] = "renewed"
        elif locked:
            answers[token] = Loss(reason="expired", detail="it expired before it was renewed")
        else:
            answers[token] = "skipped" if exists else why_gone(claimed[token])
    return answers


def _execute(params: list[Any], alias: str) -> list[tuple[UUID, bool, bool, bool]]:
    connection = connections[alias]
    statement = _RENEW.format(table=connection.ops.quote_name(RunLease._meta.db_table))
    # One statement runs at the server's default isolation, which may be SERIALIZABLE.
    for tries_left in reversed(range(RETRIES)):
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, params)
                rows: list[tuple[UUID, bool, bool, bool]] = cursor.fetchall()
                return rows
        except OperationalError as error:
            if not tries_left or not is_contention(error):
                raise
    raise AssertionError
