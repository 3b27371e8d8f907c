"""Situations for the tests of your jobs. They work inside Django's ``TestCase``.

Rows are changed as the store would; nothing is mocked, so what your job meets is the real thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from . import clock, store
from .exceptions import RunLeaseError
from .held import HeldLease
from .holder import Holder
from .models import Outcome
from .store import Claimed, ClaimRequest, Closing
from .terms import Duration, resolve


@contextmanager
def held_by_another(
    name: str, *, ttl: Duration = "5m", holder: str = "elsewhere:1", using: str | None = None
) -> Iterator[None]:
    """Within the block another process holds *name*; after it the lease is free.

    Raises RunLeaseError if the lease cannot be claimed, as when the test itself holds it.
    """
    alias = store.write_alias(using)
    claimed = _claim(name, alias, ttl=ttl, holder=holder)
    try:
        yield
    finally:
        store.release(claimed, Closing(outcome=Outcome.SUCCEEDED))


def expire_now(held: HeldLease | str, *, using: str | None = None) -> None:
    """Let a lease, held by the test or by another, expire now.

    Given a HeldLease, its holder stops trusting it too. Raises RunLeaseError if nobody holds it.
    """
    name = held if isinstance(held, str) else held.name
    if not store.expire(name, store.write_alias(using)):
        raise RunLeaseError(f"nobody holds {name!r}, so it cannot expire")
    if isinstance(held, HeldLease):
        held.trusted_until = clock.local()


def take_over_now(
    held: HeldLease | str,
    *,
    ttl: Duration = "5m",
    holder: str = "elsewhere:1",
    using: str | None = None,
) -> None:
    """Let a lease expire, and another process claim it: what a frozen worker wakes up to.

    Raises RunLeaseError if nobody holds it.
    """
    expire_now(held, using=using)
    name = held if isinstance(held, str) else held.name
    _claim(name, store.write_alias(using), ttl=ttl, holder=holder)


@contextmanager
def unfenced(lease: str, reason: str, *, using: str | None = None) -> Iterator[None]:
    """A transaction that writes to the tables that require a fence of *lease*, without one.

    For factories and fixtures. It leaves a Run behind, as ``runlease_bypass()`` does. *using* is
    the database of the tables. Raises Django's DatabaseError where *reason* is empty.
    """
    alias = store.write_alias(using)
    with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('runlease.bypass', true), '')")
        (before,) = cursor.fetchone()
        cursor.execute("SELECT runlease_bypass(%s, %s)", [lease, reason])
        yield
        # The transaction of a TestCase goes on.
        cursor.execute("SELECT set_config('runlease.bypass', %s, true)", [before])


def _claim(name: str, alias: str, *, ttl: Duration, holder: str) -> Claimed:
    another = Holder(name=holder, host=holder.partition(":")[0], process={"pid": None})
    terms = resolve({"ttl": ttl}, renewed=False)
    request = ClaimRequest(name=name, terms=terms, holder=another, trigger="testing")
    result = store.claim(request, alias)
    if not isinstance(result, Claimed):
        raise RunLeaseError(f"{name}: {result.declined}")
    return result
