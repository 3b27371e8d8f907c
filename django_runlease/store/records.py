"""What the operations take and give."""

from __future__ import annotations

import math
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from ..exceptions import Declined
from ..holder import Holder, this_process
from ..models import Outcome
from ..terms import Terms
from ..text import check_name, storable

LostReason = Literal["taken", "broken", "expired", "unreachable", "stalled"]


@dataclass(frozen=True, kw_only=True)
class ClaimRequest:
    """One process's wish to hold one lease. Raises ValueError for a bad name or tick."""

    name: str
    terms: Terms
    tick: datetime | None = None
    """The scheduled moment that this run is for; it is run once."""
    ignore_schedule: bool = False
    """A manual retry: neither the minimum hold nor the tick stands in its way, a holder does."""
    trigger: str = "api"
    runs: str = ""
    """The function, command or program that it is for; empty if that is not known."""
    heartbeat: bool = True
    """Whether the holder will renew it in the background."""
    holder: Holder = field(default_factory=this_process)
    token: UUID = field(default_factory=uuid.uuid4)
    """Made here and not by the database, so that a claim whose commit is in doubt can be found."""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.tick is not None and not isinstance(self.tick, datetime):
            raise ValueError(f"tick: {self.tick!r} is not a datetime")
        if self.tick is not None and self.tick.utcoffset() is None:
            raise ValueError(
                f"tick: {self.tick.isoformat()} has no UTC offset, so hosts may read it "
                "differently: add one, as in 2030-01-31T06:00:00+00:00"
            )


@dataclass(frozen=True, kw_only=True)
class Closed:
    """A Run that somebody else than its holder closed."""

    name: str
    run_id: int
    generation: int | None
    holder: str
    outcome: Outcome
    reason: str
    duration: float
    """Seconds."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A claim that was granted. Times are epoch seconds on the database's clock."""

    name: str
    token: UUID
    generation: int
    alias: str
    run_id: int
    claimed_at: float
    took_over_from: str
    """The holder that never released; else empty."""
    because: str = ""
    """Why it could be taken over."""
    holder: str = ""
    abandoned: tuple[Closed, ...] = ()
    """The Runs that former holders had left open, and this claim closed."""


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A claim that was not granted, with what a caller who waits has to know."""

    declined: Declined
    now: float | None
    """The database's clock when it was refused; None where it could not be read."""
    not_before: float | None = None
    """The earliest moment of a claim, in epoch seconds; None if there is none."""


@dataclass(frozen=True, kw_only=True)
class Closing:
    """How a run ended, as its holder says."""

    outcome: Outcome
    reason: str = ""
    exit_code: int | None = None
    error: str = ""
    output: str = ""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Why a lease is no longer ours."""

    reason: LostReason
    detail: str

    def __str__(self) -> str:
        return self.detail


@dataclass(frozen=True, kw_only=True)
class Beat:
    """What one lease is renewed with."""

    claimed: Claimed
    ttl: timedelta
    progress: dict[str, Any] | None


Answer = Literal["renewed", "skipped"] | Loss
"""What a beat did for one lease. skipped: its row was locked; the beat did not wait for it."""


def progress(done: float, total: float | None, message: str) -> dict[str, Any]:
    """How far a job is, as the lease's row keeps it. Raises ValueError for what is no finite
    number."""
    return {
        "done": _finite(done),
        "total": None if total is None else _finite(total),
        "message": storable(str(message)),
    }


def _finite(number: float) -> float:
    # Decimals and the numbers of other libraries have no form in JSON.
    plain = number if isinstance(number, int) else float(number)
    try:
        finite = math.isfinite(plain)
    except OverflowError:
        finite = False
    if not finite:
        raise ValueError("progress is told in finite numbers that a float can hold")
    return plain
