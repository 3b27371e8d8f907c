"""The fence: the caller's writes commit only if nobody has taken the lease over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from django.db import OperationalError, connections, router, transaction
from django.db.models import QuerySet

from . import store
from .exceptions import LeaseLost, RunLeaseError
from .models import FenceMark, RunLease
from .terms import Duration, duration
from .text import check_name

# Settings of the transaction: which leases are fenced, for RequireFence, and how long its client
# may be silent. A fence within one of the same lease leaves that time alone, unless asked.
_OLD = """
    old AS MATERIALIZED (
        SELECT current_setting('lock_timeout') AS lock_timeout,
               current_setting('idle_in_transaction_session_timeout')::interval AS idle,
               coalesce(current_setting('runlease.fence', true), '') AS fences
    )
"""
_SET = """
    CASE WHEN %(token)s::text <> ALL (string_to_array(old.fences, ' '))
         THEN set_config('runlease.fence', trim(old.fences || ' ' || %(token)s::text), true)
    END,
    CASE WHEN %(idle)s::float8 IS NOT NULL
           OR (%(token)s::text <> ALL (string_to_array(old.fences, ' '))
               AND (old.idle = interval '0' OR old.idle > fenced.ttl))
         THEN set_config(
             'idle_in_transaction_session_timeout',
             least(2147483647, ceil(
                 1000 * coalesce(%(idle)s::float8, extract(epoch FROM fenced.ttl)::float8)
             ))::bigint::text, true)
    END
"""

# FOR KEY SHARE lets renewals and other fences of this holder pass, and keeps claim, break and
# release (which change the uniquely indexed token) out until the caller's transaction ends.
# lock_timeout, which would outlive a savepoint, is put back.
_FENCE = """
    WITH {old}, bound AS MATERIALIZED (
        SELECT set_config('lock_timeout', '{lock_timeout}', true) FROM old
    ), locked AS MATERIALIZED (
        SELECT lease.ttl FROM bound, {table} lease
         WHERE lease.name = %(name)s AND lease.token = %(token)s
           FOR KEY SHARE OF lease
    ), fenced AS MATERIALIZED (
        SELECT count(*) AS leases, max(ttl) AS ttl FROM locked
    )
    SELECT fenced.leases, set_config('lock_timeout', old.lock_timeout, true), {set}
      FROM old, fenced
"""
_FENCE_ELSEWHERE = """
    WITH {old}, fenced AS (SELECT %(ttl)s::interval AS ttl) SELECT {set} FROM old, fenced
"""

_SETTINGS = """
    SELECT name, coalesce(current_setting(name, true), '')
      FROM unnest(ARRAY['runlease.fence', 'idle_in_transaction_session_timeout']) AS name
"""

_DATABASE = """
    SELECT pg_postmaster_start_time(), oid FROM pg_database WHERE datname = current_database()
"""

_LEASES = "SELECT to_regclass(%s)::oid"
"""The table of leases that a connection sees: each schema may have one."""

_MARK = "SELECT generation, token FROM {table} WHERE lease_name = %s"
_RAISE_MARK = """
    INSERT INTO {table} AS mark (lease_name, generation, token) VALUES (%s, %s, %s)
    ON CONFLICT (lease_name) DO UPDATE
       SET generation = excluded.generation, token = excluded.token
     WHERE mark.generation < excluded.generation
        OR (mark.generation = excluded.generation AND mark.token = excluded.token)
"""
_AHEAD = (
    "its FenceMark in the database {alias!r} is of a later claim, as after a restore of the "
    "lease's database. Once no other holder is at work, delete the mark there: "
    "DELETE FROM {table} WHERE lease_name = '{name}'"
)

_PATIENCE_MS = "100"
"""How long a mark's lock is awaited before it is looked at again."""

_CONTENTION = {"55P03", "40001", "40P01"}


class Lease(Protocol):
    """What a fence has to know of a lease."""

    @property
    def name(self) -> str: ...
    @property
    def token(self) -> UUID: ...
    @property
    def generation(self) -> int: ...
    @property
    def alias(self) -> str: ...


@contextmanager
def fenced(
    lease: Lease, using: str | None = None, *, idle: Duration | None = None
) -> Iterator[None]:
    """``transaction.atomic`` in which the lease cannot change hands until the outermost commit.

    *using* is the database of the caller's data. Where that is not the lease's, or its search_path
    leads to another table of leases, the ``FenceMark`` there is raised: a holder is refused there
    once a newer one has fenced there. The server ends the
    connection of a client that is silent in the transaction for *idle*, else for the ttl, because
    a frozen one would keep claims and breaks out for ever; its next statement raises Django's
    DatabaseError, and nothing is written.

    Raises LeaseLost, before the block runs, if the lease is no longer ours. A LeaseLost that leaves
    the block rolls back the atomic block around it too, even if it is caught there: as after a
    database error, that block takes no query any more. Whoever wants to go on in a transaction
    gives the fence an atomic block of its own.
    """
    alias = using or lease.alias
    elsewhere = alias != lease.alias and not _have_one_table(alias, lease.alias)
    seconds = None if idle is None else duration(idle).total_seconds()
    if elsewhere and not store.is_in_transaction(alias) and not store.in_test(alias):
        _raise_mark_ahead(lease, alias)
    with _as_committed(alias), _refusing_what_is_around(alias), transaction.atomic(using=alias):
        with _told_from_conflict(lease):
            if elsewhere:
                _lock_mark(lease, alias, seconds)
            else:
                _lock(lease, alias, seconds)
        yield


@contextmanager
def _as_committed(alias: str) -> Iterator[None]:
    """End the fence's settings with its block in a TestCase, whose transaction goes on."""
    if not store.in_test(alias) or store.is_in_transaction(alias):
        yield
        return
    settings = _settings(alias)
    yield
    with connections[alias].cursor() as cursor:
        for setting in settings.items():
            cursor.execute("SELECT set_config(%s, %s, true)", setting)


def _settings(alias: str) -> dict[str, str]:
    with connections[alias].cursor() as cursor:
        cursor.execute(_SETTINGS)
        return dict(cursor.fetchall())


@contextmanager
def _refusing_what_is_around(alias: str) -> Iterator[None]:
    """Keep a worker that lost its lease from committing what it wrote around the fence."""
    try:
        yield
    except LeaseLost:
        # Without an atomic block the caller has turned autocommit off, and decides alone.
        if connections[alias].in_atomic_block and store.is_in_transaction(alias):
            transaction.set_rollback(True, using=alias)
        raise


@contextmanager
def _told_from_conflict(lease: Lease) -> Iterator[None]:
    """Raise LeaseLost for a serialization failure that a takeover has brought about."""
    try:
        yield
    except OperationalError as error:
        # A snapshot older than a takeover; a serializable transaction fails for other reasons too.
        if store.sqlstate(error) == "40001" and not _is_ours_now(lease):
            raise _lost(lease) from error
        raise


def _lock(lease: Lease, alias: str, idle: float | None) -> None:
    connection = connections[alias]
    statement = _FENCE.format(
        table=connection.ops.quote_name(RunLease._meta.db_table),
        lock_timeout=store.LOCK_TIMEOUT_MS,
        old=_OLD,
        set=_SET,
    )
    values: dict[str, Any] = {"name": lease.name, "token": lease.token, "idle": idle}
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        if not cursor.fetchone()[0]:
            raise _lost(lease, "this transaction's snapshot is older than the claim")


def _lock_mark(lease: Lease, alias: str, idle: float | None) -> None:
    _raise_mark(lease, alias, lock=" FOR SHARE")
    # After the mark is locked: a newer holder waits for it before it writes there.
    ours = RunLease.objects.using(lease.alias).filter(name=lease.name, token=lease.token)
    first = ours.values_list("ttl").first
    # A transaction that is open there may see the lease as it was before a takeover.
    ttl = store.apart(lease.alias, first) if store.is_in_transaction(lease.alias) else first()
    if ttl is None:
        raise _lost(lease)
    values: dict[str, Any] = {"token": lease.token, "ttl": ttl[0], "idle": idle}
    with connections[alias].cursor() as cursor:
        cursor.execute(_FENCE_ELSEWHERE.format(old=_OLD, set=_SET), values)


def _raise_mark(lease: Lease, alias: str, lock: str = "") -> None:
    if _is_marked(lease, alias, lock):
        return
    ours: list[Any] = [lease.name, lease.generation, lease.token]
    with connections[alias].cursor() as cursor:
        cursor.execute(_with_table(_RAISE_MARK, alias), ours)
        if not cursor.rowcount:
            raise _lost(lease, _ahead(lease, alias))


def _raise_mark_ahead(lease: Lease, alias: str) -> None:
    """Raise the mark in its own transaction: blocks side by side do not wait for one's end."""
    while not _is_marked(lease, alias):
        try:
            with transaction.atomic(using=alias):
                with connections[alias].cursor() as cursor:
                    cursor.execute("SELECT set_config('lock_timeout', %s, true)", [_PATIENCE_MS])
                _raise_mark(lease, alias)
        except OperationalError as error:
            # Locked by a fence: a predecessor's, or one of ours, which has raised it meanwhile.
            if store.sqlstate(error) not in _CONTENTION:
                raise


def _is_marked(lease: Lease, alias: str, lock: str = "") -> bool:
    with connections[alias].cursor() as cursor:
        cursor.execute(_with_table(_MARK, alias) + lock, [lease.name])
        generation, token = cursor.fetchone() or (-1, None)
    if (generation, token) == (lease.generation, lease.token):
        return True
    # Not by the upsert alone, which would await the end of the newer holder's fence.
    if generation >= lease.generation:
        raise _lost(lease, _ahead(lease, alias))
    return False


def _ahead(lease: Lease, alias: str) -> str:
    name = lease.name.replace("'", "''")
    return _AHEAD.format(alias=alias, table=FenceMark._meta.db_table, name=name)


def _with_table(statement: str, alias: str) -> str:
    return statement.format(table=connections[alias].ops.quote_name(FenceMark._meta.db_table))


def _have_one_table(alias: str, other: str) -> bool:
    return bool(database(alias) == database(other) and _leases(alias) == _leases(other))


def _leases(alias: str) -> Any:
    connection = connections[alias]
    with connection.cursor() as cursor:
        cursor.execute(_LEASES, [connection.ops.quote_name(RunLease._meta.db_table)])
        return cursor.fetchone()


def database(alias: str) -> Any:
    """Which database of which server *alias* leads to: found out, not taken from its settings."""
    with connections[store.write_alias(alias)].cursor() as cursor:
        cursor.execute(_DATABASE)
        return cursor.fetchone()


def _is_ours_now(lease: Lease) -> bool:
    return store.is_ours_now(lease.name, lease.token, lease.alias)


def _lost(lease: Lease, otherwise: str = "it was not a moment ago") -> LeaseLost:
    if _is_ours_now(lease):
        return LeaseLost(lease.name, f"the lease is ours, but {otherwise}")
    if lose := getattr(lease, "lose_for_gone", None):
        lose()
    return LeaseLost(lease.name, "the lease is no longer ours, so nothing is written")


def refuse_left_open(lease: Lease) -> None:
    """Raise RunLeaseError if *lease* still fences a transaction that is open in this thread: a
    release would wait for itself."""
    left_open = any(
        str(lease.token) in _settings(connection.alias)["runlease.fence"].split()
        for connection in connections.all(initialized_only=True)
        if connection.vendor == "postgresql" and store.takes_queries(connection.alias)
    )
    if left_open:
        raise RunLeaseError(
            f"{lease.name}: a fence of this lease is open until the transaction around it ends: "
            "end that before release()"
        )


@contextmanager
def lock_told(lease: Lease) -> Iterator[None]:
    """Raise RunLeaseError, with the remedy, where the lease's row stays locked."""
    try:
        yield
    except OperationalError as error:
        if not store.is_contention(error):
            raise
        raise RunLeaseError(
            f"{lease.name}: its row is locked by a transaction that goes on, such as one around a "
            "fence in another thread or process: end that before release()"
        ) from error


def fenced_update(lease: Lease, queryset: QuerySet[Any], values: dict[str, Any]) -> int:
    """``queryset.update(**values)`` in a fence; the number of rows, which may be 0."""
    alias = _write_alias(queryset)
    with fenced(lease, alias):
        return queryset.using(alias).update(**values)


def fenced_delete(lease: Lease, queryset: QuerySet[Any]) -> int:
    """``queryset.delete()`` in a fence; the number of its own rows, without what cascades."""
    alias = _write_alias(queryset)
    with fenced(lease, alias):
        _, deleted = queryset.using(alias).delete()
    return deleted.get(queryset.model._meta.label, 0)


def _write_alias(queryset: Any) -> str:
    alias: str = queryset._db or router.db_for_write(queryset.model, **queryset._hints)
    return alias


@dataclass(frozen=True, kw_only=True, repr=False)
class InheritedLease:
    """The lease that a parent process holds, for the fences of its children."""

    name: str
    token: UUID
    generation: int
    alias: str

    def __repr__(self) -> str:
        return f"<InheritedLease {self.name!r} generation {self.generation}>"


def inherited_lease(*, using: str | None = None) -> InheritedLease:
    """The lease under which ``runjob NAME -- PROGRAM`` runs this program.

    Read from RUNLEASE_NAME, RUNLEASE_TOKEN and RUNLEASE_GENERATION; *using* is the alias of its
    database here. Raises RunLeaseError where the environment has no such lease.
    """
    try:
        name, token, generation = (
            os.environ[f"RUNLEASE_{word}"] for word in ("NAME", "TOKEN", "GENERATION")
        )
        check_name(name)
        number, uuid = int(generation), UUID(token)
    except (KeyError, ValueError):
        raise RunLeaseError(
            "this process has inherited no lease: start it with `manage.py runjob NAME -- PROGRAM`"
        ) from None
    alias = store.write_alias(os.environ.get("RUNLEASE_DATABASE") if using is None else using)
    return InheritedLease(name=name, token=uuid, generation=number, alias=alias)
