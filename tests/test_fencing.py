import threading
import time
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from django_runlease import LeaseLost, RunLeaseError, claim, store
from django_runlease.fencing import fenced
from django_runlease.models import Outcome, RunLease
from django_runlease.store import Claimed, Closing
from example_project.billing.models import Invoice

from .factories import InvoiceFactory, RunLeaseFactory
from .support import backends, elsewhere, expire, granted, refused, together, wait_for, wish

DONE = Closing(outcome=Outcome.SUCCEEDED)


def fence(claimed, **options):
    return fenced(claimed, **options)


@pytest.fixture
def fence_elsewhere():
    """Opens a fence on a connection of its own, kept open until the event that it returns."""
    threads = []

    def open_fence(claimed):
        ready, finish = threading.Event(), threading.Event()

        def hold():
            with fence(claimed):
                ready.set()
                finish.wait(30)
                InvoiceFactory(customer="fenced")

        thread = threading.Thread(target=lambda: elsewhere(hold))
        thread.start()
        threads.append((thread, finish))
        assert ready.wait(30)

        def close():
            finish.set()
            thread.join()

        return close

    yield open_fence
    for thread, finish in threads:
        finish.set()
        thread.join()


@pytest.mark.django_db(transaction=True)
def test_writes_in_a_fence_are_committed_while_the_lease_is_ours():
    claimed = granted()
    with fence(claimed):
        InvoiceFactory()
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_fence_after_a_takeover_raises_before_its_block_and_rolls_back_what_is_around_it():
    late = granted()
    expire()
    elsewhere(granted)
    entered = []

    def write():
        with transaction.atomic():
            InvoiceFactory()
            with fence(late):
                entered.append(True)

    with pytest.raises(LeaseLost, match="no longer ours, so nothing is written"):
        write()
    assert entered == []
    assert not Invoice.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ending", ["released", "broken", "deleted"])
def test_a_fence_refuses_a_lease_that_ended_in_another_way(ending):
    claimed = granted()
    if ending == "released":
        store.release(claimed, DONE)
    elif ending == "broken":
        store.break_lease("job", "default", by="ann")
    else:
        RunLease.objects.all().delete()
    with pytest.raises(LeaseLost), fence(claimed):
        InvoiceFactory()
    assert not Invoice.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_fence_of_an_expired_lease_that_nobody_took_still_writes():
    claimed = granted()
    expire()
    with fence(claimed):
        InvoiceFactory()
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_an_error_in_a_fence_rolls_its_writes_back():
    claimed = granted()
    with pytest.raises(IntegrityError, match="cents"), fence(claimed):
        Invoice.objects.bulk_create([InvoiceFactory.build(), InvoiceFactory.build(cents=-1)], 1)
    assert not Invoice.objects.exists()
    assert store.release(claimed, DONE) is None


@pytest.mark.django_db(transaction=True)
def test_no_claim_takes_the_lease_while_a_fence_is_open_and_the_next_does(fence_elsewhere):
    claimed = granted()
    close = fence_elsewhere(claimed)
    expire()
    began = time.monotonic()
    declined = refused().declined
    assert time.monotonic() - began < 1.5
    assert (declined.reason, declined.holder) == ("busy", RunLease.objects.get().holder)
    assert RunLease.objects.get().token == claimed.token
    close()
    assert Invoice.objects.filter(customer="fenced").exists()
    assert granted().generation == 2


@pytest.mark.django_db(transaction=True)
def test_a_renewal_passes_open_fences(fence_elsewhere):
    claimed = granted(ttl=5)
    close = fence_elsewhere(claimed)
    fence_elsewhere(claimed)
    assert store.renew(claimed, timedelta(minutes=5), None) is None
    assert RunLease.objects.get().expires_at.timestamp() > claimed.claimed_at + 100
    close()


@pytest.mark.django_db(transaction=True)
def test_fences_of_one_holder_run_side_by_side():
    claimed = granted()
    barrier = threading.Barrier(3)

    def meet_in_the_fence():
        with fence(claimed):
            barrier.wait(30)
            InvoiceFactory()

    together(*[meet_in_the_fence] * 3)
    assert Invoice.objects.count() == 3


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("operation", ["release", "break"])
def test_a_release_and_a_break_wait_for_an_open_fence(fence_elsewhere, operation):
    claimed = granted()
    close = fence_elsewhere(claimed)

    def end():
        if operation == "release":
            assert store.release(claimed, DONE) is None
        else:
            store.break_lease("job", "default", by="ann")

    ending = threading.Thread(target=lambda: elsewhere(end))
    ending.start()
    wait_for(lambda: backends("wait_event_type = 'Lock'"))
    assert RunLease.objects.get().token == claimed.token
    close()
    ending.join()
    assert RunLease.objects.get().token is None


@pytest.mark.django_db(transaction=True)
def test_a_fence_of_an_unknown_database_is_refused_and_writes_nothing():
    claimed = granted()
    with fence(claimed, using="default"):
        pass
    refused = pytest.raises(RunLeaseError, match="there is no database 'other'")
    with refused, fence(claimed, using="other"):
        InvoiceFactory()
    assert not Invoice.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_held_lease_is_not_released_while_its_fence_is_open():
    held = claim("job", ttl=60, heartbeat=False)
    with held.fence():
        with pytest.raises(RunLeaseError, match="leave its block before release"):
            held.release()
        InvoiceFactory()
    assert Invoice.objects.count() == 1
    assert held.release() is True
    assert held.release() is False
    with pytest.raises(RunLeaseError, match="has been released"):
        held.fence()


@pytest.mark.django_db(transaction=True)
def test_writes_race_with_takeovers_and_none_is_committed_by_a_holder_that_lost():
    """Each fence writes the generation it holds; these may never fall."""
    RunLeaseFactory(name="job", generation=0)
    lock = threading.Lock()

    def work():
        for _ in range(20):
            result = store.claim(wish(ttl=0.005), "default")
            if isinstance(result, Claimed):
                try:
                    with fence(result):
                        InvoiceFactory(cents=result.generation)
                except LeaseLost:
                    with lock:
                        lost.append(result.generation)

    lost = []
    together(*[work] * 4)
    written = list(Invoice.objects.order_by("pk").values_list("cents", flat=True))
    assert written
    assert written == sorted(written)
    assert not set(written) & set(lost)


@pytest.mark.django_db
def test_a_fence_works_within_a_test_case():
    claimed = granted()
    with fence(claimed):
        InvoiceFactory()
    store.break_lease("job", "default", by="ann")
    with pytest.raises(LeaseLost), fence(claimed):
        InvoiceFactory()
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_fence_finds_its_lease_whatever_the_isolation_of_the_callers_transaction():
    claimed = granted()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        with fence(claimed):
            InvoiceFactory()
    assert Invoice.objects.count() == 1
