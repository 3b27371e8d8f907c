"""What a holder does to its lease: renew it, release it. Both need the token, and no more."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from django.db import DatabaseError, InterfaceError

from .. import log
from ..clock import Instant, Now, Seconds
from ..holder import group_led_by
from ..models import Outcome, Run, RunLease, RunLeaseQuerySet
from . import rows, runs
from .connection import apart, in_transaction, is_connection_error, is_contention
from .records import Claimed, ClaimRequest, Closing, Loss

Result = TypeVar("Result")

LOCK_TRIES = 3
"""How many lock timeouts a holder waits for its own row."""

DOUBT_PAUSES = (0.0, 0.1, 0.3, 0.6, 1.0)
"""Seconds before each try to read back a claim whose commit is in doubt."""


def renew(claimed: Claimed, ttl: timedelta, progress: dict[str, Any] | None) -> Loss | None:
    """Let the lease last another *ttl* from now; or say why it is lost.

    An expired lease is not revived, even if nobody has claimed it yet: its holder has stopped
    trusting it. Raises Django's database errors.
    """

    def work() -> Loss | None:
        # FOR NO KEY UPDATE passes the fences of this holder. It may wait, but the clock is read
        # once it has the row, in the next statement.
        lock = _ours(claimed.name, claimed.token, claimed.alias).select_for_update(no_key=True)
        if not list(lock.values_list("pk")):
            return why_gone(claimed)
        renewed = _ours(claimed.name, claimed.token, claimed.alias).filter(expires_at__gt=Now())
        if renewed.update(expires_at=Now() + Seconds(ttl), renewed_at=Now(), progress=progress):
            return None
        return Loss(reason="expired", detail="it expired before it was renewed")

    return _again_if_cut(claimed.alias, work, work)


def release(
    claimed: Claimed, closing: Closing, *, at_least: timedelta | None = None
) -> Loss | None:
    """Free the lease and close its Run; or, if the lease is not ours any more, say why.

    In that case nothing changes but our own Run, which becomes ``lost``. With *at_least*, nobody
    may claim before that much has passed since our claim. Raises Django's database errors.
    """

    def work() -> Loss | None:
        if _free(claimed, closing, at_least):
            return None
        loss = why_gone(claimed)
        told = loss.detail.endswith(closing.reason)
        reason = loss.detail if told else f"{loss.detail}; {closing.reason}"
        lost = Closing(
            outcome=Outcome.LOST,
            reason=reason,
            exit_code=closing.exit_code,
            error=closing.error,
            output=closing.output,
        )
        runs.amend_to_lost(claimed.run_id, claimed.token, lost, claimed.alias)
        return loss

    def again() -> Loss | None:
        # The first try may have been committed before its answer was cut off. By name, so that
        # this waits for a commit that is still under way on the lost connection.
        lock = RunLease.objects.using(claimed.alias).select_for_update().filter(name=claimed.name)
        list(lock.values_list("pk"))
        if runs.is_closed_by(claimed.run_id, claimed.token, closing, claimed.alias):
            return None
        return work()

    return _again_if_cut(claimed.alias, work, again)


def close_run(claimed: Claimed, closing: Closing) -> None:
    """Close the Run and leave the lease as it is. Raises Django's database errors."""
    if closing.outcome == Outcome.LOST:
        work = partial(runs.amend_to_lost, claimed.run_id, claimed.token, closing, claimed.alias)
    else:
        work = partial(runs.close, claimed.run_id, claimed.token, closing, claimed.alias)
    _again_if_cut(claimed.alias, work, work)


def note_group(claimed: Claimed, group: int) -> bool:
    """Add a program's process group to what the lease says of its holder; False if it is lost.

    *group* is the pid of its leader, which runs.
    """
    program = group_led_by(group)

    def work() -> bool:
        ours = _ours(claimed.name, claimed.token, claimed.alias)
        process = ours.select_for_update(no_key=True).values_list("holder_process", flat=True)
        return any(ours.update(holder_process={**(known or {}), **program}) for known in process)

    return _again_if_cut(claimed.alias, work, work)


def is_ours_now(name: str, token: UUID, alias: str) -> bool:
    """Whether the lease's row has *token*, asked apart from the caller's transaction, which may
    be aborted or see an old state."""
    return apart(alias, _ours(name, token, alias).exists)


def release_in_doubt(request: ClaimRequest, alias: str) -> None:
    """Release the claim of *request* if it was committed after all.

    For a claim that ended in an error, which the caller raises. If the database stays away, the
    lease expires by itself; that is logged.
    """

    def work() -> None:
        # By name, so that this waits for a commit that is still under way on the lost connection.
        lock = RunLease.objects.using(alias).select_for_update().filter(name=request.name)
        tokens = list(lock.values_list("token", flat=True))
        if tokens != [request.token]:
            return
        run = Run.objects.using(alias).running().get(lease_name=request.name, token=request.token)
        claimed = Claimed(
            name=request.name,
            token=request.token,
            generation=run.generation or 0,
            alias=alias,
            run_id=run.pk,
            claimed_at=0,
            took_over_from="",
        )
        reason = "the claim's answer was lost, so the job did not run"
        _free(claimed, Closing(outcome=Outcome.FAILED, reason=reason), None)

    for pause in DOUBT_PAUSES:
        time.sleep(pause)
        try:
            apart(alias, partial(in_transaction, alias, work))
        except (DatabaseError, InterfaceError) as error:
            problem = error
        else:
            return
    log.warning(
        "claim_in_doubt",
        "%s: claimed perhaps, and not released, since the database does not answer (%s); "
        "such a lease expires after its ttl",
        request.name,
        problem,
        lease=request.name,
    )


def _ours(name: str, token: UUID, alias: str) -> RunLeaseQuerySet:
    return RunLease.objects.using(alias).filter(name=name, token=token)


def _free(claimed: Claimed, closing: Closing, at_least: timedelta | None) -> bool:
    lock = _ours(claimed.name, claimed.token, claimed.alias).select_for_update()
    if not list(lock.values_list("pk")):
        return False
    _ours(claimed.name, claimed.token, claimed.alias).update(
        not_before=Instant(claimed.claimed_at) + Seconds(at_least) if at_least else None,
        **rows.FREED,
    )
    runs.close_held(claimed.run_id, claimed.token, closing, claimed.alias)
    return True


def why_gone(claimed: Claimed) -> Loss:
    """Why the token of *claimed* is not in its lease's row any more."""
    run = Run.objects.using(claimed.alias).filter(pk=claimed.run_id, token=claimed.token).first()
    if run and run.outcome == Outcome.LOST and run.reason.startswith(runs.BROKEN):
        return Loss(reason="broken", detail=run.reason)
    lease = RunLease.objects.using(claimed.alias).filter(name=claimed.name).first()
    if lease is None:
        return Loss(reason="broken", detail="its row was deleted")
    if lease.holder:
        return Loss(reason="taken", detail=f"it expired and {lease.holder} took it over")
    return Loss(reason="taken", detail="it expired and somebody else has run since")


def why_gone_now(claimed: Claimed) -> Loss:
    """:func:`why_gone`, asked apart from the caller's transaction."""
    return apart(claimed.alias, partial(why_gone, claimed))


def _again_if_cut(alias: str, work: Callable[[], Result], again: Callable[[], Result]) -> Result:
    """Run *work* apart from the job's connection; after a connection error *again*, once.

    A row that others keep locked is waited for several times over.
    """
    for tries_left in reversed(range(LOCK_TRIES)):
        try:
            return apart(alias, partial(in_transaction, alias, work))
        except (DatabaseError, InterfaceError) as error:
            if is_connection_error(error):
                break
            if not tries_left or not is_contention(error):
                raise
    return apart(alias, partial(in_transaction, alias, again))
