"""A fence where the data is not in the lease's database; or is, by another name."""

import threading
from contextlib import nullcontext

import pytest
from django.core.management import call_command
from django.db import DatabaseError, connections, transaction
from django.utils import timezone

from django_runlease import LeaseLost, RunLeaseError, claim, store
from django_runlease.fencing import fenced
from django_runlease.models import FenceMark, Run, RunLease
from example_project.billing.models import Invoice

from .databases import further_alias
from .support import DEADLINE, elsewhere, expire, granted, refused, together, wait_for

pytestmark = pytest.mark.django_db(transaction=True)


def taken_over():
    """Let the lease expire and another claim have it."""
    expire()
    return elsewhere(granted)


def write(claimed, using, **invoice):
    with fenced(claimed, using):
        Invoice.objects.using(using).create(**{"customer": "x", "cents": 1, **due()}, **invoice)


def due():
    return {"due_at": timezone.now()}


def marks(using):
    return list(FenceMark.objects.using(using).values_list("lease_name", "generation", "token"))


# -- a second alias of the same database


def test_a_second_alias_of_the_leases_database_is_found_out_and_fenced_by_the_leases_row(second):
    claimed = granted()
    with fenced(claimed, second):
        Invoice.objects.using(second).create(customer="x", cents=1, **due())
        elsewhere(expire)
        assert elsewhere(refused).declined.reason == "busy"
    assert Invoice.objects.count() == 1
    assert marks("default") == []


def test_a_fence_on_a_second_alias_refuses_a_lease_that_was_taken_over(second):
    late = granted()
    taken_over()
    with pytest.raises(LeaseLost, match="no longer ours"), fenced(late, second):
        raise AssertionError("entered")
    assert not Invoice.objects.exists()


def test_another_table_of_leases_in_the_same_database_is_fenced_as_another_database_is(second):
    claimed = granted()
    schema = {"options": "-c search_path=tenant"}
    with connections[second].cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        try:
            with further_alias("tenant", OPTIONS=schema) as tenant:
                call_command("migrate", "runlease", database=tenant, verbosity=0)
                call_command("migrate", "billing", database=tenant, verbosity=0)
                write(claimed, tenant)
                assert marks(tenant) == [("job", claimed.generation, claimed.token)]
                newer = taken_over()
                write(newer, tenant)
                with pytest.raises(LeaseLost, match="no longer ours"):
                    write(claimed, tenant)
                assert Invoice.objects.using(tenant).count() == 2
        finally:
            cursor.execute("DROP SCHEMA tenant CASCADE")
    assert marks("default") == []


def test_a_fence_works_where_the_server_binds_the_parameters(other):
    claimed = granted()
    binding = {**connections["default"].settings_dict["OPTIONS"], "server_side_binding": True}
    name = connections[other].settings_dict["NAME"]
    with further_alias("binding", OPTIONS=binding) as alias, fenced(claimed, alias, idle="1m"):
        Invoice.objects.using(alias).create(customer="x", cents=1, **due())
    with further_alias("binding", OPTIONS=binding, NAME=name) as alias, fenced(claimed, alias):
        Invoice.objects.using(alias).create(customer="x", cents=1, **due())
    assert Invoice.objects.count() == Invoice.objects.using(other).count() == 1


# -- another database


def test_writes_in_a_fence_of_another_database_commit_and_leave_the_mark_of_the_claim(other):
    claimed = granted()
    write(claimed, other)
    assert Invoice.objects.using(other).count() == 1
    assert marks(other) == [("job", claimed.generation, claimed.token)]
    assert marks("default") == []


def test_a_holder_is_refused_there_once_a_newer_one_has_fenced_there(other):
    """Judged by the mark alone: the lease's row here still has the older token."""
    late = granted()
    write(late, other, charged_by="late")
    newer = taken_over()
    write(newer, other, charged_by="newer")
    RunLease.objects.update(token=late.token)
    with pytest.raises(LeaseLost):
        write(late, other, charged_by="late again")
    written = Invoice.objects.using(other).order_by("pk").values_list("charged_by", flat=True)
    assert list(written) == ["late", "newer"]
    assert marks(other) == [("job", newer.generation, newer.token)]


def test_a_stale_holder_does_not_wait_for_the_end_of_the_newer_ones_fence_there(other):
    late = granted()
    newer = taken_over()
    write(newer, other)
    with fenced(newer, other):
        with pytest.raises(LeaseLost):
            elsewhere(lambda: write(late, other))


def test_a_stale_holder_is_refused_there_before_the_new_one_has_come_if_its_row_can_be_asked(other):
    late = granted()
    taken_over()
    with pytest.raises(LeaseLost):
        write(late, other)
    assert not Invoice.objects.using(other).exists()


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_of_the_leases_database_does_not_hide_a_takeover(other, isolation):
    late = granted()
    with transaction.atomic():
        with connections["default"].cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
        assert RunLease.objects.get().token == late.token
        elsewhere(taken_over)
        with pytest.raises(LeaseLost):
            write(late, other)
    assert not Invoice.objects.using(other).exists()


def test_an_equal_generation_with_another_token_is_refused(other):
    claimed = granted()
    FenceMark.objects.using(other).create(
        lease_name="job", generation=claimed.generation, token="0" * 32
    )
    with pytest.raises(LeaseLost):
        write(claimed, other)
    assert not Invoice.objects.using(other).exists()


@pytest.mark.parametrize("name", ["job", "O'Hara's job"])
def test_a_mark_ahead_of_a_restored_lease_is_told_with_the_statement_that_takes_it_away(
    other, name
):
    """The lease's database was restored, so its generations begin again below the mark's."""
    with fenced(granted(name), other):
        FenceMark.objects.using(other).update(generation=7, token="0" * 32)
    RunLease.objects.all().delete()
    Run.objects.all().delete()
    held = claim(name, ttl=60, heartbeat=False)
    assert held.generation == 1
    for around in (transaction.atomic, nullcontext):
        with around(), pytest.raises(LeaseLost) as caught, held.fence(other):
            raise AssertionError("entered")
    assert not held.lost.is_set()
    told, statement = str(caught.value).split("delete the mark there: ")
    assert "the lease is ours, but its FenceMark in the database 'other'" in told
    with connections[other].cursor() as cursor:
        cursor.execute(statement)
    write(held, other)
    assert marks(other) == [(name, 1, held.token)]
    assert held.release() is True


def test_a_mark_of_an_older_generation_is_raised(other):
    FenceMark.objects.using(other).create(lease_name="job", generation=0, token="0" * 32)
    claimed = granted()
    write(claimed, other)
    assert marks(other) == [("job", claimed.generation, claimed.token)]


@pytest.mark.parametrize("first", [True, False])
def test_blocks_of_one_holder_run_side_by_side_there_the_first_ones_too(other, first):
    claimed = granted()
    if not first:
        write(claimed, other)
    barrier = threading.Barrier(6)

    def meet_in_the_fence():
        with fenced(claimed, other):
            barrier.wait(DEADLINE)
            Invoice.objects.using(other).create(customer="met", cents=1, **due())

    together(*[meet_in_the_fence] * 6)
    assert Invoice.objects.using(other).filter(customer="met").count() == 6


def test_the_new_holders_fence_there_waits_for_an_open_one_of_the_old(other):
    late = granted()
    with fenced(late, other):
        newer = taken_over()
        writing = threading.Thread(target=lambda: elsewhere(lambda: write(newer, other)))
        writing.start()
        wait_for(lambda: waiting_there(other))
        Invoice.objects.using(other).create(customer="in time", cents=1, **due())
    writing.join()
    written = Invoice.objects.using(other).order_by("pk").values_list("customer", flat=True)
    assert list(written) == ["in time", "x"]


def waiting_there(other):
    name = connections[other].settings_dict["NAME"]
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'",
            [name],
        )
        return cursor.fetchone()[0]


def test_a_fence_there_holds_until_the_end_of_the_transaction_around_it(other):
    claimed = granted()
    with transaction.atomic(using=other):
        write(claimed, other)
        newer = taken_over()
        writing = threading.Thread(target=lambda: elsewhere(lambda: write(newer, other)))
        writing.start()
        wait_for(lambda: waiting_there(other))
    writing.join()
    assert marks(other) == [("job", newer.generation, newer.token)]


def test_an_error_in_the_block_rolls_its_writes_back(other):
    claimed = granted()
    with pytest.raises(ZeroDivisionError), fenced(claimed, other):
        Invoice.objects.using(other).create(customer="x", cents=1, **due())
        raise ZeroDivisionError
    assert not Invoice.objects.using(other).exists()


def test_a_client_that_is_silent_in_a_fence_there_for_its_idle_time_is_cut_off(other):
    claimed = granted()
    with pytest.raises(DatabaseError):
        with fenced(claimed, other, idle=0.1):
            Invoice.objects.using(other).create(customer="x", cents=1, **due())
            pid = connections[other].connection.info.backend_pid
            wait_for(lambda: not backend_lives(pid))
    connections[other].close()
    assert not Invoice.objects.using(other).exists()


def backend_lives(pid):
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid])
        return cursor.fetchone()[0]


def test_a_fenced_update_goes_where_its_rows_are(other):
    invoice = Invoice.objects.using(other).create(customer="x", cents=1, **due())
    held = claim("job", ttl=60, heartbeat=False)
    assert held.fenced_update(Invoice.objects.using(other).filter(pk=invoice.pk), cents=2) == 1
    taken_over()
    with pytest.raises(LeaseLost):
        held.fenced_update(Invoice.objects.using(other).all(), cents=3)
    with pytest.raises(LeaseLost):
        held.fenced_delete(Invoice.objects.using(other).all())
    assert list(Invoice.objects.using(other).values_list("cents", flat=True)) == [2]
    held.release()


def test_a_takeover_during_a_snapshot_there_is_a_loss_and_not_a_conflict(other):
    late = granted()
    write(late, other)
    with pytest.raises(LeaseLost):
        with transaction.atomic(using=other):
            with connections[other].cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("SELECT count(*) FROM billing_invoice")
            newer = taken_over()
            elsewhere(lambda: write(newer, other))
            write(late, other)
    assert Invoice.objects.using(other).count() == 2


def test_a_database_that_is_not_configured_is_named():
    with pytest.raises(RunLeaseError, match="there is no database 'nowhere'"):
        with fenced(granted(), "nowhere"):
            raise AssertionError("entered")


def test_a_database_of_another_kind_is_refused():
    with further_alias("file", ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={}):
        with pytest.raises(RunLeaseError, match="'file' is not PostgreSQL"):
            with fenced(granted(), "file"):
                raise AssertionError("entered")
    assert store.is_ours_now("job", RunLease.objects.get().token, "default")
