"""Tables that refuse what is not fenced, whatever code or person writes there."""

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from io import StringIO

import psycopg
import pytest
from django.apps import apps
from django.contrib.auth.models import Group
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import DatabaseError, connection, connections, models, transaction
from django.db.migrations.state import ModelState, ProjectState
from django.db.migrations.writer import MigrationWriter
from django.test import TestCase
from django.utils import timezone

from django_runlease import LeaseLost, claim, lease
from django_runlease.fencing import fenced
from django_runlease.models import Run, RunLease
from django_runlease.testing import take_over_now, unfenced
from django_runlease.triggers import MIGRATION, DropFence, RequireFence, faults
from example_project.billing.models import Invoice

from .factories import InvoiceFactory
from .guarded import required
from .support import ROOT, elsewhere, expire, granted, manage, refused

ODD = 'charge 100% of "O\'Hara" \\ żółw'
REFUSED = r'table "billing_invoice" takes writes only in a fence of the lease "{}"'
INSERT = (
    "INSERT INTO billing_invoice (customer, cents, due_at, charged_by) VALUES ('x', 1, now(), '')"
)
WRITES = [INSERT, "UPDATE billing_invoice SET cents = 2", "DELETE FROM billing_invoice"]


@pytest.fixture
def guarded(request, transactional_db):
    with required() as operation:
        yield operation
        connections.close_all()


@pytest.fixture
def claimed(transactional_db):
    return granted()


def execute(sql, *params):
    with connection.cursor() as cursor:
        cursor.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else cursor.rowcount


def is_refused(lease="job"):
    return pytest.raises(DatabaseError, match=REFUSED.format(re.escape(lease)))


# -- refused


@pytest.mark.parametrize("sql", WRITES)
def test_raw_sql_outside_a_fence_is_refused_whether_it_matches_rows_or_not(claimed, guarded, sql):
    with is_refused():
        execute(sql)
    with fenced(claimed):
        InvoiceFactory()
    with is_refused():
        execute(sql)
    assert [each.cents for each in Invoice.objects.all()] == [1250]


def test_the_orm_outside_a_fence_is_refused(claimed, guarded):
    with is_refused():
        InvoiceFactory()
    with is_refused():
        Invoice.objects.bulk_create([InvoiceFactory.build()])


def test_another_program_is_refused_and_told_table_lease_and_remedy(claimed, guarded):
    with psycopg.connect(**connection.get_connection_params()) as outside:
        with pytest.raises(psycopg.Error) as caught, outside.transaction():
            outside.execute(INSERT)
        assert caught.value.sqlstate == "55000"
        told = caught.value.diag
        assert re.search(REFUSED.format("job"), told.message_primary)
        assert "held.fence()" in told.message_hint
        assert "SELECT runlease_bypass(lease, reason)" in told.message_hint
        with pytest.raises(psycopg.Error), outside.cursor() as cursor:
            with cursor.copy("COPY billing_invoice (customer) FROM STDIN") as copy:
                copy.write_row(["x"])


def test_a_stale_holder_is_refused_although_it_names_its_token(claimed, guarded):
    expire()
    newer = elsewhere(granted)
    with is_refused(), transaction.atomic():
        execute("SELECT set_config('runlease.fence', %s, true)", str(claimed.token))
        execute(INSERT)
    with fenced(newer):
        InvoiceFactory()
    assert Invoice.objects.count() == 1


def test_a_fence_of_another_lease_does_not_help(claimed, guarded):
    another = granted("another")
    with is_refused(), fenced(another):
        InvoiceFactory()


def test_after_the_fence_writes_are_refused_again(claimed, guarded):
    with fenced(claimed):
        InvoiceFactory()
    with is_refused():
        InvoiceFactory()


# -- let through


@pytest.mark.parametrize("sql", WRITES)
def test_raw_sql_in_a_fence_is_accepted(claimed, guarded, sql):
    with fenced(claimed):
        InvoiceFactory()
        assert execute(sql) == 1


def test_nested_fences_of_two_leases_open_the_tables_of_both(claimed):
    another = granted("another")
    with required("job"), required("another", Group):
        with fenced(claimed):
            with fenced(another):
                InvoiceFactory()
                Group.objects.create(name="a")
            InvoiceFactory()
        with pytest.raises(DatabaseError, match='the lease "another"'), fenced(claimed):
            Group.objects.create(name="b")


def test_a_table_may_require_two_fences(claimed):
    another = granted("another")
    with required("job"), required("another"):
        with is_refused("another"), fenced(claimed):
            InvoiceFactory()
        with fenced(claimed), fenced(another):
            InvoiceFactory()


def test_the_trigger_itself_keeps_the_lease_until_the_commit(claimed, guarded):
    """Even where the fence was in a savepoint that has been rolled back."""
    with transaction.atomic():
        execute("SELECT set_config('runlease.fence', %s, true)", str(claimed.token))
        InvoiceFactory()
        elsewhere(expire)
        assert elsewhere(refused).declined.reason == "busy"
    assert elsewhere(granted).generation == 2


def test_a_role_without_rights_on_the_leases_writes_in_a_fence_and_not_outside(claimed, guarded):
    with transaction.atomic():
        execute("CREATE ROLE clerk")
        execute("GRANT INSERT, UPDATE, DELETE, SELECT ON billing_invoice TO clerk")
        execute("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO clerk")
        execute("SELECT set_config('runlease.fence', %s, true)", str(claimed.token))
        execute("SET LOCAL ROLE clerk")
        assert execute(INSERT) == 1
        execute("SELECT set_config('runlease.fence', '', true)")
        with is_refused(), transaction.atomic():
            execute(INSERT)
        execute("SELECT runlease_bypass('job', 'a correction')")
        assert execute(INSERT) == 1
        with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
            execute("SELECT * FROM runlease_runlease")
        transaction.set_rollback(True)


@pytest.mark.parametrize("path", ["public", "pg_temp, public"])
def test_temporary_tables_do_not_stand_in_for_the_leases_or_the_history(claimed, guarded, path):
    forged = "11111111-1111-1111-1111-111111111111"
    with transaction.atomic():
        for table in ("runlease_runlease", "runlease_run", "runlease_fencemark"):
            execute(f"CREATE TEMP TABLE {table} (LIKE public.{table}) ON COMMIT DROP")
        execute(f"SET LOCAL search_path = {path}")
        columns = execute(
            "SELECT attname FROM pg_attribute WHERE attnum > 0 AND attnotnull"
            " AND attrelid = 'pg_temp.runlease_runlease'::regclass"
        )
        for (column,) in columns:
            execute(f'ALTER TABLE pg_temp.runlease_runlease ALTER "{column}" DROP NOT NULL')
        execute("INSERT INTO pg_temp.runlease_runlease (name, token) VALUES ('job', %s)", forged)
        execute("SELECT set_config('runlease.fence', %s, true)", forged)
        with is_refused(), transaction.atomic():
            execute(INSERT)
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    "name", [ODD, "'; DROP TABLE billing_invoice; --", "%s %(x)s %%", "{}", "$1"]
)
def test_a_lease_of_any_name_can_be_required(transactional_db, name):
    with required(name):
        with is_refused(name):
            InvoiceFactory()
        with fenced(granted(name)):
            InvoiceFactory()


@pytest.mark.parametrize("name", ["", "a\nb", " a", "x" * 201, None])
def test_what_cannot_name_a_lease_cannot_be_required(name):
    with pytest.raises(ValueError, match="lease's name"):
        RequireFence("Invoice", name)


# -- let through by hand


def test_a_bypass_lets_this_transaction_through_and_leaves_a_run(claimed, guarded):
    with transaction.atomic():
        execute("SELECT runlease_bypass('job', 'a wrong amount')")
        for sql in WRITES:
            execute(sql)
        InvoiceFactory()
    with is_refused():
        InvoiceFactory()
    run = Run.objects.get(trigger="bypass")
    assert (run.lease_name, run.reason, run.outcome) == ("job", "a wrong amount", "succeeded")
    assert run.holder == execute("SELECT session_user")[0][0]
    assert (run.generation, run.output, run.error) == (None, "", "")
    assert run.host
    assert run.finished_at is not None


def test_a_bypass_is_for_one_lease_and_several_add_up(claimed):
    with required("job"), required("another"):
        with is_refused("another"), transaction.atomic():
            execute("SELECT runlease_bypass('job', 'x')")
            InvoiceFactory()
        with transaction.atomic():
            execute("SELECT runlease_bypass('job', 'x'), runlease_bypass('another', 'x')")
            InvoiceFactory()
    assert Run.objects.filter(trigger="bypass").count() == 2


def test_a_bypass_that_is_rolled_back_is_none(claimed, guarded):
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            execute("SELECT runlease_bypass('job', 'x')")
            raise ZeroDivisionError
        with is_refused(), transaction.atomic():
            InvoiceFactory()


def test_a_bypass_cannot_be_forged_by_a_setting(claimed, guarded):
    with transaction.atomic():
        execute("SELECT runlease_bypass('job', 'x')")
        (used,) = execute("SELECT current_setting('runlease.bypass')")[0]
    assert used == str(Run.objects.get(trigger="bypass").pk)
    for forged in (used, "", "x", "1 or true", str(claimed.run_id), f"{used} {claimed.run_id}"):
        with is_refused(), transaction.atomic():
            execute("SELECT set_config('runlease.bypass', %s, true)", forged)
            InvoiceFactory()


def test_the_bypass_of_another_transaction_at_the_same_time_cannot_be_used(claimed, guarded):
    def bypass():
        with transaction.atomic():
            execute("SELECT runlease_bypass('job', 'x')")

    with is_refused(), transaction.atomic():
        execute("SELECT 1")
        elsewhere(bypass)
        used = str(Run.objects.get(trigger="bypass").pk)
        execute("SELECT set_config('runlease.bypass', %s, true)", used)
        InvoiceFactory()


@pytest.mark.parametrize("reason", ["", "  ", "\n\t ", None])
def test_a_bypass_needs_a_reason(transactional_db, reason):
    with pytest.raises(DatabaseError, match="a bypass needs a reason"):
        execute("SELECT runlease_bypass('job', %s)", reason)


class Unfenced(TestCase):
    """Within a TestCase, whose transaction goes on after the block."""

    def setUp(self):
        stack = ExitStack()
        self.addCleanup(stack.close)
        stack.enter_context(required())

    def test_unfenced_lets_factories_through_in_its_block_and_no_longer(self):
        with unfenced("job", "a fixture"):
            InvoiceFactory()
            with unfenced("another", "within"):
                InvoiceFactory()
            InvoiceFactory()
        with is_refused(), transaction.atomic():
            InvoiceFactory()
        reasons = Run.objects.filter(trigger="bypass").values_list("reason", flat=True)
        assert list(reasons) == ["a fixture", "within"]

    def test_a_fence_lets_through_in_its_block_and_no_longer(self):
        with lease("job") as held:
            with held.fence():
                InvoiceFactory()
            with is_refused(), transaction.atomic():
                InvoiceFactory()

    def test_after_a_takeover_the_table_refuses_what_the_fence_had_let_in(self):
        held = claim("job", ttl=60)
        take_over_now(held)
        with is_refused(), transaction.atomic():
            execute("SELECT set_config('runlease.fence', %s, true)", str(held.token))
            InvoiceFactory()
        assert held.release() is False


def test_unfenced_commits_what_is_written_in_it(transactional_db, guarded):
    with unfenced("job", "a fixture"):
        InvoiceFactory()
    assert Invoice.objects.count() == 1
    with is_refused():
        InvoiceFactory()


# -- its cost, and what it does not cover


def test_the_trigger_is_called_once_for_a_statement_of_a_thousand_rows(claimed, guarded):
    insert = (
        "INSERT INTO billing_invoice (customer, cents, due_at, charged_by) "
        "SELECT 'x', 1, now(), '' FROM generate_series(1, 1000)"
    )
    with fenced(claimed):
        for statement in (insert, *WRITES[1:]):
            plan = "\n".join(line for (line,) in execute(f"EXPLAIN ANALYZE {statement}"))
            assert re.search(rf"Trigger {guarded.trigger}: .*calls=1\b", plan), plan


def test_the_trigger_looks_its_rows_up_in_indexes(claimed):
    for lookup in (
        "SELECT 1 FROM runlease_runlease WHERE name = 'job' AND token::text = ANY ('{a}')",
        "SELECT 1 FROM runlease_run WHERE lease_name = 'job' AND started_at >= now()",
        "SELECT 1 FROM runlease_fencemark WHERE lease_name = 'job' AND token::text = ANY ('{a}')",
    ):
        with transaction.atomic():
            execute("SET LOCAL enable_seqscan = off")
            plan = "\n".join(line for (line,) in execute(f"EXPLAIN {lookup}"))
        assert "Index Cond" in plan, plan


def test_truncate_and_the_replica_role_are_not_covered(claimed, guarded):
    with fenced(claimed):
        InvoiceFactory()
    execute("TRUNCATE billing_invoice")
    assert not Invoice.objects.exists()
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")
        InvoiceFactory()


@pytest.mark.django_db
def test_partitions_written_to_directly_and_a_disabled_trigger_are_not_covered():
    execute("CREATE TABLE parts (id int) PARTITION BY LIST (id)")
    execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES IN (1)")
    execute(
        "CREATE TRIGGER fence BEFORE INSERT ON parts EXECUTE FUNCTION runlease_require_fence('job')"
    )
    with pytest.raises(DatabaseError, match="takes writes only in a fence"), transaction.atomic():
        execute("INSERT INTO parts VALUES (1)")
    execute("INSERT INTO part_1 VALUES (1)")
    execute("ALTER TABLE parts DISABLE TRIGGER ALL")  # as pg_restore --disable-triggers does
    execute("INSERT INTO parts VALUES (1)")


@pytest.mark.django_db
def test_the_bypass_can_be_kept_from_everybody():
    execute("REVOKE EXECUTE ON FUNCTION runlease_bypass(text, text) FROM PUBLIC")
    execute("CREATE ROLE clerk")
    with pytest.raises(DatabaseError, match="permission denied"), transaction.atomic():
        execute("SET LOCAL ROLE clerk")
        execute("SELECT runlease_bypass('job', 'x')")


# -- in another database than the lease's


def test_a_table_in_another_database_goes_by_the_mark_of_the_fences_there(claimed, other):
    def write():
        Invoice.objects.using(other).create(customer="x", cents=1, due_at=timezone.now())

    with required(using=other):
        with is_refused():
            write()
        with fenced(claimed, other):
            write()
        expire()
        newer = elsewhere(granted)
        with fenced(newer, other):
            write()
        with is_refused(), transaction.atomic(using=other):
            with connections[other].cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('runlease.fence', %s, true)", [str(claimed.token)]
                )
            write()
        with unfenced("job", "a fixture", using=other):
            write()
    assert Invoice.objects.using(other).count() == 3


def test_in_another_database_a_stale_token_opens_a_table_until_the_new_holder_has_fenced_there(
    claimed, other
):
    """The trigger there sees no lease. Only a fence looks at that, and refuses before."""

    def write(token):
        with transaction.atomic(using=other), connections[other].cursor() as cursor:
            cursor.execute("SELECT set_config('runlease.fence', %s, true)", [str(token)])
            cursor.execute(INSERT)

    with required(using=other):
        with is_refused():
            write(claimed.token)
        with is_refused(), fenced(claimed), connections[other].cursor() as cursor:
            cursor.execute(INSERT)
        with fenced(claimed, other):
            pass
        expire()
        newer = elsewhere(granted)
        with pytest.raises(LeaseLost), fenced(claimed, other):
            raise AssertionError("entered")
        write(claimed.token)
        with fenced(newer, other):
            pass
        with is_refused():
            write(claimed.token)
    assert Invoice.objects.using(other).count() == 1


def test_a_bypass_in_another_database_leaves_its_run_there(claimed, other):
    with required(using=other), transaction.atomic(using=other):
        with connections[other].cursor() as cursor:
            cursor.execute("SELECT runlease_bypass('job', 'a wrong amount')")
            cursor.execute(INSERT)
    assert Run.objects.using(other).get().reason == "a wrong amount"
    assert not Run.objects.filter(trigger="bypass").exists()


def test_a_lease_left_in_the_tables_database_is_told_with_the_statement_that_takes_it_away(
    claimed, other
):
    def write():
        with fenced(claimed, other):
            Invoice.objects.using(other).create(customer="x", cents=1, due_at=timezone.now())

    RunLease.objects.using(other).create(name="job")
    with required(using=other):
        with is_refused() as refusal:
            write()
        (remedy,) = re.findall(r"DELETE FROM .*", str(refusal.value))
        with connections[other].cursor() as cursor:
            cursor.execute(remedy)
        write()


def test_a_mark_in_the_leases_own_database_opens_nothing(claimed, guarded):
    expire()
    elsewhere(granted)
    execute(
        "INSERT INTO runlease_fencemark (lease_name, generation, token) VALUES ('job', 1, %s)",
        str(claimed.token),
    )
    with is_refused(), transaction.atomic():
        execute("SELECT set_config('runlease.fence', %s, true)", str(claimed.token))
        InvoiceFactory()


# -- as a migration


@pytest.fixture
def migrated(settings, transactional_db):
    """A project whose second migration requires a fence for its invoices."""
    settings.MIGRATION_MODULES = {"billing": "tests.guarded.migrations"}
    call_command("migrate", "billing", "0002", verbosity=0)
    yield
    call_command("migrate", "billing", "0001", verbosity=0)


def messages():
    return [each for each in run_checks(databases=["default"]) if each.id == "runlease.W005"]


def test_the_migration_is_reversible(migrated):
    with is_refused(ODD):
        InvoiceFactory()
    with fenced(granted(ODD)):
        InvoiceFactory()
    call_command("migrate", "billing", "0001", verbosity=0)
    InvoiceFactory()


@pytest.mark.parametrize("backwards", [False, True])
def test_sqlmigrate_shows_it(migrated, backwards):
    out = StringIO()
    call_command("sqlmigrate", "billing", "0002", backwards=backwards, stdout=out)
    if backwards:
        assert "DROP TRIGGER IF EXISTS runlease_fence_" in out.getvalue()
    else:
        assert re.search(
            r"CREATE TRIGGER runlease_fence_\w+ BEFORE INSERT OR UPDATE OR DELETE "
            r'ON "billing_invoice" FOR EACH STATEMENT EXECUTE FUNCTION runlease_require_fence\(',
            out.getvalue(),
        )
        assert "O''Hara" in out.getvalue()
        assert "100% of" in out.getvalue()


@pytest.mark.django_db
def test_sqlmigrate_shows_the_functions():
    out = StringIO()
    call_command("sqlmigrate", *MIGRATION, stdout=out)
    for signature in ("runlease_require_fence() RETURNS trigger", "runlease_bypass(lease text,"):
        assert f"CREATE OR REPLACE FUNCTION {signature}" in out.getvalue()


def test_it_describes_itself_and_can_be_written_into_a_migration():
    operation = RequireFence("Invoice", lease="job")
    assert operation.describe() == "Require a fence of the lease 'job' for writes to Invoice"
    assert operation.migration_name_fragment == "require_fence_invoice"
    text, imports = MigrationWriter.serialize(operation)
    assert "RequireFence" in text
    assert imports == {"import django_runlease.triggers"}


# -- ended by a migration


@pytest.fixture
def dropped(migrated):
    """A third migration has renamed the model; a fourth requires a fence of another lease, and has
    ended what the second began."""
    call_command("migrate", "billing", "0004", verbosity=0)


def test_a_later_migration_ends_it_and_backwards_requires_it_again(dropped):
    with fenced(granted("another")):
        assert execute("DELETE FROM billing_bill") == 0
    assert messages() == []
    with transaction.atomic():
        execute(f"DROP TRIGGER {RequireFence('Bill', 'another').trigger} ON billing_bill")
        (message,) = messages()
        assert "of the lease 'another', is missing" in message.msg
        transaction.set_rollback(True)
    call_command("migrate", "billing", "0003", verbosity=0)
    with pytest.raises(DatabaseError, match=re.escape(f'in a fence of the lease "{ODD}"')):
        execute("DELETE FROM billing_bill")
    assert messages() == []
    execute(f"DROP TRIGGER {RequireFence('Invoice', ODD).trigger} ON billing_bill")
    (message,) = messages()
    assert "is missing" in message.msg
    call_command("migrate", "billing", "0002", verbosity=0)


def test_of_two_fences_of_a_table_the_named_one_is_dropped(claimed):
    state = ProjectState.from_apps(apps)
    with required("job"), required("another"):
        with connection.schema_editor() as editor:
            DropFence("Invoice", "another").database_forwards("billing", editor, state, state)
        with fenced(claimed):
            InvoiceFactory()
        with is_refused():
            InvoiceFactory()


def test_a_fence_that_is_not_required_cannot_be_dropped(claimed, guarded):
    state = ProjectState.from_apps(apps)
    with pytest.raises(DatabaseError, match=r'trigger .* for table "billing_invoice" does not'):
        with connection.schema_editor() as editor:
            DropFence("Invoice", "jbo").database_forwards("billing", editor, state, state)
    with is_refused():
        InvoiceFactory()


@pytest.mark.parametrize("backwards", [False, True])
def test_sqlmigrate_shows_what_drops_a_fence(dropped, backwards):
    out = StringIO()
    call_command("sqlmigrate", "billing", "0004", backwards=backwards, stdout=out)
    trigger = RequireFence("Invoice", ODD).trigger
    assert f"DROP TRIGGER {trigger} ON" in out.getvalue() or backwards
    assert f"CREATE TRIGGER {trigger} BEFORE INSERT" in out.getvalue() or not backwards
    assert '"billing_bill"' in out.getvalue()


def test_dropping_describes_itself_and_can_be_written_into_a_migration():
    operation = DropFence("Invoice", lease="job")
    told = "No longer require a fence of the lease 'job' for writes to Invoice"
    assert operation.describe() == told
    assert operation.migration_name_fragment == "drop_fence_invoice"
    text, imports = MigrationWriter.serialize(operation)
    assert "DropFence" in text
    assert imports == {"import django_runlease.triggers"}
    with pytest.raises(ValueError, match="lease's name"):
        DropFence("Invoice", "")


# -- the check


def test_the_check_is_content_with_what_the_migrations_have_left(migrated):
    assert messages() == []
    assert manage("check", "--database", "default").returncode == 0


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ("DROP TRIGGER {trigger} ON billing_invoice", "missing"),
        ("ALTER TABLE billing_invoice DISABLE TRIGGER {trigger}", "disabled"),
        ("ALTER TABLE billing_invoice ENABLE REPLICA TRIGGER {trigger}", "disabled"),
        (
            (
                "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE ON "
                "billing_invoice EXECUTE FUNCTION runlease_require_fence('another')"
            ),
            "changed",
        ),
        (
            (
                "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT ON billing_invoice "
                "EXECUTE FUNCTION runlease_require_fence({lease})"
            ),
            "changed",
        ),
        (
            (
                "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT OR UPDATE OF cents OR DELETE ON "
                "billing_invoice EXECUTE FUNCTION runlease_require_fence({lease})"
            ),
            "changed",
        ),
        ("ALTER TABLE billing_invoice RENAME TO gone", "missing"),
    ],
)
def test_the_check_notices_a_trigger_that_is_not_as_it_was(migrated, change, state):
    trigger = RequireFence("Invoice", ODD).trigger
    literal = "E'" + ODD.replace("\\", "\\\\").replace("'", "''") + "'"
    with transaction.atomic():
        execute(change.format(trigger=trigger, lease=literal))
        (message,) = messages()
        transaction.set_rollback(True)
    assert f"is {state}: writes outside of a fence may get through" in message.msg
    assert "billing_invoice" in message.msg
    assert repr(ODD) in message.msg
    assert messages() == []


@pytest.mark.parametrize(
    "change",
    [
        "DROP TRIGGER {trigger} ON billing_invoice",
        "ALTER TABLE billing_invoice DISABLE TRIGGER {trigger}",
        "ALTER TABLE billing_invoice ENABLE REPLICA TRIGGER {trigger}",
        (
            "CREATE OR REPLACE TRIGGER {trigger} BEFORE INSERT ON billing_invoice "
            "EXECUTE FUNCTION runlease_require_fence('another')"
        ),
    ],
)
def test_what_the_check_says_to_do_puts_the_trigger_back(migrated, change):
    with transaction.atomic():
        execute(change.format(trigger=RequireFence("Invoice", ODD).trigger))
        (message,) = messages()
        for statement in re.findall(r"(?:DROP|ALTER) [^;]*;", message.hint):
            execute(statement)
        if shown := re.search(r"`manage.py sqlmigrate (\w+) (\w+)`", message.hint):
            out = StringIO()
            call_command("sqlmigrate", *shown.groups(), stdout=out)
            (statement,) = re.findall(r"^CREATE TRIGGER.*", out.getvalue(), re.MULTILINE)
            execute(statement)
        assert messages() == []
        transaction.set_rollback(True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP FUNCTION runlease_bypass(text, text)", "runlease_bypass(text,text) is missing"),
        (
            (
                "CREATE OR REPLACE FUNCTION runlease_require_fence() RETURNS trigger "
                "LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp "
                "AS 'BEGIN RETURN NULL; END'"
            ),
            "runlease_require_fence() is changed",
        ),
        (
            "ALTER FUNCTION runlease_require_fence() SECURITY INVOKER",
            "runlease_require_fence() is changed",
        ),
        (
            "ALTER FUNCTION runlease_require_fence() RESET search_path",
            "runlease_require_fence() is changed",
        ),
    ],
)
@pytest.mark.django_db
def test_the_check_notices_a_function_that_is_not_as_it_was(change, told):
    execute(change)
    (message,) = messages()
    assert told in message.msg
    assert "`manage.py sqlmigrate runlease 0002_fencing`" in message.hint


def test_the_check_follows_a_model_that_is_renamed(migrated):
    call_command("migrate", "billing", "0003", verbosity=0)
    assert messages() == []
    execute(f"ALTER TABLE billing_bill DISABLE TRIGGER {RequireFence('Invoice', ODD).trigger}")
    (message,) = messages()
    assert "'billing_bill'" in message.msg


@pytest.mark.django_db
def test_a_project_that_has_not_migrated_yet_hears_nothing():
    execute("DELETE FROM django_migrations WHERE app = 'runlease'")
    execute("DROP FUNCTION runlease_bypass(text, text)")
    assert messages() == []


def test_a_database_that_is_down_is_no_traceback():
    done = manage(
        "check", "--database", "default", env={"DATABASE_URL": "postgres://nobody@127.0.0.1:1/x"}
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.django_db
def test_without_databases_the_check_asks_none(django_assert_num_queries):
    with django_assert_num_queries(0):
        assert not [each for each in run_checks() if each.id == "runlease.W005"]


ALIKE = {
    "proxy": ([], {"proxy": True}, ("billing.Invoice",)),
    "unmanaged": (
        [("id", models.BigAutoField(primary_key=True))],
        {"managed": False, "db_table": Invoice._meta.db_table},
        (models.Model,),
    ),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_a_table_of_a_proxy_or_an_unmanaged_model_is_required_like_any_other(claimed, kind):
    state = ProjectState.from_apps(apps)
    state.add_model(ModelState("billing", "Other", *ALIKE[kind]))
    operation = RequireFence("Other", "job")
    with connection.schema_editor() as editor:
        operation.database_forwards("billing", editor, state, state)
    try:
        with is_refused():
            InvoiceFactory()
    finally:
        with connection.schema_editor() as editor:
            operation.database_backwards("billing", editor, state, state)


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["evil, pg_temp", "pg_temp, public", "public"])
def test_the_check_notices_a_search_path_that_was_changed(path):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER FUNCTION runlease_require_fence() SET search_path = {path}")
    assert any("runlease_require_fence() is changed" in str(fault) for fault in faults(connection))


@pytest.mark.django_db(transaction=True)
def test_an_operator_of_another_role_is_not_called_by_the_trigger(claimed, guarded):
    """As the trigger runs with its creator's rights, that would hand them out."""
    execute(
        "CREATE FUNCTION public.hijack(varchar, text) RETURNS bool LANGUAGE plpgsql AS "
        "$$BEGIN RAISE EXCEPTION 'hijacked'; END$$"
    )
    execute(
        "CREATE OPERATOR public.= (LEFTARG = varchar, RIGHTARG = text, FUNCTION = public.hijack)"
    )
    try:
        with is_refused():
            InvoiceFactory()
    finally:
        execute("DROP OPERATOR public.= (varchar, text)")
        execute("DROP FUNCTION public.hijack(varchar, text)")


def test_the_app_migrates_into_a_database_that_is_not_postgresql_too(tmp_path):
    url = f"sqlite:///{tmp_path / 'other.sqlite3'}"
    program = (
        "import django; django.setup()\n"
        "from django.core.management import call_command\n"
        "call_command('migrate', 'runlease', verbosity=0)\n"
        "call_command('migrate', 'runlease', 'zero', verbosity=0)\n"
    )
    command = [sys.executable, "-c", program]
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "example_project.settings"}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
