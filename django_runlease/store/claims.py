"""Claim: one cheap read, then the row lock, then the same read again, then the write."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.models import (
    BooleanField,
    Case,
    Exists,
    ExpressionWrapper,
    F,
    OuterRef,
    Q,
    Value,
    When,
)
from django.db.models.functions import Greatest

from ..clock import Epoch, Instant, Now, Seconds, utc
from ..exceptions import Declined, DeclineReason, RunLeaseError
from ..holder import is_dead, living_group
from ..models import Outcome, Run, RunLease
from . import rows
from .connection import (
    database_clock,
    in_transaction,
    is_connection_error,
    is_contention,
    sqlstate,
)
from .holding import release_in_doubt
from .records import Claimed, ClaimRequest, Refusal
from .runs import BROKEN, abandon_open_runs, open_run

FURTHEST_TICK = 60.0
"""Seconds a tick may lie ahead of the database's clock where ``every`` does not allow more."""

CREATIONS = 5
"""How often a row that is deleted while it is being claimed is inserted again."""


def claim(
    request: ClaimRequest, alias: str, *, waiting_since: float | None = None
) -> Claimed | Refusal:
    """Claim the lease, or say why not. Never waits for a row lock.

    Raises RunLeaseError within an open transaction, ValueError for a tick too far ahead, and
    Django's database errors; whenever it raises, the lease is not held by this request.
    """
    written = False

    def attempt() -> Claimed | Refusal | None:
        nonlocal written
        result = _attempt(request, alias, waiting_since)
        written = written or isinstance(result, Claimed)
        return result

    try:
        return _claim(attempt, request.name, alias)
    except BaseException as error:
        if is_contention(error):
            return _busy(request, alias)
        if written and _may_have_committed(error):
            release_in_doubt(request, alias)
        raise


def _claim(
    attempt: Callable[[], Claimed | Refusal | None], name: str, alias: str
) -> Claimed | Refusal:
    for _ in range(CREATIONS):
        result = in_transaction(alias, attempt)
        if result is not None:
            return result
        in_transaction(alias, partial(rows.create, name, alias))
    raise RunLeaseError(
        f"the lease {name!r} is not there after inserting it: is there a row security "
        "policy, a trigger or a process that takes it away?"
    )


def _may_have_committed(error: BaseException) -> bool:
    """Whether *error*, after the claim's write, leaves open if its commit took place: a lost
    connection, or an exception from a signal handler while the answer was awaited."""
    if isinstance(error, DatabaseError | InterfaceError):
        # Without a sqlstate it is the client's, and may cover up what interrupted a commit.
        return sqlstate(error) is None or is_connection_error(error)
    return True


def preview(request: ClaimRequest, alias: str) -> Refusal | None:
    """What a claim would be refused for at this moment; None if it would be granted."""

    def read() -> Refusal | None:
        if look := _look(request, alias):
            return look.refusal(request, look)
        _check_tick(request, database_clock(alias))
        return None

    return in_transaction(alias, read)


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A lease as one statement saw it. Times are epoch seconds, comparisons PostgreSQL's."""

    pk: int
    now: float
    generation: int
    token: UUID | None
    holder: str
    host: str
    holder_process: Any
    taken: bool
    held: bool
    paused: bool
    early: bool
    broken: bool
    tick_run: bool
    claimed_epoch: float | None
    expires_epoch: float | None
    due_epoch: float | None

    @cached_property
    def vacated(self) -> bool:
        """Whether nobody needs to await the holder: its process is gone, or its lease has expired
        and no program of it is left."""
        return is_dead(self.host, self.holder_process) if self.held else self.left_group is None

    @cached_property
    def left_group(self) -> int | None:
        """The process group of a program on our kernel that has outlived its holder's lease."""
        expired = self.taken and not self.held
        return living_group(self.host, self.holder_process) if expired else None

    def refusal(self, request: ClaimRequest, judged: _Look) -> Refusal | None:
        """Why not to grant a claim, with what was found out about the holder as *judged* saw it."""
        _check_tick(request, self.now)
        reason = self._reason(request, judged)
        return self.refused(reason) if reason else None

    def refused(self, reason: DeclineReason) -> Refusal:
        until = self.due_epoch if reason == "not_due" else self.expires_epoch
        declined = Declined(
            reason,
            holder=self.holder if self.taken else "",
            expires_at=utc(until),
            held_since=utc(self.claimed_epoch) if self.taken else None,
            left_group=self.left_group if reason == "held" else None,
        )
        return Refusal(declined=declined, now=self.now, not_before=self.due_epoch)

    def _reason(self, request: ClaimRequest, judged: _Look) -> DeclineReason | None:
        if self.paused:
            return "paused"
        as_judged = self.token == judged.token and self.held <= judged.held
        if self.taken and not (as_judged and judged.vacated):
            return "held"
        # Its holder may still be at work, which no manual retry may ignore.
        if self.broken:
            return "not_due"
        if request.ignore_schedule:
            return None
        # A tick that has had its run stays so: it comes before the reason that will pass.
        if self.tick_run:
            return "same_tick"
        return "not_due" if self.early else None


def _check_tick(request: ClaimRequest, now: float) -> None:
    if request.tick is None:
        return
    every = request.terms.every
    furthest = max(every.total_seconds(), FURTHEST_TICK) if every else FURTHEST_TICK
    if request.tick.timestamp() - now > furthest:
        raise ValueError(
            f"tick: {request.tick.isoformat()} lies more than {furthest:g} seconds ahead of the "
            "database's clock; it would keep every earlier tick from running"
        )


def _look(request: ClaimRequest, alias: str) -> _Look | None:
    is_ = partial(ExpressionWrapper, output_field=BooleanField())
    row: dict[str, Any] | None = (
        RunLease.objects.using(alias)
        .filter(name=request.name)
        .annotate(
            now=Epoch(Now()),
            taken=is_(Q(token__isnull=False)),
            held=true_or_false(Q(expires_at__gt=Now())),
            early=true_or_false(Q(not_before__gt=Now())),
            broken=true_or_false(AFTER_BREAK),
            tick_run=true_or_false(_tick_run(request)),
            claimed_epoch=Epoch("claimed_at"),
            expires_epoch=Epoch("expires_at"),
            due_epoch=Epoch("not_before"),
        )
        .values(*_Look.__dataclass_fields__)
        .first()
    )
    return _Look(**row) if row else None


# The last claim's Run, by the index of the history.
_LAST_RUN = Run.objects.filter(lease_name=OuterRef("name"), started_at=OuterRef("claimed_at"))
_BROKEN = _LAST_RUN.filter(outcome=Outcome.LOST, reason__startswith=BROKEN)

AFTER_BREAK = Q(not_before__gt=Now()) & Q(Exists(_BROKEN))
"""The lease was taken from its last holder, which may still be at work."""


def _tick_run(request: ClaimRequest) -> Q:
    if request.tick is None:
        return Q(pk__in=[])
    tick = Instant(request.tick.timestamp())
    # A tick whose own holder never released may be run again: that holder crashed in it, and not
    # in a later claim for another tick or for none.
    crashed_later = _LAST_RUN.filter(~Q(tick=tick), token=OuterRef("token"))
    has_run = Q(token__isnull=True) | Q(Exists(crashed_later))
    return Q(last_tick__gt=tick) | (Q(last_tick=tick) & has_run)


def true_or_false(condition: Q) -> Case:
    return Case(
        When(condition, then=Value(True)), default=Value(False), output_field=BooleanField()
    )


def _attempt(
    request: ClaimRequest, alias: str, waiting_since: float | None
) -> Claimed | Refusal | None:
    """One transaction's try; None if the lease has no row."""
    first = _look(request, alias)
    if first is None:
        _check_tick(request, database_clock(alias))
        return None
    if refusal := first.refusal(request, first):
        return refusal
    # FOR UPDATE and not FOR NO KEY UPDATE: a fence's FOR KEY SHARE has to keep a claim out.
    lock = RunLease.objects.using(alias).select_for_update(skip_locked=True)
    locked = list(lock.filter(pk=first.pk).values_list("pk"))
    look = _look(request, alias)
    if look is None:
        return None
    if not locked:
        return look.refused("busy")
    if refusal := look.refusal(request, first):
        return refusal
    return _write(request, alias, look, waiting_since)


def _busy(request: ClaimRequest, alias: str) -> Refusal:
    """A refusal after a lock timeout, with the holder if the row can be read by now."""
    try:
        look = in_transaction(alias, partial(_look, request, alias))
    except OperationalError as error:
        if not is_contention(error):
            raise
        look = None
    return look.refused("busy") if look else Refusal(declined=Declined("busy"), now=None)


def _write(request: ClaimRequest, alias: str, look: _Look, waiting_since: float | None) -> Claimed:
    now = Instant(look.now)
    values: dict[str, Any] = {}
    if request.tick is not None:
        # A manual retry may name an old tick, which must not open the later ones again.
        values["last_tick"] = Greatest(F("last_tick"), Instant(request.tick.timestamp()))
    RunLease.objects.using(alias).filter(pk=look.pk).update(
        token=request.token,
        generation=F("generation") + 1,
        expires_at=now + Seconds(request.terms.ttl),
        ttl=request.terms.ttl,
        every=request.terms.every,
        holder=request.holder.name,
        host=request.holder.host,
        holder_process=request.holder.written(request.runs),
        claimed_at=now,
        renewed_at=now,
        heartbeat=request.heartbeat,
        progress=None,
        **values,
    )
    abandoned = abandon_open_runs(request, alias, now=look.now, expired_at=look.expires_epoch)
    generation = look.generation + 1
    took_over_from = look.holder if look.taken else ""
    run_id = open_run(
        request,
        alias,
        generation=generation,
        now=look.now,
        waiting_since=waiting_since,
        took_over_from=took_over_from,
    )
    return Claimed(
        name=request.name,
        token=request.token,
        generation=generation,
        alias=alias,
        run_id=run_id,
        claimed_at=look.now,
        took_over_from=took_over_from,
        because="its process is gone" if look.held else "its lease had expired",
        holder=request.holder.name,
        abandoned=tuple(abandoned),
    )
