import json
import uuid
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction

from django_runlease import store
from django_runlease.clock import Now, Seconds
from django_runlease.models import Outcome, Run, RunLease, State

from .factories import RunFactory, RunLeaseFactory
from .plans import emptied
from .support import elsewhere, granted, open_transaction, wait_for

FIVE_MINUTES = timedelta(minutes=5)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("token", "expires"), [(uuid.uuid4(), None), (None, datetime(2030, 1, 1, tzinfo=UTC))]
)
def test_a_lease_has_a_token_if_and_only_if_it_expires(token, expires):
    with pytest.raises(IntegrityError, match="runlease_free_has_no_expiry"):
        RunLeaseFactory(token=token, expires_at=expires)


@pytest.mark.django_db
def test_two_leases_may_be_free_but_never_share_a_token_or_a_name():
    token = uuid.uuid4()
    RunLeaseFactory(name="one")
    RunLeaseFactory(name="two")
    RunLeaseFactory(name="three", held=True, token=token)
    with pytest.raises(IntegrityError, match="token"), transaction.atomic():
        RunLeaseFactory(held=True, token=token)
    with pytest.raises(IntegrityError, match="name"), transaction.atomic():
        RunLeaseFactory(name="one")


@pytest.mark.django_db
def test_a_generation_is_never_negative():
    with pytest.raises(IntegrityError, match="generation"):
        RunLeaseFactory(generation=-1)


@pytest.mark.django_db
def test_a_generation_may_be_large():
    RunLeaseFactory(name="job", generation=2**62)
    assert granted().generation == 2**62 + 1
    assert Run.objects.get().generation == 2**62 + 1


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, State.FREE),
        ({"held": True}, State.HELD),
        ({"expired": True}, State.EXPIRED),
        ({"paused": True}, State.PAUSED),
        ({"paused": True, "held": True}, State.PAUSED),
        ({"not_before": datetime(2200, 1, 1, tzinfo=UTC)}, State.FREE),
    ],
)
def test_a_state_is_what_a_reader_sees_on_the_databases_clock(fields, state):
    RunLeaseFactory(**fields)
    assert RunLease.objects.with_state().get().state == state


@pytest.mark.django_db
def test_a_lease_turns_from_held_to_expired_by_itself():
    granted(ttl=60)
    states = RunLease.objects.with_state().filter(name="job").values_list("state", flat=True)
    assert states.get() == State.HELD
    RunLease.objects.update(expires_at=Now() + Seconds(timedelta(seconds=0.5)))
    wait_for(lambda: states.all().get() == State.EXPIRED)


@pytest.mark.django_db
def test_rows_are_shown_by_their_names():
    run = RunFactory(lease_name="bill", started_at=Now())
    run.refresh_from_db()
    assert str(run).startswith("bill 20")
    assert str(RunLeaseFactory(name="bill")) == "bill"


@pytest.mark.django_db(transaction=True)
def test_a_run_takes_no_lock_on_its_lease_so_a_claim_passes_an_open_insert():
    RunLeaseFactory(name="job")
    insert = (
        "INSERT INTO runlease_run (lease_name, holder, host, trigger, started_at, outcome,"
        " reason, error, output) VALUES ('job', '', '', '', now(), 'declined', '', '', '')"
    )
    with open_transaction(insert):
        assert granted().generation == 2


def plan_nodes(plan):
    yield plan
    for child in plan.get("Plans", []):
        yield from plan_nodes(child)


def indexes_used(queryset):
    (explained,) = json.loads(queryset.explain(format="json"))
    return [node.get("Index Name") for node in plan_nodes(explained["Plan"])]


@pytest.fixture
def long_history(db):
    """Many runs of many names, few of them open."""
    emptied("runlease_run")
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,"
            "  started_at, finished_at, outcome, reason, error, output)"
            " SELECT 'job-' || n % 100, gen_random_uuid(), n, '', '', '',"
            "  now() - n * interval '1 minute', now(),"
            "  CASE WHEN n % 1000 = 0 THEN 'running' ELSE 'succeeded' END, '', '', ''"
            " FROM generate_series(1, 20000) n;"
            "ANALYZE runlease_run"
        )


def test_open_runs_are_found_by_their_own_small_index(long_history):
    assert indexes_used(Run.objects.running().filter(lease_name="job-7")) == ["runlease_run_open"]
    both = Run.objects.running().filter(lease_name="job-7", token=uuid.uuid4())
    assert indexes_used(both) == ["runlease_run_open"]


def test_the_queries_of_a_claim_find_open_runs_by_the_index(long_history):
    """What a claim sends to find and close them, with its parameters, not what resembles it."""
    seen = []

    def explain(execute, sql, params, many, context):
        if "runlease_run" in sql and sql.startswith(("SELECT", "UPDATE")) and "running" in params:
            with connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                seen.append((sql.split()[0], cursor.fetchone()[0]))
        return execute(sql, params, many, context)

    RunFactory(lease_name="job-7", outcome=Outcome.RUNNING, finished_at=None)
    with connection.execute_wrapper(explain):
        granted("job-7")
    assert [verb for verb, explained in seen] == ["SELECT", "UPDATE"]
    for verb, explained in seen:
        names = [node.get("Index Name") for node in plan_nodes(explained[0]["Plan"])]
        by_key = {"runlease_run_pkey"} if verb == "UPDATE" else set()
        assert {"runlease_run_open", *by_key} & {*names}, verb


def test_the_history_of_one_name_is_read_by_its_index(long_history):
    newest = Run.objects.filter(lease_name="job-7").order_by("-started_at", "-id")[:10]
    assert "runlease_run_history" in indexes_used(newest)


@pytest.mark.django_db(transaction=True)
def test_renewals_are_hot_updates_because_no_index_holds_what_they_change():
    # Without what rolled-back tests left there, the row has room on its page.
    emptied("runlease_runlease")
    claimed = granted()

    def renew_and_count():
        """In one backend, which hands its statistics over when it ends."""
        for n in range(20):
            RunLease.objects.filter(token=claimed.token).update(
                expires_at=Now() + Seconds(FIVE_MINUTES), renewed_at=Now(), progress={"done": n}
            )

    def updates():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables"
                " WHERE relname = 'runlease_runlease'"
            )
            return cursor.fetchone()

    wait_for(lambda: updates()[0] >= 1)
    before = updates()
    elsewhere(renew_and_count)
    for _ in range(5):
        assert store.renew(claimed, FIVE_MINUTES, {"done": 1}) is None
    wait_for(lambda: updates()[0] - before[0] >= 25)
    all_updates, hot = (now - then for now, then in zip(updates(), before, strict=True))
    assert hot >= all_updates - 1


@pytest.mark.django_db
@pytest.mark.parametrize("field", ["expires_at", "renewed_at", "progress"])
def test_no_index_holds_what_a_renewal_changes(field):
    with connection.cursor() as cursor:
        constraints = connection.introspection.get_constraints(cursor, "runlease_runlease")
    assert not [name for name, c in constraints.items() if c["index"] and field in c["columns"]]


@pytest.mark.django_db
@pytest.mark.parametrize("auto_field", ["BigAutoField", "AutoField"])
def test_the_migrations_equal_the_models_whatever_the_projects_auto_field(settings, auto_field):
    settings.DEFAULT_AUTO_FIELD = f"django.db.models.{auto_field}"
    out = StringIO()
    call_command("makemigrations", "runlease", check=True, dry_run=True, stdout=out)
    assert "No changes detected" in out.getvalue()


def test_no_outcome_but_one_says_success():
    assert set(Outcome.values) == {
        "running", "succeeded", "failed", "declined", "lost", "timed_out", "stalled",
        "terminated", "abandoned",
    }  # fmt: skip
