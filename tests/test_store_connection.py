import threading
from datetime import timedelta

import psycopg
import pytest
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connection,
    connections,
    transaction,
)
from django.test import override_settings

from django_runlease import store
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Outcome, RunLease
from django_runlease.store import Closing
from django_runlease.store import connection as store_connection
from django_runlease.store.connection import (
    apart,
    explain,
    in_transaction,
    is_connection_error,
    is_contention,
    own_connection,
    write_alias,
)

from .support import (
    DEADLINE,
    backends,
    elsewhere,
    granted,
    open_transaction,
    refused,
    wait_for,
    wish,
)

DONE = Closing(outcome=Outcome.SUCCEEDED)


def sql(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def error_of(statement, *setup):
    """The error that *statement* ends in, with the SQLSTATE that PostgreSQL gives it."""
    with pytest.raises(DatabaseError) as caught, transaction.atomic():
        sql("; ".join([*setup, statement]))
    return caught.value


# -- which database decides


class Router:
    """Sends reads to a replica that is not there."""

    def db_for_read(self, model, **hints):
        return "replica"

    def db_for_write(self, model, **hints):
        return "default"


@pytest.mark.django_db
@override_settings(DATABASE_ROUTERS=[f"{__name__}.Router"])
def test_no_operation_reads_what_it_decides_on_from_a_replica():
    claimed = granted()
    refusal = refused()
    assert refusal.declined.reason == "held"
    assert store.preview(wish(), "default")
    assert store.renew(claimed, timedelta(minutes=1), None) is None
    store.pause("job", "default", by="ann")
    store.resume("job", "default", by="ann")
    assert store.release(claimed, DONE) is None
    late = granted()
    store.break_lease("job", "default", by="ann")
    assert store.release(late, DONE).reason == "broken"
    store.record_decline(wish(), refusal, "default")


@pytest.mark.django_db
@override_settings(DATABASE_ROUTERS=[f"{__name__}.Router"])
def test_the_router_for_writes_names_the_database_unless_the_call_or_the_settings_do():
    assert write_alias() == "default"
    with override_settings(RUNLEASE={"DATABASE": "elsewhere"}):
        with pytest.raises(RunLeaseError, match="there is no database 'elsewhere'"):
            write_alias()
        assert write_alias("default") == "default"


def test_an_unknown_database_is_refused_with_what_to_write_instead():
    with pytest.raises(RunLeaseError, match=r"no database 'nope': name one of settings.DATABASES"):
        write_alias("nope")


def test_a_database_that_is_not_postgresql_is_refused(monkeypatch):
    lite = {"lite": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    configured = connections.configure_settings({**lite, "default": {}})
    monkeypatch.setitem(connections.settings, "lite", configured["lite"])
    try:
        with pytest.raises(RunLeaseError, match="'lite' is not PostgreSQL"):
            write_alias("lite")
    finally:
        del connections["lite"]


# -- transactions


@pytest.mark.django_db(transaction=True)
def test_a_lease_transaction_is_read_committed_and_bounds_its_waits_for_itself_only():
    def settings():
        return sql(
            "SELECT current_setting('transaction_isolation') || ' ' ||"
            "       current_setting('lock_timeout')"
        )

    before = sql("SHOW lock_timeout")
    assert in_transaction("default", settings) == "read committed 2s"
    assert sql("SHOW lock_timeout") == before


@pytest.mark.django_db
def test_in_a_test_case_a_lease_transaction_leaves_the_settings_of_the_test_alone():
    before = sql("SHOW lock_timeout")
    assert in_transaction("default", lambda: sql("SHOW lock_timeout")) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_serialization_failure_is_tried_again_three_times(state):
    tries = []

    def work():
        tries.append(1)
        sql(f"DO $$ BEGIN RAISE EXCEPTION 'again' USING ERRCODE = '{state}'; END $$")

    with pytest.raises(OperationalError, match="again") as caught:
        in_transaction("default", work)
    assert len(tries) == 4
    assert is_contention(caught.value)
    assert not is_connection_error(caught.value)


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_cannot_be_serialized_declines_as_busy_and_is_never_lost():
    """As where a trigger works in other tables that others change too."""
    granted()
    RunLease.objects.update(token=None, expires_at=None)
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION collide() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'collided' USING ERRCODE = '40001'; END $$;"
            "CREATE TRIGGER collide BEFORE UPDATE ON runlease_runlease"
            " FOR EACH ROW EXECUTE FUNCTION collide()"
        )
        try:
            refusal = refused()
        finally:
            cursor.execute("DROP FUNCTION collide CASCADE")
    assert refusal.declined.reason == "busy"
    assert refusal.now is not None
    assert granted().generation == 2


# -- apart


@pytest.mark.django_db(transaction=True)
def test_work_apart_has_its_own_connection_and_returns_or_raises_what_the_work_does():
    mine = sql("SELECT pg_backend_pid()")
    before = backends()
    assert apart("default", lambda: sql("SELECT pg_backend_pid()")) != mine
    with pytest.raises(ZeroDivisionError):
        apart("default", lambda: 1 / 0)
    assert sql("SELECT pg_backend_pid()") == mine
    wait_for(lambda: backends() == before)


@pytest.mark.django_db(transaction=True)
def test_work_apart_outlives_an_error_that_is_no_exception():
    def stop():
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        apart("default", stop)
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("runlease")])


@pytest.mark.django_db
def test_in_a_test_case_work_apart_sees_what_the_test_sees():
    mine = sql("SELECT pg_backend_pid()")
    assert apart("default", lambda: sql("SELECT pg_backend_pid()")) == mine


@pytest.mark.django_db(transaction=True)
def test_an_own_connection_shares_no_settings_and_no_pool_with_the_jobs(monkeypatch):
    options = {**connection.settings_dict["OPTIONS"], "pool": {"max_size": 1}}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    own = own_connection("default")
    assert "pool" not in own.settings_dict["OPTIONS"]
    assert own.pool is None
    own.settings_dict["OPTIONS"]["more"] = 1
    assert "more" not in connection.settings_dict["OPTIONS"]


@pytest.mark.django_db(transaction=True)
def test_an_own_connection_commits_by_itself_whatever_the_settings_say(monkeypatch):
    """A job that manages its transactions alone claims after ``set_autocommit(True)``."""
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)

    def work():
        transaction.set_autocommit(True)
        claimed = granted()
        transaction.set_autocommit(False)
        assert store.release(claimed, DONE) is None

    elsewhere(work)
    assert RunLease.objects.get().token is None


# -- errors


@pytest.mark.django_db(transaction=True)
def test_errors_of_a_broken_connection_are_told_from_those_of_a_statement():
    assert not is_connection_error(error_of("SELECT 1 / 0"))
    assert not is_connection_error(error_of("SELECT * FROM nowhere"))
    assert not is_connection_error(ValueError())
    assert is_connection_error(error_of("CREATE TABLE t (x int)", "SET TRANSACTION READ ONLY")), (
        "a primary that came back as a standby"
    )
    assert is_connection_error(InterfaceError("the connection is closed"))
    assert is_connection_error(OperationalError("server closed the connection unexpectedly"))


@pytest.mark.parametrize(
    ("state", "lost"),
    [
        ("08006", True),
        ("57P01", True),
        ("57P02", True),
        ("57P03", True),
        ("57P05", True),
        ("25P03", True),
        ("25P04", True),
        ("25006", True),
        ("57014", False),
        ("40001", False),
        ("55P03", False),
        ("53200", False),
        ("23505", False),
    ],
)
def test_a_sqlstate_says_whether_the_connection_is_lost(state, lost):
    error = DatabaseError("no")
    error.__cause__ = psycopg.Error()
    error.__cause__.sqlstate = state
    assert is_connection_error(error) is lost


@pytest.mark.django_db(transaction=True)
def test_a_backend_that_the_server_ended_counts_as_a_lost_connection():
    def end_myself():
        with pytest.raises(OperationalError) as caught:
            sql("SELECT pg_terminate_backend(pg_backend_pid())")
        return caught.value

    assert is_connection_error(elsewhere(end_myself))


@pytest.mark.django_db(transaction=True)
def test_a_session_ended_for_idling_in_its_transaction_counts_as_a_lost_connection():
    def idle():
        with transaction.atomic():
            idle = "set_config('idle_in_transaction_session_timeout', '20', true)"
            # In one statement, after which the session may be gone.
            pid = sql(f"SELECT pg_backend_pid() FROM (SELECT {idle}) AS idle")
            wait_for(lambda: not elsewhere(lambda: backends(f"pid = {pid}")))
            with pytest.raises(DatabaseError) as caught:
                sql("SELECT 1")
            transaction.set_rollback(True)
        return caught.value

    assert is_connection_error(elsewhere(idle))


@pytest.mark.django_db(transaction=True)
def test_a_lock_timeout_is_contention():
    def wait_in_vain():
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 50; SELECT 1 FROM runlease_runlease")

    with (
        open_transaction("LOCK TABLE runlease_runlease"),
        pytest.raises(OperationalError) as caught,
        transaction.atomic(),
    ):
        wait_in_vain()
    assert is_contention(caught.value)
    assert not is_connection_error(caught.value)
    assert not is_contention(IntegrityError("no"))


@pytest.mark.django_db(transaction=True)
def test_an_error_is_explained_in_one_line_with_its_remedy():
    line = explain(error_of("SELECT * FROM nowhere"))
    assert "\n" not in line
    assert 'relation "nowhere" does not exist' in line
    assert "manage.py migrate" in line
    assert "see that the database runs" in explain(OperationalError("connection refused\nmore"))
    assert explain(IntegrityError("odd\nmore")) == "odd"


@pytest.mark.django_db(transaction=True)
def test_the_clock_of_the_database_is_in_epoch_seconds():
    now = sql("SELECT extract(epoch FROM clock_timestamp())")
    assert 0 <= store_connection.database_clock("default") - float(now) < DEADLINE
