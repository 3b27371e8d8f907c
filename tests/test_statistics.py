"""What the history of a period comes to: counts, figures, and how it is read."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_runlease import claim, lease
from django_runlease.models import Outcome, Run
from django_runlease.statistics import statistics, statistics_of_all
from django_runlease.testing import held_by_another, unfenced

from .factories import RunFactory, RunLeaseFactory
from .plans import emptied
from .support import ago

NOTHING = {"min": None, "median": None, "p95": None, "max": None}


def ran(length, *, age=3600, name="job", **fields):
    return RunFactory(lease_name=name, started_at=ago(age), finished_at=ago(age - length), **fields)


def of(name="job", **period):
    return statistics("default", name, **period)


def near(value):
    return pytest.approx(value, abs=0.5)


@pytest.mark.django_db
def test_a_lease_without_a_history_has_zeros_and_nothing():
    RunLeaseFactory(name="job", every=timedelta(hours=1))
    row = of()
    assert row.pop("since") < row.pop("until")
    assert row == {
        "lease_name": "job",
        "every": 3600,
        "runs": 0,
        "outcomes": {},
        "success_rate": None,
        "duration": NOTHING,
        "share": NOTHING,
        "waited": NOTHING,
        "lag": NOTHING,
        "held": 0,
        "declined": 0,
        "declines": {},
        "declined_in_a_row": 0,
        "last_outcome": None,
        "last_success": None,
    }


@pytest.mark.django_db
def test_every_outcome_is_counted_and_terminated_runs_are_in_no_rate():
    for outcome in Outcome.values:
        RunFactory(lease_name="job", outcome=outcome, reason="held")
    row = of()
    assert row["outcomes"] == dict.fromkeys((set(Outcome.values) - {"declined"}), 1)
    assert row["runs"] == len(Outcome.values) - 1
    assert row["success_rate"] == pytest.approx(1 / 6)
    assert (row["declined"], row["declines"]) == (1, {"held": 1})


@pytest.mark.django_db
def test_durations_are_least_median_95th_percentile_and_most_and_their_share_of_the_interval():
    RunLeaseFactory(name="job", every=timedelta(seconds=200))
    for length in range(1, 101):
        ran(length)
    row = of()
    expected = {"min": near(1), "median": near(50.5), "p95": near(95.05), "max": near(100)}
    assert row["duration"] == expected
    assert row["share"]["p95"] == pytest.approx(0.475, abs=0.01)
    assert row["held"] == near(5050)


@pytest.mark.django_db
def test_a_run_that_goes_on_counts_for_the_time_held_and_not_for_the_durations():
    ran(10)
    RunFactory(lease_name="job", running=True, started_at=ago(1000))
    row = of()
    assert row["outcomes"] == {"succeeded": 1, "running": 1}
    assert row["duration"] == dict.fromkeys(NOTHING, near(10))
    assert row["held"] == pytest.approx(1010, abs=60)


@pytest.mark.django_db
def test_a_first_run_that_goes_on_has_no_duration_yet():
    RunLeaseFactory(name="job", every=timedelta(hours=1))
    RunFactory(lease_name="job", running=True)
    row = of()
    assert (row["duration"], row["share"]) == (NOTHING, NOTHING)


@pytest.mark.django_db
def test_waits_and_lags_are_those_of_runs():
    for seconds in (0, 4, 8):
        ran(1, waited=timedelta(seconds=seconds), lag=timedelta(seconds=10 + seconds))
    RunFactory(lease_name="job", declined=True, waited=timedelta(hours=1), lag=timedelta(hours=1))
    ran(1, waited=None, lag=None)
    row = of()
    assert row["waited"] == {"min": 0, "median": 4, "p95": near(7.6), "max": 8}
    assert row["lag"] == {"min": 10, "median": 14, "p95": near(17.6), "max": 18}


@pytest.mark.django_db
def test_declines_in_a_row_are_those_that_no_run_has_followed():
    RunFactory(lease_name="job", declined=True, started_at=ago(90))
    ran(1, age=80)
    assert of()["declined_in_a_row"] == 0
    for age in (70, 60, 50):
        RunFactory(lease_name="job", declined=True, started_at=ago(age), reason="paused")
    row = of()
    assert (row["declined"], row["declined_in_a_row"]) == (4, 3)
    assert row["declines"] == {"held": 1, "paused": 3}


@pytest.mark.django_db
def test_only_what_started_in_the_period_counts_but_the_last_success_may_be_older():
    old = ran(7, age=8 * 86400)
    ran(1, age=6 * 86400, outcome=Outcome.FAILED)
    row = of()
    assert (row["runs"], row["success_rate"], row["last_outcome"]) == (1, 0.0, "failed")
    old.refresh_from_db()
    assert row["last_success"] == f"{old.started_at:%Y-%m-%dT%H:%M:%S.%f}Z"
    everything = of(since=datetime(2000, 1, 1, tzinfo=UTC))
    assert (everything["runs"], everything["success_rate"]) == (2, 0.5)
    assert everything["since"] == "2000-01-01T00:00:00.000000Z"
    before = of(since=datetime(2000, 1, 1, tzinfo=UTC), until=old.started_at)
    assert (before["runs"], before["last_success"]) == (0, None)


@pytest.mark.django_db
def test_a_period_may_be_told_by_how_long_ago_on_the_clock_of_the_database():
    for age in (100, 200, 300):
        ran(1, age=age * 3600)
    assert of(since=timedelta(hours=250))["runs"] == 2
    assert of(since=timedelta(hours=250), until=timedelta(hours=150))["runs"] == 1
    assert of(until=timedelta(hours=150))["runs"] == 2


@pytest.mark.django_db(transaction=True)
def test_real_runs_declines_and_bypasses():
    with held_by_another("job"):
        assert not claim("job")
    with pytest.raises(ZeroDivisionError), lease("job"):
        raise ZeroDivisionError
    with unfenced("job", "a correction"):
        pass
    row = of()
    assert row["outcomes"] == {"succeeded": 1, "failed": 1}
    assert (row["success_rate"], row["last_outcome"], row["declined"]) == (0.5, "failed", 1)
    assert Run.objects.filter(outcome=Outcome.SUCCEEDED).count() == 2


@pytest.mark.django_db
def test_of_all_leases_at_once_each_has_what_it_has_alone(django_assert_num_queries):
    for name in ("a", "b", "c"):
        RunLeaseFactory(name=name, every=timedelta(hours=1))
    ran(5, name="a")
    ran(50, name="b", outcome=Outcome.TIMED_OUT)
    with django_assert_num_queries(1):
        rows = statistics_of_all("default", until=datetime(2100, 1, 1, tzinfo=UTC))
    assert [row["lease_name"] for row in rows] == ["a", "b", "c"]
    for row in rows:
        until = datetime(2100, 1, 1, tzinfo=UTC)
        with django_assert_num_queries(1):
            assert of(row["lease_name"], until=until) == row


@pytest.mark.django_db
def test_it_is_ready_for_json():
    RunLeaseFactory(name="job")
    ran(5)
    assert json.loads(json.dumps(of()))["runs"] == 1


@pytest.mark.django_db
def test_the_history_of_a_removed_lease_can_still_be_summed_up():
    ran(5, name="gone")
    assert (of("gone")["runs"], of("gone")["every"]) == (1, None)


@pytest.mark.django_db
def test_a_clock_that_was_set_back_gives_no_negative_lengths():
    ran(-60)
    assert (of()["duration"]["min"], of()["held"]) == (0, 0)


@pytest.mark.parametrize(
    ("period", "message"),
    [
        ({"since": datetime(2026, 1, 1)}, "with its UTC offset"),  # noqa: DTZ001  what is refused
        ({"until": datetime(2026, 1, 1)}, "with its UTC offset"),  # noqa: DTZ001  what is refused
        (
            {
                "since": datetime(2026, 1, 2, tzinfo=UTC),
                "until": datetime(2026, 1, 1, tzinfo=UTC),
            },
            "since lies after until",
        ),
    ],
)
def test_a_period_that_cannot_be_meant_is_refused(period, message):
    with pytest.raises(ValueError, match=message):
        of(**period)


def nodes(plan):
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["job-7", None])
def test_it_is_read_by_indexes_whatever_the_history_holds(name):
    emptied("runlease_run", "runlease_runlease")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                                      started_at, finished_at, outcome, reason, error, output)
            SELECT 'job-' || n %% 20, NULL, n, 'h', 'h', 'api',
                   now() - make_interval(mins => 10 * (40000 - n)),
                   now() - make_interval(mins => 10 * (40000 - n), secs => -5),
                   (ARRAY['succeeded', 'failed', 'declined', 'lost'])[1 + n / 20 %% 4],
                   'held', '', ''
              FROM generate_series(1, 40000) AS n;
            INSERT INTO runlease_runlease (name, generation, holder, host, claimed_at, paused,
                                           paused_by, paused_reason)
            SELECT 'job-' || n, 1, '', '', now(), false, '', '' FROM generate_series(0, 19) AS n;
            """,
            [],
        )
        cursor.execute("ANALYZE runlease_run; ANALYZE runlease_runlease")
        with CaptureQueriesContext(connection) as captured:
            rows = [of(name)] if name else statistics_of_all("default")
        (query,) = captured
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"])
        ((plan,),) = cursor.fetchall()
    # 7 days of one tick in 10 minutes, by 20 jobs.
    assert {row["runs"] + row["declined"] for row in rows} <= {50, 51}
    plan = json.loads(plan) if isinstance(plan, str) else plan
    reads = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "runlease_run"]
    # The last success, and one pass over the period.
    assert len(reads) == 2
    for node in reads:
        assert "Index" in node["Node Type"] or "Bitmap" in node["Node Type"], node
        assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) < 100, node
