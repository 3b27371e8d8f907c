import sys
import threading
from contextlib import suppress
from datetime import timedelta
from signal import SIGCONT, SIGKILL, SIGSTOP
from uuid import uuid4

import pytest
from django.core.exceptions import FieldDoesNotExist
from django.db import IntegrityError, OperationalError, connection, transaction
from django.test import TestCase

from django_runlease import (
    LeaseLost,
    RunLeaseError,
    claim,
    heartbeat,
    inherited_lease,
    lease,
    store,
)
from django_runlease import fence as public_fence
from django_runlease.fencing import fenced
from django_runlease.models import Outcome, RunLease
from django_runlease.store import Claimed, Closing
from example_project.billing.models import Invoice

from .factories import InvoiceFactory, RunFactory, RunLeaseFactory
from .support import (
    DEADLINE,
    backends,
    elsewhere,
    expire,
    granted,
    manage,
    named_by,
    open_transaction,
    refused,
    spawn_python,
    together,
    wait_for,
    wish,
)

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
                finish.wait(DEADLINE)
                InvoiceFactory(customer="fenced")

        thread = threading.Thread(target=lambda: elsewhere(hold))
        thread.start()
        threads.append((thread, finish))
        assert ready.wait(DEADLINE)

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
def test_no_claim_takes_the_lease_while_a_fence_is_open_and_the_next_does(
    fence_elsewhere, monkeypatch
):
    # Who waited for the row's lock would get it in the end.
    monkeypatch.setattr(store.connection, "LOCK_TIMEOUT_MS", 600_000)
    claimed = granted()
    close = fence_elsewhere(claimed)
    expire()
    declined = refused().declined
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
@pytest.mark.parametrize("way", ["fence", "update", "second alias", "no autocommit"])
def test_a_release_before_the_end_of_the_transaction_around_a_fence_is_refused(way, second):
    held = claim("job", ttl=60, heartbeat=False)
    alias = second if way == "second alias" else "default"
    too_early = pytest.raises(RunLeaseError, match="until the transaction around it ends")
    if way == "no autocommit":
        transaction.set_autocommit(False)
        try:
            with held.fence():
                InvoiceFactory()
            with too_early:
                held.release()
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
    else:
        with transaction.atomic(using=alias):
            if way == "update":
                held.fenced_update(Invoice.objects.all(), cents=1)
            else:
                with held.fence(alias):
                    pass
            with too_early:
                held.release()
    assert held.release() is True


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("before", ["nothing", "a fence that was rolled back", "another's fence"])
def test_in_a_transaction_without_an_open_fence_of_it_a_lease_is_released(before):
    held = claim("job", ttl=60, heartbeat=False)
    another = granted("another")
    with transaction.atomic():
        if before == "a fence that was rolled back":
            with pytest.raises(ZeroDivisionError), held.fence():
                raise ZeroDivisionError
        elif before == "another's fence":
            with fence(another):
                pass
        assert held.release() is True


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("failed", ["on the server", "by Django's judgement"])
def test_a_lease_is_released_although_the_callers_transaction_has_failed(failed):
    held = claim("job", ttl=60, heartbeat=False)
    with transaction.atomic():
        if failed == "on the server":
            with pytest.raises(IntegrityError):
                InvoiceFactory(cents=-1)
        else:
            InvoiceFactory()
            transaction.set_rollback(True)
        assert held.release() is True
        transaction.set_rollback(True)


@pytest.mark.django_db(transaction=True)
def test_a_release_that_another_transaction_keeps_waiting_says_so_and_can_be_repeated():
    held = claim("job", ttl=60, heartbeat=False)
    with open_transaction("SELECT 1 FROM runlease_runlease FOR KEY SHARE"):
        with pytest.raises(RunLeaseError, match="locked by a transaction that goes on"):
            held.release()
    assert held.release() is True


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
                    # Not the ttl: this is about takeovers, not about a silent client.
                    with fence(result, idle=30):
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


# -- within the caller's transaction


def scalar(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchone()[0]


def setting(name):
    return scalar("SELECT current_setting(%s, true)", name)


@pytest.mark.django_db(transaction=True)
def test_a_fence_within_a_transaction_holds_until_the_outer_commit():
    claimed = granted()
    with transaction.atomic():
        with fence(claimed):
            InvoiceFactory()
        elsewhere(expire)
        assert elsewhere(refused).declined.reason == "busy"
        InvoiceFactory()
    assert Invoice.objects.count() == 2
    assert granted().generation == 2


@pytest.mark.django_db(transaction=True)
def test_a_fence_in_a_savepoint_that_is_rolled_back_lets_the_next_claim_in():
    claimed = granted()
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), fence(claimed):
            InvoiceFactory()
            raise ZeroDivisionError
        elsewhere(expire)
        assert elsewhere(granted).generation == 2
        InvoiceFactory(customer="unfenced")
    assert [each.customer for each in Invoice.objects.all()] == ["unfenced"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("where", ["at the entry", "in the block"])
def test_a_caught_leaselost_does_not_let_the_transaction_around_the_fence_commit(where):
    held = claim("job", ttl=60, heartbeat=False)
    if where == "at the entry":
        lose(held)
    with transaction.atomic():
        InvoiceFactory()
        with suppress(LeaseLost), held.fence():
            held.lose(store.Loss(reason="taken", detail="so says the test"))
            held.check()
        assert held.lost.is_set()
        with pytest.raises(transaction.TransactionManagementError, match="end of the 'atomic'"):
            InvoiceFactory()
    assert not Invoice.objects.exists()
    held.release()


@pytest.mark.django_db(transaction=True)
def test_a_fence_in_an_atomic_block_of_its_own_takes_back_that_one_and_no_more():
    held = claim("job", ttl=60, heartbeat=False)
    lose(held)
    with transaction.atomic():
        with suppress(LeaseLost), transaction.atomic(), held.fence():
            raise AssertionError("entered")
        InvoiceFactory(customer="lost")
    assert Invoice.objects.get().customer == "lost"
    held.release()


@pytest.mark.django_db(transaction=True)
def test_without_autocommit_the_caller_ends_the_transaction_after_a_leaselost():
    held = claim("job", ttl=60, heartbeat=False)
    lose(held)
    transaction.set_autocommit(False)
    try:
        with pytest.raises(LeaseLost), held.fence():
            raise AssertionError("entered")
        InvoiceFactory()
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    assert not Invoice.objects.exists()
    held.release()


def lose(held):
    """Let another take the lease over."""
    expire(held.name)
    elsewhere(granted)


@pytest.mark.django_db(transaction=True)
def test_lock_timeout_is_as_it_was_in_the_fence_and_after_it():
    claimed = granted()
    with transaction.atomic():
        scalar("SELECT set_config('lock_timeout', '17s', true)")
        with fence(claimed):
            assert setting("lock_timeout") == "17s"
        assert setting("lock_timeout") == "17s"
    with fence(claimed):
        assert setting("lock_timeout") == "0"


@pytest.mark.django_db(transaction=True)
def test_the_tokens_of_the_fences_are_listed_once_each_for_the_transaction_and_no_longer():
    one, two = granted("one"), granted("two")
    with fence(one):
        for _ in range(3):
            with fence(two):
                assert setting("runlease.fence").split() == [str(one.token), str(two.token)]
    assert not setting("runlease.fence")


@pytest.mark.django_db(transaction=True)
def test_a_takeover_under_a_snapshot_is_a_loss():
    late = granted()
    with pytest.raises(LeaseLost) as caught, transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM runlease_runlease")
        elsewhere(expire)
        elsewhere(granted)
        with fence(late):
            raise AssertionError("entered")
    assert caught.value.__cause__.__cause__.sqlstate == "40001"


@pytest.mark.django_db(transaction=True)
def test_a_snapshot_older_than_the_claim_is_refused_and_the_lease_is_not_lost():
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM runlease_runlease")
        held = elsewhere(lambda: claim("job", ttl=60, heartbeat=False))
        with pytest.raises(LeaseLost, match="ours, but this transaction.s snapshot is older"):
            with held.fence():
                raise AssertionError("entered")
    assert held.lost_reason is None
    with held.fence():
        InvoiceFactory()
    assert held.release()


@pytest.mark.django_db(transaction=True)
def test_a_renewal_under_a_snapshot_does_not_disturb_the_fence():
    claimed = granted()
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1 FROM runlease_runlease")
        assert elsewhere(lambda: store.renew(claimed, timedelta(minutes=5), None)) is None
        with fence(claimed):
            elsewhere(expire)
            assert elsewhere(refused).declined.reason == "busy"
            InvoiceFactory()
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_serialization_failure_without_a_takeover_is_no_loss_but_something_to_try_again():
    claimed = granted()

    def write_what_the_other_reads(read, write):
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
            cursor.execute(f"SELECT count(*) FROM {read}")
        write()

    def other():
        with transaction.atomic():
            write_what_the_other_reads("runlease_run", InvoiceFactory)

    with pytest.raises(OperationalError) as caught, transaction.atomic():
        write_what_the_other_reads("billing_invoice", RunFactory)
        elsewhere(other)
        with fence(claimed):
            raise AssertionError("entered")
    assert store.sqlstate(caught.value) == "40001"
    with fence(claimed):
        InvoiceFactory()
    assert Invoice.objects.count() == 2


# -- a client that is silent in a fence


@pytest.mark.django_db(transaction=True)
def test_a_silent_client_has_the_ttl_or_what_the_caller_says():
    claimed, another = granted(ttl=90), granted("another", ttl=20)
    with fence(claimed):
        assert setting("idle_in_transaction_session_timeout") == "90s"
    with fence(claimed, idle="10m"):
        assert setting("idle_in_transaction_session_timeout") == "10min"
        with fence(claimed):
            assert setting("idle_in_transaction_session_timeout") == "10min"
        with fence(another):
            assert setting("idle_in_transaction_session_timeout") == "20s"
    with transaction.atomic():
        scalar("SELECT set_config('idle_in_transaction_session_timeout', '5s', true)")
        with fence(claimed):
            assert setting("idle_in_transaction_session_timeout") == "5s"
        with fence(claimed, idle=7):
            assert setting("idle_in_transaction_session_timeout") == "7s"
    assert setting("idle_in_transaction_session_timeout") == "0"


@pytest.mark.django_db(transaction=True)
def test_a_ttl_longer_than_the_server_can_wait_is_no_obstacle():
    with fence(granted(ttl=100 * 86_400)):
        InvoiceFactory()
    assert Invoice.objects.count() == 1


FROZEN = """
import sys
from django_runlease import claim
from example_project.billing.models import Invoice

held = claim("job", ttl="6s", heartbeat=False)
with held.fence():
    Invoice.objects.update(charged_by="frozen")
    print("inside", flush=True)
    sys.stdin.readline()
print("committed", flush=True)
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", ["claim", "break"])
def test_a_process_frozen_inside_a_fence_keeps_no_claim_or_break_out_for_longer_than_its_ttl(way):
    InvoiceFactory()
    frozen = spawn_python(FROZEN, stdin=-1)
    try:
        assert frozen.stdout.readline() == "inside\n"
        frozen.send_signal(SIGSTOP)
        if way == "claim":
            wait_for(lambda: isinstance(store.claim(wish(), "default"), Claimed))
        else:
            wait_for(is_broken)
        frozen.send_signal(SIGCONT)
        out, err = frozen.communicate("go\n", timeout=DEADLINE)
    finally:
        frozen.send_signal(SIGKILL)
        frozen.communicate()
    assert (out, frozen.returncode) == ("", 1)
    assert "idle-in-transaction timeout" in err or "closed the connection" in err
    assert [each.charged_by for each in Invoice.objects.all()] == [""]


FROZEN_MIDWAY = """
import os
import signal
import sys
from django.db import connection
from django_runlease import claim
from example_project.billing.models import Invoice


def freeze():
    print(connection.connection.info.backend_pid, flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


held = claim("job", ttl="1s", heartbeat=False)
with held.fence():
    Invoice.objects.update(charged_by="frozen")
    with connection.connection.cursor() as cursor:
        if sys.argv[1] == "copy":
            columns = "customer, cents, charged_by, due_at"
            with cursor.copy(f"COPY billing_invoice ({columns}) FROM STDIN") as copy:
                copy.write_row(["x", 1, "frozen", "now"])
                freeze()
        else:
            large = "SELECT repeat('x', 1000) FROM generate_series(1, 100000)"
            for number, row in enumerate(cursor.stream(large)):
                number or freeze()
print("committed", flush=True)
"""


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("midway", ["copy", "answer"])
def test_a_client_frozen_in_the_middle_of_a_statement_is_not_silent_and_a_forced_break_ends_it(
    midway,
):
    InvoiceFactory()
    frozen = spawn_python(FROZEN_MIDWAY, midway)
    try:
        pid = int(frozen.stdout.readline())
        for_the_client = "state = 'active' AND wait_event_type = 'Client'"
        for_twice_its_ttl = "clock_timestamp() > xact_start + interval '2 s'"
        wait_for(lambda: backends(f"pid = {pid} AND {for_the_client} AND {for_twice_its_ttl}"))
        assert refused().declined.reason == "busy"
        assert manage("runlease", "break", "job", "--yes").returncode != 0
        blocked = named_by(lambda: manage("runlease", "break", "job", "--yes").stderr)
        assert f"its row is locked by database process {pid} (" in blocked
        assert "--force ends them" in blocked
        assert RunLease.objects.get().token is not None
        forced = manage("runlease", "break", "job", "--yes", "--force")
        assert forced.returncode == 0, forced.stderr
        assert granted().generation == 3
        frozen.send_signal(SIGCONT)
        out, err = frozen.communicate(timeout=DEADLINE)
    finally:
        frozen.send_signal(SIGKILL)
        frozen.communicate()
    assert (out, frozen.returncode) == ("", 1)
    assert "AdminShutdown" in err or "OperationalError" in err
    assert [each.charged_by for each in Invoice.objects.all()] == [""]


def is_broken():
    try:
        store.break_lease("job", "default", by="ann")
    except store.Blocked:
        return False
    return RunLease.objects.get().token is None


@pytest.fixture
def beats_often(monkeypatch):
    """So often that a machine that stands still for some seconds loses no lease of 6 s."""
    monkeypatch.setattr(heartbeat, "BEATS_PER_TTL", 30)


@pytest.mark.django_db(transaction=True)
def test_a_fenced_block_lasts_longer_than_the_ttl_while_the_heartbeat_goes_on(beats_often):
    with lease("job", ttl=6) as held:
        claimed_until = RunLease.objects.get().expires_at
        with held.fence():
            # A statement is not silence.
            wait_for(lambda: scalar("SELECT clock_timestamp() > %s", claimed_until))
            assert elsewhere(refused).declined.reason == "held"
            InvoiceFactory()
        held.check()
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_block_that_computes_for_longer_than_the_ttl_says_so(beats_often):
    with lease("job", ttl=6) as held:
        claimed_until = RunLease.objects.get().expires_at
        with held.fence(idle="30s"):
            wait_for(
                lambda: elsewhere(lambda: scalar("SELECT clock_timestamp() > %s", claimed_until))
            )
            InvoiceFactory()
        held.check()
    assert Invoice.objects.count() == 1


# -- one statement


@pytest.fixture
def held():
    held = claim("job", ttl=60, heartbeat=False)
    yield held
    held.release()


@pytest.mark.django_db(transaction=True)
def test_a_fenced_update_gives_the_number_of_rows_and_none_is_no_loss(held):
    InvoiceFactory.create_batch(3)
    assert held.fenced_update(Invoice.objects.all(), cents=7) == 3
    assert held.fenced_update(Invoice.objects.filter(cents=8), cents=9) == 0
    assert set(Invoice.objects.values_list("cents", flat=True)) == {7}


@pytest.mark.django_db(transaction=True)
def test_a_fenced_delete_gives_the_number_of_rows_and_none_is_no_loss(held):
    InvoiceFactory.create_batch(3, cents=7)
    InvoiceFactory(cents=8)
    assert held.fenced_delete(Invoice.objects.filter(cents=7)) == 3
    assert held.fenced_delete(Invoice.objects.filter(cents=7)) == 0
    assert Invoice.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_field_of_any_name_can_be_updated(held):
    for name in ("queryset", "lease", "using", "values"):
        with pytest.raises(FieldDoesNotExist, match=f"no field named '{name}'"):
            held.fenced_update(Invoice.objects.all(), **{name: 1})


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("rows", [0, 1])
def test_a_fenced_update_or_delete_after_a_takeover_raises_whatever_it_would_match(held, rows):
    InvoiceFactory.create_batch(rows, cents=7)
    expire()
    elsewhere(granted)
    with pytest.raises(LeaseLost):
        held.fenced_update(Invoice.objects.all(), cents=8)
    with pytest.raises(LeaseLost):
        held.fenced_delete(Invoice.objects.all())
    assert [each.cents for each in Invoice.objects.all()] == [7] * rows


@pytest.mark.django_db(transaction=True)
def test_a_fenced_update_costs_one_statement_more_than_an_update(held, django_assert_num_queries):
    InvoiceFactory()
    with django_assert_num_queries(4):  # BEGIN, the fence, the update, COMMIT
        held.fenced_update(Invoice.objects.all(), cents=7)


# -- a lease that the parent process holds


CHILD = """
import django
django.setup()
from django_runlease import LeaseLost, fence, inherited_lease
from example_project.billing.models import Invoice

inherited = inherited_lease()
print(inherited)
with fence(inherited):
    Invoice.objects.update(charged_by=f"generation {inherited.generation}")
"""


def run_child(*more, **options):
    return manage("runjob", "job", "--", *more, sys.executable, "-c", CHILD, **options)


@pytest.mark.django_db(transaction=True)
def test_a_program_fences_its_writes_with_the_lease_of_runjob():
    InvoiceFactory()
    done = run_child()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "<InheritedLease 'job' generation 1>\n"
    assert Invoice.objects.get().charged_by == "generation 1"


@pytest.mark.django_db(transaction=True)
def test_a_program_whose_lease_was_taken_over_is_refused():
    InvoiceFactory()
    done = run_child("env", f"RUNLEASE_TOKEN={wish().token}")
    assert done.returncode == 1
    assert "LeaseLost: job: the lease is no longer ours" in done.stderr
    assert Invoice.objects.get().charged_by == ""


def inherit(monkeypatch, **words):
    words = {"NAME": "job", "TOKEN": str(wish().token), "GENERATION": "3", **words}
    for word in ("NAME", "TOKEN", "GENERATION", "DATABASE"):
        monkeypatch.delenv(f"RUNLEASE_{word}", raising=False)
        if words.get(word) is not None:
            monkeypatch.setenv(f"RUNLEASE_{word}", words[word])


def test_the_database_of_an_inherited_lease_is_using_else_the_parents_else_the_default(
    second, monkeypatch
):
    inherit(monkeypatch, DATABASE=second)
    assert inherited_lease().alias == second
    assert inherited_lease(using="default").alias == "default"
    inherit(monkeypatch)
    assert inherited_lease().alias == "default"
    inherit(monkeypatch, DATABASE="nowhere")
    with pytest.raises(RunLeaseError, match="no database 'nowhere'"):
        inherited_lease()


@pytest.mark.parametrize(
    "wrong",
    [
        {"NAME": None},
        {"TOKEN": None},
        {"GENERATION": None},
        {"NAME": ""},
        {"TOKEN": "x"},
        {"GENERATION": "one"},
    ],
)
def test_without_a_whole_lease_in_the_environment_inherited_lease_says_what_to_do(
    wrong, monkeypatch
):
    inherit(monkeypatch, **wrong)
    with pytest.raises(RunLeaseError, match="start it with `manage.py runjob NAME -- PROGRAM`"):
        inherited_lease()


def test_a_fence_without_any_lease_says_what_to_do():
    with pytest.raises(RunLeaseError, match="no lease is held here"):
        public_fence()


@pytest.mark.django_db(transaction=True)
def test_a_fence_of_what_is_no_lease_is_refused_and_not_one_of_the_current_lease():
    with lease("job", ttl=60, heartbeat=False):
        declined = claim("job", heartbeat=False)
        for wrong in (declined, "job", False, uuid4()):
            with pytest.raises(TypeError, match=r"fence\(\) takes a lease, not .*`if held:`"):
                public_fence(wrong)


@pytest.mark.django_db(transaction=True)
def test_the_public_fence_is_one_of_the_current_lease():
    with lease("job", ttl=60, heartbeat=False) as held:
        with public_fence():
            with pytest.raises(RunLeaseError, match="fence of this lease is open"):
                held.release()
            InvoiceFactory()
    assert Invoice.objects.count() == 1


# -- in the tests of others


class FenceInATestCase(TestCase):
    def test_the_settings_of_a_fence_end_with_it_although_the_transaction_goes_on(self):
        with lease("job", ttl="2m") as held:
            before = setting("idle_in_transaction_session_timeout")
            with held.fence():
                assert setting("runlease.fence") == str(held.token)
            assert not setting("runlease.fence")
            assert setting("idle_in_transaction_session_timeout") == before
