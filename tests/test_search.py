"""Which runs a filter means, and that what is rare among many is found by an index."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from django_runlease import history
from django_runlease.models import Outcome
from django_runlease.search import Filters, moment

from .factories import RunFactory, RunLeaseFactory
from .plans import long_history, work
from .support import ago

__all__ = ["long_history"]

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def found(name: str | None = None, limit: int = 20, **filters: Any) -> list[int]:
    """The generations of the runs that match."""
    rows = history.runs("default", name, limit=limit, filters=Filters(**filters))
    return [row["generation"] for row in rows]


# -- moments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", 2 * HOUR),
        ("1d12h", 36 * HOUR),
        ("PT5M", timedelta(minutes=5)),
        ("90", timedelta(seconds=90)),
        (HOUR, HOUR),
        ("2026-11-30T12:00:00+00:00", NOON),
        (" 2026-11-30T12:00:00Z ", NOON),
        ("2026-11-30 14:00+02:00", NOON),
        (NOON, NOON),
    ],
)
def test_a_moment_is_an_instant_or_how_long_ago(text, expected):
    assert moment(text) == expected


@pytest.mark.parametrize(
    "text", ["", "soon", "-2h", "0s", "2026-11-30T25:00:00Z", "4000d", None, True, [], "nan"]
)
def test_what_is_no_moment_is_refused_with_the_accepted_forms(text):
    with pytest.raises(ValueError, match=r'2030-01-31T06:00:00\+00:00.+"2h"'):
        moment(text)


@pytest.mark.parametrize("bound", ["since", "until"])
@pytest.mark.parametrize("text", ["2026-11-30T12:00:00", "2026-11-30"])
def test_an_instant_without_an_offset_is_refused(bound, text):
    with pytest.raises(ValueError, match="with its UTC offset"):
        Filters(**{bound: moment(text)})


@pytest.mark.parametrize(
    ("since", "until"), [(NOON, NOON - HOUR), (HOUR, 2 * HOUR), (timedelta(1), timedelta(2))]
)
def test_a_beginning_after_the_end_is_refused(since, until):
    with pytest.raises(ValueError, match="since lies after until"):
        Filters(since=since, until=until)
    assert Filters(since=until, until=since).since == until


def test_an_outcome_that_there_is_none_of_is_refused_and_the_nearest_is_named():
    with pytest.raises(ValueError, match='did you mean "timed_out"'):
        Filters(outcomes=("failed", "timedout"))


# -- what matches


@pytest.fixture
def runs(db: None) -> None:
    """Runs of two leases, as many hours old as their generation says."""
    for hours, (name, outcome) in enumerate(
        [("a", "failed"), ("b", "succeeded"), ("a", "lost"), ("b", "failed"), ("a", "succeeded")]
    ):
        RunFactory(
            lease_name=name, outcome=outcome, generation=hours, started_at=ago(hours * 3600 + 60)
        )


@pytest.mark.parametrize(
    ("name", "filters", "generations"),
    [
        (None, {}, [0, 1, 2, 3, 4]),
        ("a", {}, [0, 2, 4]),
        (None, {"outcomes": ("failed",)}, [0, 3]),
        (None, {"outcomes": ("lost", "failed")}, [0, 2, 3]),
        ("a", {"outcomes": ("lost", "failed")}, [0, 2]),
        (None, {"outcomes": ("running",)}, []),
        (None, {"since": 3 * HOUR}, [0, 1, 2]),
        (None, {"until": 3 * HOUR}, [3, 4]),
        ("a", {"since": 4 * HOUR, "until": HOUR}, [2]),
        (None, {"since": NOON.replace(year=2000)}, [0, 1, 2, 3, 4]),
        (None, {"since": NOON.replace(year=2100)}, []),
        (None, {"until": NOON.replace(year=2000)}, []),
        ("a", {"outcomes": ("succeeded",), "since": 3 * HOUR}, []),
        ("nobody", {"outcomes": ("succeeded",)}, []),
    ],
)
def test_runs_are_found_by_outcome_and_period_the_newest_first(runs, name, filters, generations):
    assert found(name, **filters) == generations


@pytest.mark.django_db
def test_the_ends_of_a_period_belong_to_it():
    RunFactory(started_at=NOON, generation=1)
    assert found(since=NOON, until=NOON) == [1]
    assert found(since=NOON + timedelta(microseconds=1)) == []
    assert found(until=NOON - timedelta(microseconds=1)) == []


@pytest.mark.parametrize("filters", [{}, {"outcomes": tuple(Outcome.values)}, {"since": 9 * HOUR}])
@pytest.mark.parametrize("name", ["a", None])
def test_the_limit_keeps_the_newest_of_all_that_match(runs, name, filters):
    assert found(name, limit=2, **filters) == ([0, 2] if name else [0, 1])


@pytest.mark.django_db
def test_of_runs_that_started_together_the_later_inserted_comes_first():
    for generation in range(5):
        RunFactory(lease_name="a", started_at=NOON, generation=generation)
    assert found(limit=3, outcomes=("succeeded",)) == found("a", limit=3) == [4, 3, 2]


@pytest.mark.django_db
def test_runs_of_a_lease_that_was_removed_are_found():
    RunLeaseFactory(name="still there")
    RunFactory(lease_name="gone", outcome="failed", generation=7)
    assert found(outcomes=("failed",)) == [7]


@pytest.mark.django_db
def test_a_host_is_that_of_the_tick_or_of_the_holder_and_no_other_that_begins_like_it():
    RunFactory(host="web1", holder="web1:47", generation=1)
    RunFactory(host="web2", holder="web1:47", declined=True, generation=2)
    RunFactory(host="web2", holder="web2:47", generation=3)
    RunFactory(host="web10", holder="web10:47", generation=4)
    RunFactory(host="w%", holder="w_:47", generation=5)
    assert sorted(found(host="web1")) == [1, 2]
    assert sorted(found(host="web2")) == [2, 3]
    assert found(host="w%") == [5]
    assert found(host="w_") == [5]
    assert found(host="we") == []
    assert found(host="web1", outcomes=("declined",)) == [2]


@pytest.mark.django_db
def test_a_host_is_looked_for_in_the_whole_history_or_in_a_period_the_newest_first():
    for generation, seconds in enumerate([10**7, 60, 7200]):
        RunFactory(lease_name="a", host="web1", started_at=ago(seconds), generation=generation)
    for name in ("a", None):
        assert found(name, host="web1") == [1, 2, 0]
        assert found(name, limit=2, host="web1") == [1, 2]
        assert found(name, host="web1", since=3 * HOUR) == [1, 2]
        assert found(name, host="web1", until=HOUR) == [2, 0]
        assert found(name, host="web1", until=datetime.now(UTC) - HOUR) == [2, 0]


@pytest.mark.django_db
def test_bypasses_are_left_out_where_runs_of_the_job_are_meant():
    RunFactory(trigger="bypass", generation=1)
    RunFactory(generation=2)
    assert sorted(found()) == [1, 2]
    assert found(bypasses=False) == [2]


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["'", "%s", "%", "\\", "日本"])
def test_names_and_hosts_are_data(text):
    RunFactory(lease_name=text, host=text, generation=3)
    assert found(text, host=text, outcomes=("succeeded",)) == [3]


# -- how it is found


@pytest.mark.parametrize(
    ("name", "filters", "index", "times"),
    [
        (None, {"outcomes": ("failed",)}, "runlease_run_unsuccessful", 1),
        ("job-7", {"outcomes": ("failed",)}, "runlease_run_others", 1),
        (None, {"outcomes": ("declined",)}, "runlease_run_others", 20),
        ("job-7", {"outcomes": ("declined",)}, "runlease_run_others", 0),
        (None, {"outcomes": ("lost", "abandoned")}, "runlease_run_unsuccessful", 0),
        (None, {"outcomes": ("lost", "declined")}, "runlease_run_others", 20),
        (None, {"outcomes": ("succeeded",)}, "runlease_run_succeeded", 20),
        (None, {"outcomes": ("running",)}, "runlease_run_open", 0),
        (None, {"since": HOUR, "until": HOUR / 2}, "runlease_run_history", 20),
        ("job-3", {"until": 20 * HOUR}, "runlease_run_history", 20),
    ],
)
def test_what_a_filter_means_is_read_by_an_index_and_nothing_else_is(
    long_history, name, filters, index, times
):
    rows = []
    plan, in_vain = work(
        lambda: rows.extend(history.runs("default", name, filters=Filters(**filters)))
    )
    assert len(rows) == times
    assert index in plan
    assert "Seq Scan" not in plan
    # The last name has no next one.
    assert in_vain <= 1
