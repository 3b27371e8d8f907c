"""Connections and transactions of the store: which database, how isolated, how long a wait."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import psycopg
from django.db import (
    DatabaseError,
    Error,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connections,
    router,
    transaction,
)
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.pq import TransactionStatus

from ..conf import conf
from ..exceptions import RunLeaseError
from ..models import RunLease
from ..text import one_line

Result = TypeVar("Result")

LOCK_TIMEOUT_MS = 2_000
RETRIES = 3

PATIENCE = {"connect_timeout": 5, "tcp_user_timeout": 10_000}
"""Seconds and milliseconds after which a connection of our own to a dead network is given up."""

_SERIALIZATION = {"40001", "40P01"}
_LOCK_TIMEOUT = "55P03"
_READ_ONLY = "25006"
_ENDED = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"}
_REMEDIES = {
    "42P01": "run `manage.py migrate` on this database, or mend the search_path",
    "42703": "run `manage.py migrate` on this database",
    "42501": "grant this role SELECT, INSERT and UPDATE on the tables of django_runlease, and "
    "DELETE to prune",
    _READ_ONLY: "this server takes no writes: connect to the primary",
    _LOCK_TIMEOUT: "somebody keeps that row locked, as a check does while it sends its mail: try "
    "again in a moment",
}


def default_alias() -> str:
    """The database that is asked where nobody names one, whether or not it can hold leases."""
    return conf.DATABASE or router.db_for_write(RunLease)


def write_alias(using: str | None = None) -> str:
    """The database that decides: *using*, else RUNLEASE["DATABASE"], else the router's for writes.

    Raises RunLeaseError if it is not a configured PostgreSQL database.
    """
    alias = using if using is not None else default_alias()
    if not isinstance(alias, str) or alias not in connections.settings:
        raise RunLeaseError(f"there is no database {alias!r}: name one of settings.DATABASES")
    if connections[alias].vendor != "postgresql":
        raise RunLeaseError(
            f"the database {alias!r} is not PostgreSQL: leases need its row locks; name a "
            'PostgreSQL database in RUNLEASE["DATABASE"] or with using='
        )
    return alias


def in_test_case(connection: BaseDatabaseWrapper) -> bool:
    """Whether Django's TestCase holds this connection in the transaction it will roll back."""
    # The same mark that makes TestCase accept durable blocks.
    blocks: list[Any] = connection.atomic_blocks
    return bool(blocks) and bool(blocks[0]._from_testcase)


def in_test(alias: str) -> bool:
    """Whether a TestCase's connection is all there is; see :func:`in_test_case`."""
    return in_test_case(connections[alias])


@contextmanager
def lease_transaction(alias: str) -> Iterator[None]:
    """A short transaction of our own: durable, READ COMMITTED, every lock wait bounded.

    Raises RunLeaseError within somebody's open transaction: a claim made there would be invisible
    to everybody else, and gone after a rollback.
    """
    if is_in_transaction(alias):
        raise RunLeaseError(
            "a lease cannot be changed within an open transaction: that would be invisible to "
            "other hosts, and undone by a rollback. Claim first and open the transaction "
            "inside (in a view with ATOMIC_REQUESTS: @transaction.non_atomic_requests)"
        )
    connection = connections[alias]
    with _interruptible(connection), transaction.atomic(using=alias, durable=True):
        # In a TestCase the transaction is the test's: it has begun, and settings would outlive us.
        if not in_test_case(connection):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; "
                    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}"
                )
        yield


@contextmanager
def _interruptible(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Raise what a signal handler raised during the COMMIT, and leave a usable connection."""
    try:
        yield
    except ProgrammingError as error:
        # Django turns autocommit on again, which fails while the COMMIT is under way.
        cause: BaseException | None = error
        while isinstance(cause, Error | psycopg.Error):
            cause = cause.__context__
        if sqlstate(error) is not None or cause is None:
            raise
        connection.close()
        raise cause from None


def is_in_transaction(alias: str) -> bool:
    """Whether the calling thread has a transaction open, other than a TestCase's own."""
    connection = connections[alias]
    if not connection.in_atomic_block:
        return not connection.get_autocommit()
    innermost: Any = connection.atomic_blocks[-1]
    return not innermost._from_testcase


def takes_queries(alias: str) -> bool:
    """Whether the calling thread has a transaction open that has begun and has not failed."""
    connection = connections[alias]
    if connection.connection is None or connection.needs_rollback or not is_in_transaction(alias):
        return False
    status: TransactionStatus = connection.connection.info.transaction_status
    return status == TransactionStatus.INTRANS


def in_transaction(alias: str, work: Callable[[], Result]) -> Result:
    """Call *work* in a lease transaction; again, up to three times, if PostgreSQL says so."""
    for _ in range(RETRIES):
        try:
            with lease_transaction(alias):
                return work()
        except OperationalError as error:
            if sqlstate(error) not in _SERIALIZATION or in_test_case(connections[alias]):
                raise
    with lease_transaction(alias):
        return work()


def apart(alias: str, work: Callable[[], Result]) -> Result:
    """Call *work* where ``connections[alias]`` is a connection that the job cannot have touched.

    The job may have left its own in a broken transaction, without autocommit, or in the middle of
    a statement. It is a fresh one, outside any pool, so a pool that the job has exhausted does not
    matter either. Inside a TestCase only the test's connection sees the lease, so it is used.
    """
    if in_test_case(connections[alias]):
        return work()
    return start_apart(alias, work).result()


def start_apart(alias: str, work: Callable[[], Result]) -> Future[Result]:
    """Start what :func:`apart` does, without waiting for it."""
    future: Future[Result] = Future()

    def run() -> None:
        connections[alias] = own = own_connection(alias)
        try:
            with closing(own):
                result = work()
        except BaseException as error:  # noqa: BLE001  raised by future.result()
            future.set_exception(error)
        else:
            future.set_result(result)

    # A thread of its own, because the ORM finds a connection by thread and alias.
    threading.Thread(target=run, name=f"runlease-{alias}", daemon=True).start()
    return future


def own_connection(alias: str) -> BaseDatabaseWrapper:
    """A new, unopened connection to *alias* that no pool and no other thread knows."""
    template = connections[alias]
    options = {k: v for k, v in template.settings_dict["OPTIONS"].items() if k != "pool"}
    own = {"OPTIONS": {**PATIENCE, **options}, "AUTOCOMMIT": True, "CONN_MAX_AGE": None}
    settings = copy.deepcopy({**template.settings_dict, **own})
    return type(template)(settings, alias)


def database_clock(alias: str) -> float:
    """The database's clock, in epoch seconds."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT EXTRACT(EPOCH FROM clock_timestamp())::double precision")
        (now,) = cursor.fetchone()
    return float(now)


def sqlstate(error: BaseException) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def is_contention(error: BaseException) -> bool:
    """The row or table was locked for too long, or other transactions kept getting in the way."""
    return sqlstate(error) in {_LOCK_TIMEOUT, *_SERIALIZATION}


def is_connection_error(error: BaseException) -> bool:
    """The server went away, or came back as a read-only standby: whether a commit in flight
    happened is not known."""
    if not isinstance(error, DatabaseError | InterfaceError):
        return False
    state = sqlstate(error)
    if state is None:
        return isinstance(error, OperationalError | InterfaceError)
    return state.startswith("08") or state == _READ_ONLY or state in _ENDED


def explain(error: BaseException) -> str:
    """A database error in one line, with the remedy where it is known."""
    remedy = _REMEDIES.get(sqlstate(error) or "")
    if remedy is None and is_connection_error(error):
        remedy = "see that the database runs and can be reached with these settings"
    return one_line(error) + (f" — {remedy}" if remedy else "")
