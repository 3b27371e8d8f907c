"""Runs that are still open although their holders are gone."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from django.db.models import Exists, OuterRef, Subquery
from django.db.models.functions import Least

from ..clock import Now
from ..holder import is_dead, living_group
from ..models import Outcome, Run, RunLease
from .connection import in_transaction
from .records import Closed
from .runs import close_all, tell_closed

_LEASE = RunLease.objects.filter(name=OuterRef("lease_name"))
_OWN_CLAIM = _LEASE.filter(token=OuterRef("token"))
_LATER_CLAIM = _LEASE.filter(claimed_at__gt=OuterRef("started_at"))

# A holder is gone at the latest when its lease expired, or somebody else claimed. PostgreSQL's
# LEAST passes over what is not known.
_END = Least(
    Now(),
    Subquery(_OWN_CLAIM.values("expires_at")[:1]),
    Subquery(_LATER_CLAIM.values("claimed_at")[:1]),
)


def close_dead_runs(alias: str, name: str | None = None) -> list[Closed]:
    """Close as ``abandoned`` each open Run, of all leases or of *name*, whose lease has expired or
    belongs to somebody else, or whose process is seen to be gone; tell, and say which. One whose
    program is seen to outlive its lease stays open.

    The leases stay as they are. A holder that wakes may still write down how its Run really ended.
    Raises RunLeaseError within an open transaction, and Django's database errors.
    """
    closed = in_transaction(alias, lambda: _close(alias, name))
    tell_closed(closed, alias)
    return closed


def _close(alias: str, name: str | None) -> list[Closed]:
    closed: list[Closed] = []
    for reason, keys in _gone(alias, name).items():
        open_runs = Run.objects.using(alias).filter(outcome=Outcome.RUNNING)
        # One that is locked is being closed by somebody who knows more.
        lock = open_runs.filter(pk__in=keys).select_for_update(skip_locked=True)
        locked = open_runs.filter(pk__in=list(lock.values_list("pk", flat=True)))
        closed += close_all(locked, outcome=Outcome.ABANDONED, end=_END, reason=reason)
    return closed


def _gone(alias: str, name: str | None) -> dict[str, list[int]]:
    """The open Runs whose holders are gone, by the reason; none of them comes back to life.

    In one statement, so that a claim is seen together with its Run. A beat in flight may yet renew
    a lease that looks expired here: then its holder closes its Run once more, at its release.
    """
    runs = Run.objects.using(alias).filter(outcome=Outcome.RUNNING)
    if name is not None:
        runs = runs.filter(lease_name=name)
    rows = runs.annotate(
        current=Exists(_OWN_CLAIM),
        unexpired=Exists(_OWN_CLAIM.filter(expires_at__gt=Now())),
        process=Subquery(_OWN_CLAIM.values("holder_process")[:1]),
    ).values("pk", "current", "unexpired", "host", "process")
    gone: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        if reason := _reason(**row):
            gone[reason].append(row["pk"])
    return gone


def _reason(*, current: bool, unexpired: bool, host: str, process: Any, pk: int) -> str | None:
    if not current:
        return "never closed; its lease has changed hands"
    if not unexpired:
        # A program that has outlived its lease is still at it, and claims wait for it.
        left = living_group(host, process)
        return "never released; its lease had expired" if left is None else None
    return "never released; its process is gone" if is_dead(host, process) else None
