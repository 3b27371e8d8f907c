"""The ledger of external actions: what was begun, what is confirmed, what nobody knows.

A fence cannot take back a payment. So the intention is written down before the call, in a fenced
transaction, with an idempotency key that stays the same for every attempt of every holder; the
confirmation follows in another. Whatever stands between the two is uncertain until a job or a
person has reconciled it.
"""

from __future__ import annotations

import json
import unicodedata
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime
from decimal import Context, Decimal, DecimalException, Inexact, InvalidOperation, Overflow
from functools import partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Q

from . import store
from .clock import Now
from .exceptions import RunLeaseError
from .fencing import Lease, database, fenced
from .models import Effect, EffectState
from .text import storable

_DURABLE = """
    SELECT set_config('synchronous_commit', 'on', true)
     WHERE current_setting('synchronous_commit') = 'off'
"""

KIND_LENGTH = 100
KEY_LENGTH = 1_000
"""What a unique index can hold, together with the lease's name and the kind."""

_EXACT = Context(
    prec=KEY_LENGTH, Emax=KEY_LENGTH, Emin=-KEY_LENGTH, traps=[Inexact, InvalidOperation, Overflow]
)


_PLAIN = "text, numbers, None, lists and dicts"


class PendingEffect:
    """One external action, within the block of ``held.effect(kind, *key)``."""

    def __init__(self, row: Effect, *, confirmed: bool, uncertain: bool) -> None:
        self.key: UUID = row.idempotency_key
        """The idempotency key to send: the same for every attempt and every holder."""
        self.generation: int = row.generation
        """The generation of this attempt, which can go along as a fencing number; for a confirmed
        effect, of the attempt that was confirmed."""
        self.attempt: int = row.attempts
        """Which attempt this is, from 1 on; for a confirmed effect, how many there were."""
        self.confirmed = confirmed
        """It was done before, and :attr:`result` is what it gave: do nothing."""
        self.uncertain = uncertain
        """An earlier attempt never confirmed: it may have been done, so reconcile first."""
        self.failure: str | None = None
        """The reason given to :meth:`failed`, which has not been called while this is None."""
        self._result: Any = row.result

    @property
    def result(self) -> Any:
        """What to keep of the answer: text, numbers, None, lists and dicts. Set it in the block.

        Raises ValueError, at the assignment, for what PostgreSQL cannot keep as JSON.
        """
        return self._result

    @result.setter
    def result(self, value: object) -> None:
        result = json.loads(_as_json(value, f"an effect's result is of {_PLAIN}", _refuse))
        if any(storable(text) != text for text in _texts(result)):
            raise ValueError("an effect's result has neither NUL nor lone surrogates in its text")
        self._result = result

    def failed(self, reason: str = "") -> None:
        """Say that the action was surely not done, in this attempt or an earlier one, so that the
        next attempt is like a first one."""
        self.failure = reason


@contextmanager
def effect(lease: Lease, kind: str, key: tuple[object, ...]) -> Iterator[PendingEffect]:
    """Begin an external action, and confirm it at the end of the block.

    A *key* is of text, numbers, None, lists and dicts, compared as JSON: 1, 1.0, True and ``"1"``
    are four keys. A UUID, a date, an aware datetime and a Decimal are the same key as their text:
    ``str(uuid)``, ISO 8601, in UTC with six digits of a second and a ``Z`` for a datetime, and for
    a Decimal its digits without zeros at the end.

    An exception leaves it uncertain, unless the block has called ``failed()``. Raises LeaseLost
    where the lease is lost, before or after; ValueError for a kind or key that cannot be kept;
    RunLeaseError within an open transaction of the lease's database, by whatever alias.
    """
    what = {"lease_name": lease.name, "kind": _check_kind(kind), "key": _check_key(key)}
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


@contextmanager
def _written_down(lease: Lease) -> Iterator[None]:
    """A fenced transaction whose commit survives a crash of the server, as the action does."""
    with store.lease_transaction(lease.alias), fenced(lease):
        with connections[lease.alias].cursor() as cursor:
            cursor.execute(_DURABLE)
        yield


def _begin(lease: Lease, what: dict[str, str]) -> PendingEffect:
    with _written_down(lease):
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
            row.attempts += 1
            rows.filter(pk=row.pk).update(
                state=EffectState.STARTED,
                generation=row.generation,
                attempts=row.attempts,
                reason="",
                started_at=Now(),
                finished_at=None,
            )
    return PendingEffect(row, confirmed=confirmed, uncertain=uncertain)


def _finish(lease: Lease, what: dict[str, str], pending: PendingEffect) -> None:
    write = partial(_write_end, lease, what, pending)
    try:
        write()
    except (DatabaseError, InterfaceError) as error:
        # The connection was idle for as long as the action took. Written twice, it is the same.
        if not store.is_connection_error(error):
            raise
        store.apart(lease.alias, write)


def _write_end(lease: Lease, what: dict[str, str], pending: PendingEffect) -> None:
    unconfirmed = ~Q(state=EffectState.CONFIRMED)
    with _written_down(lease):
        rows = Effect.objects.using(lease.alias).filter(unconfirmed, **what)
        if pending.failure is None:
            rows.update(
                state=EffectState.CONFIRMED, result=pending.result, reason="", finished_at=Now()
            )
        else:
            # Not over the head of a later attempt, which another thread may be making.
            rows.filter(attempts=pending.attempt).update(
                state=EffectState.FAILED, reason=storable(pending.failure), finished_at=Now()
            )


def _check_kind(kind: object) -> str:
    if (
        isinstance(kind, str)
        and 1 <= len(kind) <= KIND_LENGTH
        and kind.isprintable()
        and kind == kind.strip() == unicodedata.normalize("NFC", kind)
    ):
        return kind
    raise ValueError(
        f"an effect's kind is a string of 1 to {KIND_LENGTH} printable characters in Unicode form "
        f"NFC, without space at either end, which {str(kind)[:40]!r} is not"
    )


def _check_key(key: tuple[object, ...]) -> str:
    what = f"an effect's key is of {_PLAIN}, or UUIDs, dates, aware datetimes and Decimals"
    text = _as_json(key, what, _as_text)
    if len(text) > KEY_LENGTH:
        raise ValueError(
            f"an effect's key has at most {KEY_LENGTH} characters as JSON: {text[:40]}…"
        )
    return text


def _as_json(value: object, what: str, default: Callable[[object], str]) -> str:
    try:
        if not all(isinstance(text, str) for text in _texts(value)):
            raise TypeError("a dict's keys are text")
        return json.dumps(
            value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=default
        )
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what}: {error}") from None


def _refuse(value: object) -> str:
    raise TypeError(
        f"a value of the type {type(value).__name__} is not JSON serializable: give its text, or "
        "the primary key of a model's instance"
    )


def _as_text(value: object) -> str:
    """What stands for a part of a key that JSON does not know: one text for equal values."""
    match value:
        case UUID():
            return str(value)
        case datetime():
            if value.utcoffset() is None:
                raise TypeError(f"{value.isoformat()} has no UTC offset: give an aware datetime")
            utc = value.astimezone(UTC).replace(tzinfo=None)
            return utc.isoformat(timespec="microseconds") + "Z"
        case date():
            return value.isoformat()
        case Decimal():
            return _digits(value)
    return _refuse(value)


def _digits(value: Decimal) -> str:
    if value.is_finite():
        with suppress(DecimalException):
            # plus() makes -0 into 0.
            return f"{_EXACT.plus(_EXACT.normalize(value)):f}"
    raise TypeError(f"the Decimal {value} is not finite, or too long")


def _texts(value: object) -> Iterator[Any]:
    """All texts in *value*, and the keys of its dicts: JSON would turn a key 1 into "1"."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _refuse_open_transaction(alias: str) -> None:
    opened = [
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.connection is not None and store.is_in_transaction(connection.alias)
    ]
    if alias in opened or any(_is_the_same(other, alias) for other in opened):
        raise RunLeaseError(
            "an effect cannot begin within an open transaction of its lease's database: a rollback "
            "would take back what belongs to the action, and not the action. Leave the "
            "transaction or the fence first"
        )


def _is_the_same(other: str, alias: str) -> bool:
    # Apart, because a transaction that has failed takes no query.
    return connections[other].vendor == "postgresql" and bool(
        store.apart(other, partial(database, other)) == database(alias)
    )
