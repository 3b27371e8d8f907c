"""How a run ends, and how a lease is lost without anybody taking it: in words for people."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime, timedelta

from . import clock
from .exceptions import JobTimeout, LeaseLost, Stopped
from .models import Outcome
from .store import Closing, Loss
from .terms import short
from .text import summary


def closing_for(error: BaseException | None) -> Closing:
    """How a run that ended with *error* goes into the history."""
    if error is None:
        return Closing(outcome=Outcome.SUCCEEDED)
    if isinstance(error, LeaseLost):
        outcome = Outcome.LOST
    elif isinstance(error, JobTimeout):
        outcome = Outcome.STALLED if error.stalled else Outcome.TIMED_OUT
    elif isinstance(error, SystemExit) and not isinstance(error, Stopped):
        outcome = Outcome.FAILED if error.code else Outcome.SUCCEEDED
    else:
        outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.TERMINATED
    return Closing(
        outcome=outcome,
        reason=summary(error),
        error="".join(traceback.format_exception(error)),
    )


def untrusted(renewed_at: float, *, beating: bool) -> Loss:
    """The loss of a lease whose trusted time is over, last renewed at *renewed_at*, on the local
    clock; *beating*: by a heartbeat."""
    silent, since = short(clock.local() - renewed_at), _moment(renewed_at)
    if beating:
        detail = f"the database has renewed nothing for {silent}, since {since}"
        return Loss(reason="unreachable", detail=detail)
    return Loss(reason="expired", detail=f"it was not renewed for {silent}, since {since}")


def stalled(progressed: float, stall_after: timedelta | None) -> Loss:
    """The loss of a lease whose job last made progress at *progressed*, on the local clock."""
    detail = (
        f"the job has made no progress since {_moment(progressed)}, for longer than "
        f"its stall_after of {short(stall_after or 0)}"
    )
    return Loss(reason="stalled", detail=detail)


def _moment(local: float) -> str:
    instant = datetime.now(UTC) - timedelta(seconds=clock.local() - local)
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
