"""The ledger of external actions: what was begun, what is confirmed, what nobody knows.

A fence cannot take back a payment. So the intention is written down before the call, in a fenced
transaction, with an idempotency key that stays the same for every attempt of every holder; the
confirmation follows in another. Whatever stands between the two is uncertain until a job or a
person has reconciled it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from django.db.models import F

from . import store
from .clock import Now
from .exceptions import RunLeaseError
from .fencing import Lease, fenced
from .models import Effect, EffectState
from .text import check_name, storable

KIND_LENGTH = 100
KEY_LENGTH = 1_000
"""What a unique index can hold, together with the lease's name and the kind."""


class PendingEffect:
    """One external action, within the block of ``held.effect(kind, *key)``."""

    def __init__(self, row: Effect, *, confirmed: bool, uncertain: bool) -> None:
        self.key: UUID = row.idempotency_key
        """The idempotency key to send: the same for every attempt and every holder."""
        self.generation: int = row.generation
        """The generation of this attempt, which can go along as a fencing number."""
        self.confirmed = confirmed
        """It was done before, and :attr:`result` is what it gave: do nothing."""
        self.uncertain = uncertain
        """An earlier attempt never confirmed: it may have been done, so reconcile first."""
        self.result: Any = row.result
        """What to keep of the answer: anything that goes into JSON. Set it before the end."""
        self._failure: str | None = None

    def failed(self, reason: str = "") -> None:
        """Say that the action was surely not done, so that the next attempt is a first one."""
        self._failure = reason

    @property
    def failure(self) -> str | None:
        return self._failure


@contextmanager
def effect(lease: Lease, kind: str, key: tuple[object, ...]) -> Iterator[PendingEffect]:
    """Begin an external action, and confirm it at the end of the block.

    An exception leaves it uncertain, unless the block has called ``failed()``. Raises LeaseLost
    where the lease is lost, before or after; ValueError for a kind or key that cannot be kept;
    RunLeaseError within an open transaction, which would take the intention back.
    """
    what = {"lease_name": lease.name, "kind": _check_kind(kind), "key": _as_json(key)}
    _refuse_open_transaction(lease.alias)
    pending = _begin(lease, what)
    try:
        yield pending
    except BaseException:
        if pending.failure is not None:
            _finish(lease, what, pending)
        raise
    if not pending.confirmed:
        _finish(lease, what, pending)


def _begin(lease: Lease, what: dict[str, str]) -> PendingEffect:
    with fenced(lease):
        rows = Effect.objects.using(lease.alias)
        first = Effect(
            **what,
            idempotency_key=uuid.uuid4(),
            state=EffectState.FAILED,
            generation=lease.generation,
            started_at=Now(),
        )
        rows.bulk_create([first], ignore_conflicts=True)
        row = rows.select_for_update().get(**what)
        confirmed = row.state == EffectState.CONFIRMED
        uncertain = row.state == EffectState.STARTED
        if not confirmed:
            row.generation = lease.generation
            rows.filter(pk=row.pk).update(
                state=EffectState.STARTED,
                generation=lease.generation,
                attempts=F("attempts") + 1,
                reason="",
                started_at=Now(),
                finished_at=None,
            )
    return PendingEffect(row, confirmed=confirmed, uncertain=uncertain)


def _finish(lease: Lease, what: dict[str, str], pending: PendingEffect) -> None:
    failed = pending.failure is not None
    with fenced(lease):
        Effect.objects.using(lease.alias).filter(**what, state=EffectState.STARTED).update(
            state=EffectState.FAILED if failed else EffectState.CONFIRMED,
            result=None if failed else pending.result,
            reason=storable(pending.failure or ""),
            finished_at=Now(),
        )


def _check_kind(kind: str) -> str:
    check_name(kind)
    if len(kind) > KIND_LENGTH:
        raise ValueError(f"an effect's kind has at most {KIND_LENGTH} characters: {kind[:40]!r}…")
    return kind


def _as_json(key: tuple[object, ...]) -> str:
    try:
        text = json.dumps(key, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"an effect's key is of text, numbers, None, lists and dicts: {error}"
        ) from None
    if len(text) > KEY_LENGTH:
        raise ValueError(
            f"an effect's key has at most {KEY_LENGTH} characters as JSON: {text[:40]}…"
        )
    return text


def _refuse_open_transaction(alias: str) -> None:
    if store.is_in_transaction(alias):
        raise RunLeaseError(
            "an effect cannot begin within an open transaction: a rollback would take back that "
            "the action was begun. Leave the transaction or the fence first"
        )
