"""Workers that are stopped past their ttl, taken over, and wake up: real processes and a race."""

from signal import SIGCONT, SIGKILL, SIGSTOP

import pytest
from django.db import connections
from django.utils import timezone
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from django_runlease import claim
from django_runlease.clock import Now
from django_runlease.models import Effect, EffectState, Outcome, Run, RunLease
from example_project.billing.models import Invoice

from .counting import INCREMENTS, WORKERS, nursery
from .factories import InvoiceFactory
from .guarded import required
from .support import DEADLINE, spawn_python, wait_for

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

stops = st.sampled_from(["before", "in", "written"]) | st.integers(0, 60)
turns = st.lists(st.tuples(st.integers(0, 30), stops, st.integers(1, 4)), min_size=2, max_size=4)


@pytest.fixture(scope="module")
def workers(django_db_setup):
    with nursery() as there:
        yield there


@settings(
    max_examples=3,
    deadline=None,
    database=None,
    derandomize=True,
    # A smaller schedule would take minutes to find, and tell little more.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(turns=turns)
def test_the_counter_equals_what_was_accepted_and_the_generations_never_fall(workers, turns):
    for model in (Invoice, RunLease, Run):
        model.objects.all().delete()
    counter = InvoiceFactory(cents=0, customer="counter")
    # Whoever claims first is stopped while all others have all their work to do.
    done = workers.count(counter.pk, [(20, "before", 2), (20, "in", 2), *turns])
    counter.refresh_from_db()
    assert done.accepted + done.refused == WORKERS * INCREMENTS
    assert counter.cents == done.accepted
    log = Invoice.objects.filter(customer="log").order_by("cents")
    assert [each.cents for each in log] == list(range(1, done.accepted + 1))
    generations = [int(each.charged_by) for each in log]
    assert generations == sorted(generations)
    assert done.accepted
    assert done.stops >= 2
    assert done.refused >= 2
    assert Run.objects.filter(outcome__in=[Outcome.LOST, Outcome.ABANDONED]).count() >= 2
