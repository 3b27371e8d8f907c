"""What is read of leases and runs, and how it is written in JSON."""

import json
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_runlease import history
from django_runlease.clock import Instant
from django_runlease.models import Run, RunLease

from .factories import RunFactory, RunLeaseFactory
from .plans import emptied
from .support import ROOT, ago, manage

MOMENT = 1_796_051_699.108044
TEXT = "2026-11-30T15:14:59.108044Z"


@pytest.mark.django_db
def test_a_lease_has_the_fields_of_its_model_without_the_token_and_then_what_is_derived():
    lease = RunLeaseFactory(held=True)
    fields = [field.name for field in RunLease._meta.concrete_fields]
    shown = [name for name in fields if name not in ("id", "token")]
    [row] = history.leases("default")
    assert list(row) == [*shown, "state", "held_for", "renewed_ago", "expires_in", "due_in"]
    assert str(lease.token) not in history.to_json(row)


@pytest.mark.django_db
def test_a_run_has_the_fields_of_its_model_without_the_token_and_then_its_duration():
    run = RunFactory()
    fields = [field.name for field in Run._meta.concrete_fields]
    shown = [name for name in fields if name not in ("id", "token")]
    [row] = history.runs("default")
    assert list(row) == [*shown, "duration"]
    assert str(run.token) not in history.to_json(row)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("values", "state", "held_for", "expires_in"),
    [
        ({}, "free", None, None),
        ({"held": True, "claimed_at": ago(130), "expires_at": ago(-170)}, "held", 130, 170),
        ({"held": True, "claimed_at": ago(130), "expires_at": ago(10)}, "expired", 130, -10),
        ({"paused": True}, "paused", None, None),
        ({"held": True, "paused": True, "claimed_at": ago(130)}, "paused", 130, 300),
    ],
)
def test_state_and_ages_follow_the_clock_of_the_database(values, state, held_for, expires_in):
    RunLeaseFactory(**values)
    [row] = history.leases("default")
    assert row["state"] == state
    assert row["held_for"] == (held_for and pytest.approx(held_for, abs=9))
    assert row["expires_in"] == (expires_in and pytest.approx(expires_in, abs=9))


@pytest.mark.django_db
def test_a_clock_that_was_set_back_gives_no_negative_age_or_duration():
    RunLeaseFactory(name="job", held=True, claimed_at=ago(-60))
    RunFactory(running=True, started_at=ago(-60))
    assert history.lease("job", "default")["held_for"] == 0
    assert history.runs("default")[0]["duration"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize(("not_before", "due_in"), [(None, None), (ago(1), None), (ago(-90), 90)])
def test_due_in_is_the_time_to_not_before_while_that_lies_ahead(not_before, due_in):
    RunLeaseFactory(name="job", not_before=not_before)
    row = history.lease("job", "default")
    assert row["due_in"] == (due_in and pytest.approx(due_in, abs=9))


@pytest.mark.django_db
def test_lengths_are_seconds_and_instants_are_iso_8601_in_utc():
    RunLeaseFactory(
        name="job",
        ttl=timedelta(days=2, seconds=1.5),
        every=timedelta(hours=1),
        last_tick=Instant(MOMENT),
        not_before=Instant(MOMENT),
    )
    RunFactory(
        lease_name="job",
        tick=Instant(MOMENT - 0.25),
        started_at=Instant(MOMENT),
        finished_at=Instant(MOMENT + 90.5),
        waited=timedelta(milliseconds=20),
        lag=timedelta(milliseconds=250),
    )
    lease = history.lease("job", "default")
    assert (lease["ttl"], lease["every"]) == (172_801.5, 3600)
    assert (lease["last_tick"], lease["not_before"], lease["claimed_at"]) == (TEXT, TEXT, None)
    [run] = history.runs("default", "job")
    assert (run["waited"], run["lag"], run["duration"]) == (0.02, 0.25, 90.5)
    assert run["started_at"] == TEXT
    assert run["tick"] == "2026-11-30T15:14:58.858044Z"


def test_neither_use_tz_nor_the_night_of_a_changing_clock_shifts_an_instant(
    transactional_db: None, tmp_path: Path
):
    """00:30 and 01:30 UTC are both 02:30 in Berlin on that night."""
    first = 1_792_888_200
    RunLeaseFactory(name="job", last_tick=Instant(first), not_before=Instant(first + 3600))
    RunFactory(
        lease_name="job", started_at=Instant(first), finished_at=Instant(first + 3600), tick=None
    )
    Path(tmp_path, "berlin.py").write_text(
        "from example_project.settings import *\nUSE_TZ = False\nTIME_ZONE = 'Europe/Berlin'\n"
    )
    done = manage(
        *("runlease", "show", "job", "--json"),
        env={"DJANGO_SETTINGS_MODULE": "berlin", "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    lease = json.loads(done.stdout)
    assert lease["last_tick"] == "2026-10-25T00:30:00.000000Z"
    assert lease["not_before"] == "2026-10-25T01:30:00.000000Z"
    [run] = lease["runs"]
    assert run["started_at"] == "2026-10-25T00:30:00.000000Z"
    assert run["finished_at"] == "2026-10-25T01:30:00.000000Z"
    assert run["duration"] == 3600


@pytest.mark.django_db
def test_the_duration_of_a_running_run_is_up_to_now():
    RunFactory(running=True, started_at=ago(45))
    assert history.runs("default")[0]["duration"] == pytest.approx(45, abs=9)


@pytest.mark.django_db
def test_leases_come_by_name_and_runs_newest_first():
    for name in ("b", "a", "c"):
        RunLeaseFactory(name=name)
    for seconds in (30, 10, 20):
        RunFactory(lease_name="a", started_at=ago(seconds), generation=seconds)
    assert [lease["name"] for lease in history.leases("default")] == ["a", "b", "c"]
    for name in ("a", None):
        runs = history.runs("default", name)
        assert [run["generation"] for run in runs] == [10, 20, 30]


@pytest.mark.django_db
def test_of_runs_that_started_together_the_later_inserted_comes_first():
    for generation in (1, 2, 3):
        RunFactory(lease_name="a", started_at=Instant(MOMENT), generation=generation)
    for name in ("a", None):
        runs = history.runs("default", name)
        assert [run["generation"] for run in runs] == [3, 2, 1]


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["a", None])
def test_the_limit_keeps_the_newest_runs_whatever_the_order_of_their_insertion(name):
    for seconds in (10, 20, 30, 40):
        RunFactory(lease_name="a", started_at=ago(seconds), generation=seconds)
    runs = history.runs("default", name, limit=2)
    assert [run["generation"] for run in runs] == [10, 20]


@pytest.mark.django_db
def test_twenty_runs_are_read_where_nothing_else_is_asked_for():
    RunFactory.create_batch(22, lease_name="a")
    assert len(history.runs("default")) == len(history.runs("default", "a")) == 20


@pytest.mark.django_db
def test_runs_of_a_name_are_its_own():
    RunFactory(lease_name="a")
    RunFactory(lease_name="b")
    assert [run["lease_name"] for run in history.runs("default", "b")] == ["b"]


@pytest.mark.django_db
@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "5", None])
def test_a_limit_that_is_no_positive_whole_number_is_refused(limit):
    with pytest.raises(ValueError, match="positive whole number"):
        history.runs("default", limit=limit)


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["a", None])
def test_a_limit_beyond_any_number_of_rows_means_all(name):
    RunFactory.create_batch(3, lease_name="a")
    assert len(history.runs("default", name, limit=10**30)) == 3


@pytest.mark.django_db
def test_the_number_of_queries_does_not_depend_on_the_number_of_rows(django_assert_num_queries):
    for rows in (1, 30):
        RunLeaseFactory.create_batch(rows)
        RunFactory.create_batch(rows, lease_name="a")
        with django_assert_num_queries(1):
            history.leases("default")
        with django_assert_num_queries(1):
            history.runs("default", "a", limit=50)
        with django_assert_num_queries(2):
            history.runs("default", limit=50)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "index"), [("job-7", "runlease_run_history"), (None, "runlease_run_pkey")]
)
def test_the_history_is_read_by_an_index(name, index):
    emptied("runlease_run")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                                      started_at, outcome, reason, error, output)
            SELECT 'job-' || n %% 20, %s::uuid, n, 'h', 'h', 'api',
                   now() - make_interval(secs => 40000 - n), 'succeeded', '', '', ''
              FROM generate_series(1, 40000) AS n
            """,
            [uuid.uuid4()],
        )
        cursor.execute("ANALYZE runlease_run")
        with CaptureQueriesContext(connection) as captured:
            rows = history.runs("default", name, limit=20)
        plan = ""
        for query in captured:
            cursor.execute("EXPLAIN " + query["sql"])
            plan += "\n".join(line for (line,) in cursor.fetchall())
    assert len(rows) == 20
    assert index in plan
    assert "Seq Scan" not in plan


@pytest.mark.django_db
def test_one_run_is_found_by_its_key_and_none_is_none():
    run = RunFactory(generation=7)
    assert history.run(run.pk, "default")["generation"] == 7
    assert history.run(run.pk + 1, "default") is None
    assert history.run(None, "default") is None


@pytest.mark.django_db
def test_a_lease_without_a_row_is_none():
    assert history.lease("nobody", "default") is None


@pytest.mark.django_db
def test_json_is_ascii_without_control_characters_and_loses_nothing():
    reason = "\x1b[31m\x07\x7f\x9b é 日本 🎉 \u202e\n"
    RunLeaseFactory(name="job", paused=True, paused_reason=reason, progress={"message": reason})
    text = history.to_json(history.lease("job", "default"))
    assert text.isascii()
    assert text.replace("\n", "").isprintable()
    read = json.loads(text)
    assert read["paused_reason"] == reason
    assert read["progress"] == {"message": reason}
