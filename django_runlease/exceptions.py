"""What can go wrong, from the holder's point of view.

A declined claim is a normal outcome: ``claim()`` returns a falsy :class:`Declined`. Only the
callers that asked for an exception (``lease()``, ``on_declined="raise"``) get
:class:`LeaseDeclined`. Bad input is a plain ``ValueError``; a database that cannot answer raises
Django's own ``DatabaseError``, and then the job does not run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

DeclineReason = Literal["held", "busy", "paused", "not_due", "same_tick"]


@dataclass(frozen=True)
class Declined:
    """A claim that was not granted. Falsy, so that ``if held := claim(...)`` reads well."""

    reason: DeclineReason
    """held: somebody runs it now. busy: its row is locked this moment. paused: by an operator.
    not_due: its minimum hold has not passed. same_tick: this tick has had its run."""
    holder: str = ""
    """Who holds the lease, as shown to people; empty if nobody does or it is not known."""
    expires_at: datetime | None = None
    """In UTC: when the holder's lease expires; for ``not_due``, when the next claim may come."""
    held_since: datetime | None = None
    """In UTC: when the holder claimed the lease."""
    run_id: int | None = None
    """The primary key of its Run in the history; None if it was not recorded."""
    left_group: int | None = None
    """For ``held``: the process group of a program that goes on here although its holder's lease
    has expired; None if that is not why."""

    def __bool__(self) -> Literal[False]:
        return False

    def __str__(self) -> str:
        if self.reason == "held":
            since = f" since {self.held_since:%Y-%m-%d %H:%M:%S} UTC" if self.held_since else ""
            return f"held by {self.holder}{since}{self._left()}"
        if self.reason == "busy":
            return f"busy, its row is locked{f' (held by {self.holder})' if self.holder else ''}"
        if self.reason == "not_due":
            return f"not due before {self.expires_at:%Y-%m-%d %H:%M:%S} UTC"
        return {"paused": "paused by an operator", "same_tick": "this tick has had its run"}[
            self.reason
        ]

    def _left(self) -> str:
        if self.left_group is None:
            return ""
        return (
            "; the lease has expired, but its program still runs here, in process group "
            f"{self.left_group}: end that with `kill -- -{self.left_group}`, or take the lease "
            "away with `manage.py runlease break`"
        )


class RunLeaseError(Exception):
    """The root of this package's errors, and the one raised for a call that cannot be honoured."""


class LeaseDeclined(RunLeaseError):
    """Somebody else may run now; :attr:`declined` says who and why."""

    def __init__(self, name: str, declined: Declined) -> None:
        super().__init__(f"{name}: {declined}")
        self.name = name
        self.declined = declined


class LeaseLost(RunLeaseError):
    """The lease is no longer ours: another holder may be running. Stop, and write nothing more."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail


class JobTimeout(RunLeaseError):
    """The job ran longer than its ``timeout`` or, under ``runjob``, made no progress for
    ``stall_after``; elsewhere a lease whose job has stalled is lost."""

    def __init__(self, name: str, detail: str, *, stalled: bool = False) -> None:
        super().__init__(f"{name}: {detail}")
        self.name = name
        self.detail = detail
        self.stalled = stalled
        """Whether ``stall_after`` ended it, and not ``timeout``."""


class Stopped(SystemExit):
    """SIGTERM. Not an Exception, so that ``except Exception`` in a job does not swallow it."""


class UnknownJob(RunLeaseError):
    """No job, JOBS entry or management command has this name."""
