"""The fence: the caller's writes commit only if nobody has taken the lease over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import connections, transaction

from .exceptions import LeaseLost, RunLeaseError
from .models import RunLease

# FOR KEY SHARE lets renewals and other fences of this holder pass, and keeps claim, break and
# release (which change the uniquely indexed token) out until the caller's transaction ends.
_FENCE = "SELECT 1 FROM {table} WHERE name = %s AND token = %s FOR KEY SHARE"


@contextmanager
def fenced(name: str, token: UUID, alias: str, using: str | None = None) -> Iterator[None]:
    """``transaction.atomic`` on the lease's database, in which the lease cannot change hands.

    Raises LeaseLost, before the block runs, if it has already; the block's writes are then rolled
    back together with the transaction around it.
    """
    if using not in (None, alias):
        raise RunLeaseError(
            f"{name}: a fence works in the database of its lease ({alias!r}), not in {using!r}"
        )
    with transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            table = connections[alias].ops.quote_name(RunLease._meta.db_table)
            cursor.execute(_FENCE.format(table=table), [name, token])
            if cursor.fetchone() is None:
                raise LeaseLost(name, "the lease is no longer ours, so nothing is written")
        yield
