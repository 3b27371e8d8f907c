"""A lease's row: how it comes to be, and what it holds when nobody does."""

from __future__ import annotations

from typing import Any

from django.db.models import Max
from django.db.models.functions import Coalesce

from ..models import Run, RunLease
from . import tallying

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

    A row that was removed, or deleted by hand, starts at the highest generation that its tally or
    its history knows, so that the next claim rises above it and a fence of the last holder still
    fails.
    """
    lease = RunLease.objects.using(alias)
    lease.bulk_create([RunLease(name=name)], ignore_conflicts=True)
    # What is known is read after the insert, which keeps everybody else from claiming, and waits
    # for a removal that is under way. A row that was there already is never below it.
    in_history = (
        Run.objects.using(alias)
        .filter(lease_name=name)
        .aggregate(highest=Coalesce(Max("generation"), 0))["highest"]
    )
    highest = max(in_history, tallying.generation_kept(name, alias))
    if highest:
        lease.filter(name=name, generation__lt=highest).update(generation=highest)
