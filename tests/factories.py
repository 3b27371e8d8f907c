"""Rows as the store would have left them."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import factory

from django_runlease.clock import Now, Seconds
from django_runlease.models import Alert, Effect, Outcome, Run, RunLease
from example_project.billing.models import Invoice


class RunLeaseFactory(factory.django.DjangoModelFactory[RunLease]):
    """A free lease that has run once before. Instants are the database's, so read them back."""

    class Meta:
        model = RunLease
        skip_postgeneration_save = True

    class Params:
        held = factory.Trait(
            token=factory.LazyFunction(uuid.uuid4),
            expires_at=Now() + Seconds(timedelta(minutes=5)),
            claimed_at=Now(),
            renewed_at=Now(),
            ttl=timedelta(minutes=5),
            holder="elsewhere:4711",
            host="elsewhere",
            holder_process={"pid": 4711, "start": 1, "boot_id": "b", "pid_namespace": "n"},
        )
        expired = factory.Trait(
            held=True, expires_at=Now() - Seconds(timedelta(seconds=1)), ttl=timedelta(seconds=10)
        )

    name = factory.Sequence(lambda n: f"job-{n}")
    generation = 1


class RunFactory(factory.django.DjangoModelFactory[Run]):
    """A run that succeeded a minute ago, in a second."""

    class Meta:
        model = Run
        skip_postgeneration_save = True

    class Params:
        running = factory.Trait(outcome=Outcome.RUNNING, finished_at=None)
        declined = factory.Trait(
            outcome=Outcome.DECLINED, reason="held", token=None, generation=None
        )

    lease_name = factory.Sequence(lambda n: f"job-{n}")
    token = factory.LazyFunction(uuid.uuid4)
    generation = 1
    holder = "elsewhere:4711"
    host = "elsewhere"
    trigger = "runjob"
    started_at = Now() - Seconds(timedelta(minutes=1))
    finished_at = Now() - Seconds(timedelta(seconds=59))
    outcome = Outcome.SUCCEEDED
    waited = timedelta(0)


def ran(length: float = 10, *, age: float = 3600, **fields: Any) -> Run:
    """A run of ``job`` that began *age* seconds ago and took *length*."""
    ended = Now() - Seconds(timedelta(seconds=age - length))
    times = {"started_at": Now() - Seconds(timedelta(seconds=age)), "finished_at": ended}
    return RunFactory(**{"lease_name": "job", **times, **fields})


class InvoiceFactory(factory.django.DjangoModelFactory[Invoice]):
    """An invoice that fell due a minute ago."""

    class Meta:
        model = Invoice

    customer = factory.Sequence(lambda n: f"Customer {n}")
    cents = 1250
    due_at = Now() - Seconds(timedelta(minutes=1))


class AlertFactory(factory.django.DjangoModelFactory[Alert]):
    """A warning that was opened a minute ago and lasts."""

    class Meta:
        model = Alert

    lease_name = factory.Sequence(lambda n: f"job-{n}")
    kind = "contention"
    severity = "warning"
    message = "2 ticks were declined within 1h"
    remedy = "see the history"
    opened_at = Now() - Seconds(timedelta(minutes=1))


class EffectFactory(factory.django.DjangoModelFactory[Effect]):
    """An external action that was begun a minute ago, and that nobody has confirmed."""

    class Meta:
        model = Effect

    lease_name = factory.Sequence(lambda n: f"job-{n}")
    kind = "charge"
    key = factory.Sequence(lambda n: f"[{n}]")
    idempotency_key = factory.Sequence(lambda n: uuid.UUID(f"{n:032d}"))
    state = "started"
    generation = 1
    started_at = Now() - Seconds(timedelta(minutes=1))
