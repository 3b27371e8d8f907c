"""What is logged, under ``django_runlease``: one line an event, with its facts beside it.

==================  =======  ===================================================================
event               level    facts
==================  =======  ===================================================================
lease_claimed       INFO     generation, holder, run_id, trigger; WARNING for a takeover, with
                             took_over_from and because
lease_declined      INFO     reason, holder, run_id, trigger
lease_lost          WARNING  generation, holder, run_id, reason, detail
lease_released      INFO     generation, holder, run_id
run_finished        INFO     generation, holder, run_id, outcome, reason, exit_code, duration_ms
alert_opened        WARNING  kind, severity, remedy
alert_resolved      INFO     kind, severity
lease_paused        INFO     by, reason
lease_resumed       INFO     by, reason
lease_broken        WARNING  by, reason, holder
lease_removed       INFO     by, generation
alert_silenced      INFO     kind, by, reason, until
alert_unsilenced    INFO     kind, by, reason
claim_failed        WARNING  a claim that waits meets an error of the database, and tries again
claim_in_doubt      WARNING  whether a claim was committed could not be found out
program_left        WARNING  group: a program has outlived its holder's lease; claims wait for it
beat_failed         WARNING  the leases of this process were not renewed this time
guard_replaced      WARNING  the guard process of a program was killed
==================  =======  ===================================================================

Each record has ``event``, and ``lease`` where it is about one, as attributes, as a formatter for
JSON shows them. The first seven are receivers of the signals of these names. Names of hosts and
reasons come from elsewhere: without a LOGGING setting a line of theirs would reach the operator's
terminal as it is, so nothing raw is in it.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from django.db.models import Model
from django.dispatch import Signal, receiver

from . import signals
from .terms import short
from .text import printable

_logger = logging.getLogger("django_runlease")


def is_kept() -> bool:
    """Whether LOGGING has a handler for these records; Python prints warnings all the same."""
    return _logger.hasHandlers()


def listens_alone(signal: Signal, sender: type[Model]) -> bool:
    """Whether the log is the one receiver of *signal*."""
    # The question also clears away what is left of receivers that are gone.
    return signal.has_listeners(sender) and len(signal.receivers) == 1


def info(event: str, message: str, *parts: object, **facts: Any) -> None:
    _log(logging.INFO, event, message, parts, facts)


def warning(event: str, message: str, *parts: object, **facts: Any) -> None:
    _log(logging.WARNING, event, message, parts, facts)


def because(reason: str) -> str:
    """*reason* at the end of a message; nothing if there is none."""
    return f" ({reason})" if reason else ""


def _log(
    level: int, event: str, message: str, parts: tuple[object, ...], facts: dict[str, Any]
) -> None:
    extra = {key: _plain(value) for key, value in facts.items()}
    _logger.log(level, message, *map(_shown, parts), extra={"event": event, **extra})


def _shown(part: object) -> str:
    return printable(str(part))


def _plain(fact: Any) -> Any:
    """*fact* as every formatter can write it."""
    if isinstance(fact, datetime):
        return fact.isoformat()
    return printable(fact) if isinstance(fact, str) else fact


def _facts(told: dict[str, Any]) -> dict[str, Any]:
    """The facts of a signal as attributes of a record: lengths in milliseconds, as is usual."""
    facts = {key: value for key, value in told.items() if key not in ("signal", "sender")}
    if facts.get("duration") is not None:
        facts["duration_ms"] = round(facts["duration"] * 1000)
    facts.pop("duration", None)
    # A record has a message of its own.
    facts.pop("message", None)
    return facts


@receiver(signals.lease_claimed)
def _lease_claimed(lease: str, took_over_from: str, **told: Any) -> None:
    facts = {"lease": lease, "took_over_from": took_over_from, **_facts(told)}
    if took_over_from:
        text = "%s: took over from %s: %s"
        warning("lease_claimed", text, lease, took_over_from, told["because"], **facts)
    else:
        text = "%s: claimed by %s, generation %s"
        info("lease_claimed", text, lease, told["holder"], told["generation"], **facts)


@receiver(signals.lease_declined)
def _lease_declined(lease: str, reason: str, holder: str, **told: Any) -> None:
    by = f" by {holder}" if holder else ""
    facts = {"lease": lease, "reason": reason, "holder": holder, **_facts(told)}
    info("lease_declined", "%s: declined, %s%s", lease, reason, by, **facts)


@receiver(signals.lease_lost)
def _lease_lost(lease: str, detail: str, **told: Any) -> None:
    facts = {"lease": lease, "detail": detail, **_facts(told)}
    warning("lease_lost", "%s: the lease is lost: %s", lease, detail, **facts)


@receiver(signals.lease_released)
def _lease_released(lease: str, **told: Any) -> None:
    info("lease_released", "%s: released", lease, lease=lease, **_facts(told))


@receiver(signals.run_finished)
def _run_finished(lease: str, outcome: str, reason: str, duration: float, **told: Any) -> None:
    why = f": {reason}" if reason else ""
    told = {"outcome": str(outcome), "reason": reason, "duration": duration, **told}
    facts = {"lease": lease, **_facts(told)}
    info("run_finished", "%s: %s after %s%s", lease, outcome, short(duration), why, **facts)


@receiver(signals.alert_opened)
def _alert_opened(lease: str, kind: str, message: str, **told: Any) -> None:
    facts = {"lease": lease, "kind": str(kind), **_facts(told)}
    warning("alert_opened", "%s: %s: %s", lease, kind, message, **facts)


@receiver(signals.alert_resolved)
def _alert_resolved(lease: str, kind: str, **told: Any) -> None:
    facts = {"lease": lease, "kind": str(kind), **_facts(told)}
    info("alert_resolved", "%s: %s: resolved", lease, kind, **facts)
