"""Workers that are stopped past their ttl, taken over, and wake up: real processes and a race."""

import threading
from functools import partial
from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from django.db import DatabaseError, connection, connections
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_runlease import LeaseLost, claim, store
from django_runlease.clock import Now
from django_runlease.fencing import fenced
from django_runlease.models import Effect, EffectState, Outcome, Run, RunLease
from django_runlease.store import Claimed
from example_project.billing.models import Invoice

from .factories import InvoiceFactory
from .guarded import required
from .support import DEADLINE, elsewhere, spawn_python, together, wait_for, wish

pytestmark = pytest.mark.django_db(transaction=True)

WORKER = """
import sys
from contextlib import suppress
from django.db import DatabaseError, connection, transaction
from django_runlease import LeaseLost, claim
from example_project.billing.models import Invoice

held = claim("job", ttl="6s", heartbeat=False)
tool = sys.argv[1]


def stop():
    print("ready", flush=True)
    sys.stdin.readline()


def fence():
    stop()
    with held.fence():
        Invoice.objects.update(charged_by="late")


def fenced_update():
    stop()
    held.fenced_update(Invoice.objects.all(), charged_by="late")


def fenced_delete():
    stop()
    held.fenced_delete(Invoice.objects.all())


def elsewhere():
    with held.fence(using="other"):
        Invoice.objects.using("other").update(charged_by="late")
    stop()
    with held.fence(using="other"):
        Invoice.objects.using("other").update(charged_by="late")


def inside_a_fence():
    with held.fence():
        Invoice.objects.update(charged_by="late")
        stop()


def inside_a_fence_elsewhere():
    with held.fence(using="other"):
        Invoice.objects.using("other").update(charged_by="late")
        stop()


def trigger():
    stop()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT set_config('runlease.fence', %s, true)", [str(held.token)])
        cursor.execute("UPDATE billing_invoice SET charged_by = 'late'")


def effect():
    with held.effect("charge", 1) as effect:
        effect.result = "late"
        stop()


try:
    globals()[tool]()
except (LeaseLost, DatabaseError) as error:
    print(type(error).__name__, error, flush=True)
else:
    print("COMMITTED", flush=True)
finally:
    with suppress(DatabaseError):
        print("released", held.release(), flush=True)
"""


LOST = "LeaseLost job: the lease is no longer ours, so nothing is written"
REFUSALS = {
    "fence": LOST,
    "fenced_update": LOST,
    "fenced_delete": LOST,
    "elsewhere": LOST,
    "effect": LOST,
    "trigger": 'OperationalError table "billing_invoice" takes writes only in a fence',
    # Its connection is gone, and its transaction with it.
    "inside_a_fence": "Error",
    "inside_a_fence_elsewhere": "Error",
}


@pytest.mark.parametrize("tool", REFUSALS)
def test_a_worker_that_was_stopped_past_its_ttl_and_taken_over_is_refused(tool, other):
    for alias in ("default", other):
        Invoice.objects.using(alias).create(customer="x", cents=1, due_at=timezone.now())
    with required():
        worker = spawn_python(
            WORKER,
            tool,
            stdin=-1,
            env={
                "DJANGO_SETTINGS_MODULE": "tests.settings_databases",
                "OTHER_DATABASE": connections[other].settings_dict["NAME"],
            },
        )
        try:
            assert worker.stdout.readline() == "ready\n", worker.stderr.read()
            worker.send_signal(SIGSTOP)
            wait_for(RunLease.objects.filter(name="job", expires_at__lte=Now()).exists)
            successor = wait_for(lambda: claim("job", ttl=60, heartbeat=False))
            work_of_the_new_holder(successor, other)
            worker.send_signal(SIGCONT)
            out, err = worker.communicate("go\n", timeout=DEADLINE)
        finally:
            worker.send_signal(SIGKILL)
            worker.communicate()
    assert REFUSALS[tool] in out, out + err
    assert "COMMITTED" not in out
    assert out.endswith("released False\n")
    for alias in ("default", other):
        written = Invoice.objects.using(alias).values_list("charged_by", flat=True)
        assert list(written) == ["new"]
    effect = Effect.objects.get()
    assert (effect.state, effect.result, effect.generation) == (EffectState.CONFIRMED, "new", 2)
    assert effect.attempts == (2 if tool == "effect" else 1)
    assert successor.release() is True
    runs = Run.objects.exclude(outcome=Outcome.DECLINED)
    assert set(runs.values_list("generation", "outcome")) == {
        (1, "lost"),
        (2, "succeeded"),
    }


def work_of_the_new_holder(successor, other):
    with successor.fence():
        Invoice.objects.update(charged_by="new")
    with successor.fence(using=other):
        Invoice.objects.using(other).update(charged_by="new")
    with successor.effect("charge", 1) as effect:
        effect.result = "new"


# -- a race

WORKERS, INCREMENTS = 8, 200
INCREMENT = """
    WITH counted AS (UPDATE billing_invoice SET cents = cents + 1 WHERE id = %s RETURNING cents)
    INSERT INTO billing_invoice (customer, cents, charged_by, due_at)
    SELECT 'log', cents, %s, now() FROM counted
"""
TTL = 0.5

# How many increments a worker makes under one claim, and how that ends: by a release; or the
# worker stops, before its next fence or within one, until somebody else has claimed.
endings = st.sampled_from(["release", "release", "before", "within"])
turns = st.lists(st.tuples(st.integers(1, 60), endings), max_size=4)


@settings(
    max_examples=2,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=turns)
def test_the_counter_equals_what_was_accepted_and_the_generations_never_fall(turns):
    for model in (Invoice, RunLease, Run):
        model.objects.all().delete()
    counter = InvoiceFactory(cents=0, customer="counter")
    schedule = Schedule([(20, "before"), (20, "within"), *turns])
    counts = together(*[lambda: work(schedule, counter)] * WORKERS)
    counter.refresh_from_db()
    accepted, refused = map(sum, zip(*counts, strict=True))
    assert accepted + refused == WORKERS * INCREMENTS
    assert refused
    assert counter.cents == accepted
    log = (
        Invoice.objects.filter(customer="log").order_by("cents").values_list("cents", "charged_by")
    )
    assert [number for number, _ in log] == list(range(1, accepted + 1))
    generations = [int(generation) for _, generation in log]
    assert generations == sorted(generations)


class Schedule:
    """Turns, handed out to whoever claims; when they are used up, all end in a release."""

    def __init__(self, turns):
        self.turns = turns
        self.working = WORKERS
        self.lock = threading.Lock()

    def next(self):
        with self.lock:
            return self.turns.pop(0) if self.turns else (50, "release")

    def finish(self):
        with self.lock:
            self.working -= 1


def work(schedule, counter):
    """Try INCREMENTS increments; return how many were accepted, and how many refused."""
    accepted = refused = 0
    while accepted + refused < INCREMENTS:
        claimed = store.claim(wish(ttl=TTL), "default")
        if not isinstance(claimed, Claimed):
            wait_for(is_free_or_expired)
            continue
        number, ending = schedule.next()
        for left in range(min(number, INCREMENTS - accepted - refused), 0, -1):
            stopped = partial(is_over, claimed, schedule)
            if increment(claimed, counter, ending if left == 1 else "release", stopped):
                accepted += 1
            else:
                refused += 1
        if ending == "release":
            store.release(claimed, store.Closing(outcome=Outcome.SUCCEEDED))
    schedule.finish()
    return accepted, refused


def is_free_or_expired():
    return not RunLease.objects.filter(expires_at__gt=Now()).exists()


def is_over(claimed, schedule):
    """Whether another has claimed; or nobody else is left who could."""
    if schedule.working == 1 and is_free_or_expired():
        return True
    return RunLease.objects.get().generation > claimed.generation


def increment(claimed, counter, ending, stopped):
    """One fenced increment of the counter, with a log of it; whether it was accepted."""
    if ending == "before":
        wait_for(stopped)
    try:
        with fenced(claimed):
            with connection.cursor() as cursor:
                cursor.execute(INCREMENT, [counter.pk, claimed.generation])
            if ending == "within":
                elsewhere(lambda: wait_for(stopped))
    except (LeaseLost, DatabaseError):
        connection.close()
        return False
    return True
