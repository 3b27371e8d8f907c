"""What happens to leases, runs and alerts, told to your receivers after the commit.

===============  ================================  =================================================
signal           sent when                         facts besides those that all have
===============  ================================  =================================================
lease_claimed    a claim was granted               trigger, tick, took_over_from, because
lease_declined   a claim was declined, finally     reason, holder (who holds it), trigger, tick
lease_lost       a holder learns that it lost it   reason (taken, broken, …), detail
lease_released   a holder has freed its lease
run_finished     a Run was closed                  outcome, reason, exit_code, duration (seconds)
alert_opened     a check found an incident         kind, severity, message, remedy, opened_at
alert_resolved   it is over                        the same, and resolved_at
===============  ================================  =================================================

All have ``lease`` (its name) and ``using`` (the alias of its database); those about a lease or a
run also ``generation``, ``holder`` and ``run_id`` (the primary key of the Run), each None where
there is none. The sender is the model: RunLease, Run or Alert. No token is among the facts.

A receiver that raises is logged by Django (``django.dispatch``) and does no harm to the job. A Run
that was closed for its holder, by a takeover, a break or a check, is told by who closed it; a
holder that wakes later may finish it once more, as lost.
"""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections
from django.db.models import Model
from django.dispatch import Signal

lease_claimed = Signal()
lease_declined = Signal()
lease_lost = Signal()
lease_released = Signal()
run_finished = Signal()
alert_opened = Signal()
alert_resolved = Signal()

_here = threading.local()


def must_not_wait() -> None:
    """Let the receivers of what this thread sends run in another one.

    For the threads that renew leases and end jobs: a receiver that is slow must not hold these up.
    """
    _here.must_not_wait = True


def send(signal: Signal, sender: type[Model], **facts: Any) -> None:
    """Call the receivers of *signal*, one after the other, whatever each of them raises."""
    if getattr(_here, "must_not_wait", False):
        threading.Thread(
            target=_send_here,
            args=(signal, sender, facts),
            name="runlease-signal",
            daemon=True,
        ).start()
    else:
        signal.send_robust(sender, **facts)


def _send_here(signal: Signal, sender: type[Model], facts: dict[str, Any]) -> None:
    try:
        signal.send_robust(sender, **facts)
    finally:
        connections.close_all()
