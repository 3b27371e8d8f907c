"""A lease's row: how it comes to be, and what it holds when nobody does."""

from __future__ import annotations

from typing import Any

from django.db.models import Max
from django.db.models.functions import Coalesce

from ..models import Run, RunLease

FREED: dict[str, Any] = {
    "token": None,
    "expires_at": None,
    "holder": "",
    "host": "",
    "holder_process": None,
    "progress": None,
}


def create(name: str, alias: str) -> None:
    """Insert the row of a new name; of two who try, one does.

    A row that was deleted by hand starts at the highest generation in its history, so that the
    next claim rises above it and a fence of the last holder still fails.
    """
    lease = RunLease.objects.using(alias)
    lease.bulk_create([RunLease(name=name)], ignore_conflicts=True)
    # The history is read after the insert, which keeps everybody else from claiming. A row that
    # was there already is never below its history.
    highest = (
        Run.objects.using(alias)
        .filter(lease_name=name)
        .aggregate(highest=Coalesce(Max("generation"), 0))["highest"]
    )
    if highest:
        lease.filter(name=name, generation__lt=highest).update(generation=highest)
