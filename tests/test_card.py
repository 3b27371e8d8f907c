"""All that is known of one lease and its holder."""

import os
import re
import subprocess
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_runlease import card, history, store
from django_runlease.holder import Holder, start_ticks, this_process
from django_runlease.models import Alert, AlertKind, Effect, Outcome

from .factories import RunFactory, RunLeaseFactory
from .plans import long_history, work
from .support import ago, wish

__all__ = ["long_history"]


def read(name: str = "job") -> dict[str, Any]:
    return card.card(history.lease(name, "default"), "default")


# -- runs and declines


@pytest.mark.django_db
def test_a_burst_of_declines_does_not_hide_the_last_runs():
    RunLeaseFactory(name="job", claimed_at=ago(1000))
    for outcome in (Outcome.FAILED, Outcome.SUCCEEDED, Outcome.RUNNING):
        RunFactory(lease_name="job", outcome=outcome, started_at=ago(1000), finished_at=None)
    RunFactory.create_batch(30, lease_name="job", declined=True, started_at=ago(500))
    found = read()
    assert {run["outcome"] for run in found["runs"]} == {"failed", "succeeded", "running"}
    assert [run["outcome"] for run in found["declines"]] == ["declined"] * card.DECLINES_SHOWN
    assert found["declines_since_start"] == 30


@pytest.mark.django_db
def test_declines_are_counted_since_the_last_start_or_if_there_was_none_ever():
    RunLeaseFactory(name="started", claimed_at=ago(100))
    RunLeaseFactory(name="never")
    for name in ("started", "never", "another"):
        for seconds in (300, 200, 50):
            RunFactory(lease_name=name, declined=True, started_at=ago(seconds))
    assert read("started")["declines_since_start"] == 1
    assert read("never")["declines_since_start"] == 3


@pytest.mark.django_db
def test_a_bypass_is_no_run_of_the_job():
    RunLeaseFactory(name="job")
    RunFactory(lease_name="job", trigger="bypass")
    assert read()["runs"] == []
    assert len(history.runs("default", "job")) == 1


@pytest.mark.django_db
def test_ten_runs_and_five_declines_are_shown_the_newest_first():
    RunLeaseFactory(name="job")
    for seconds in range(15):
        RunFactory(lease_name="job", generation=seconds, started_at=ago(seconds))
        RunFactory(lease_name="job", declined=True, reason=str(seconds), started_at=ago(seconds))
    found = read()
    assert [run["generation"] for run in found["runs"]] == list(range(10))
    assert [run["reason"] for run in found["declines"]] == list("01234")


def test_the_card_is_read_by_indexes_whatever_the_history_of_its_lease(long_history):
    """More than 2,000 declines lie between the last runs and now."""
    RunLeaseFactory(name="job-3", claimed_at=ago(4_100))
    lease = history.lease("job-3", "default")
    cards = []
    plan, in_vain = work(lambda: cards.append(card.card(lease, "default")))
    assert (len(cards[0]["runs"]), len(cards[0]["declines"])) == (10, 5)
    assert cards[0]["declines_since_start"] == 2000
    assert not re.search(r"Seq Scan on runlease_run\b", plan)
    assert in_vain <= 1, "that nobody holds the lease"


@pytest.mark.django_db
def test_the_figures_are_those_of_the_last_seven_days():
    RunLeaseFactory(name="job")
    RunFactory(lease_name="job", started_at=ago(8 * 86400))
    RunFactory(lease_name="job", outcome=Outcome.FAILED, started_at=ago(6 * 86400))
    assert read()["statistics"]["outcomes"] == {"failed": 1}


# -- alerts and effects


def alert(**values: Any) -> Alert:
    known = {"lease_name": "job", "kind": AlertKind.OVERDUE, "severity": "critical"}
    return Alert.objects.create(**known | {"opened_at": ago(60)} | values)


@pytest.mark.django_db
def test_the_open_alerts_of_the_lease_are_told_the_oldest_first_and_whether_they_are_silenced():
    RunLeaseFactory(name="job")
    alert(kind=AlertKind.LOST, silenced_until=ago(1))
    alert(kind=AlertKind.FAILING, opened_at=ago(90), silenced_until=ago(-60))
    alert(resolved_at=ago(1))
    alert(lease_name="another")
    assert [(each["kind"], each["silenced"]) for each in read()["alerts"]] == [
        ("failing", True),
        ("lost", False),
    ]


@pytest.mark.django_db
def test_uncertain_effects_of_the_lease_are_counted():
    RunLeaseFactory(name="job")
    for number, (name, state) in enumerate(
        [("job", "started"), ("job", "started"), ("job", "confirmed"), ("another", "started")]
    ):
        Effect.objects.create(
            lease_name=name,
            kind="charge",
            key=f"[{number}]",
            idempotency_key=uuid.uuid4(),
            state=state,
            generation=1,
            started_at=ago(60),
        )
    assert read()["uncertain_effects"] == 2


# -- the process


def lease_of(process, **changed):
    known = {"host": this_process().host, "holder_process": process, "held_for": 100.0}
    return known | changed


def test_the_age_of_a_process_on_this_kernel_is_seen():
    before = time.monotonic()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        start = start_ticks(Path(f"/proc/{process.pid}/stat").read_text())
        known = this_process().process | {"pid": process.pid, "start": start, "age": 5e6}
        age = card.process_age(lease_of(known))
    assert card.process_age(lease_of(known)) is None, "it has ended"
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert 0 <= age <= time.monotonic() - before + tick


def test_the_age_of_a_process_elsewhere_is_what_it_was_at_the_claim_and_the_time_since():
    elsewhere = this_process().process | {"boot_id": "of another kernel", "age": 20.5}
    assert card.process_age(lease_of(elsewhere)) == 120.5
    assert card.process_age(lease_of(elsewhere, held_for=None)) is None


@pytest.mark.django_db
def test_a_claim_writes_down_how_old_its_process_is(monkeypatch):
    assert isinstance(store.claim(wish("billing"), "default"), store.Claimed)
    seen = read("billing")["process_age"]
    monkeypatch.setattr(
        "django_runlease.card.this_process",
        lambda: Holder(name="web2:1", host="web2", process={"boot_id": "another"}),
    )
    told = read("billing")["process_age"]
    assert seen > 0
    assert told == pytest.approx(seen, abs=60)


@pytest.mark.parametrize(
    "changed",
    [
        {"boot_id": "of another kernel"},
        {"boot_id": None},
        {"start": None},
        {"start": "odd"},
        {"start": 10**12},
        {"boot_id": "of another kernel", "age": "odd"},
        {"boot_id": "of another kernel", "age": True},
    ],
)
def test_the_age_of_a_process_is_never_guessed(changed):
    assert card.process_age(lease_of(this_process().process | changed)) is None


@pytest.mark.parametrize("process", [None, "odd", [], {}])
def test_what_is_no_process_has_no_age(process):
    assert card.process_age(lease_of(process)) is None


@pytest.mark.django_db
def test_a_process_that_is_gone_is_seen_on_its_own_host_only():
    me = this_process()
    with subprocess.Popen(["true"]) as process:
        pass
    gone = me.process | {"pid": process.pid, "start": 1}
    RunLeaseFactory(name="here", held=True, host=me.host, holder_process=gone)
    RunLeaseFactory(name="alive", held=True, host=me.host, holder_process=me.process)
    RunLeaseFactory(name="there", held=True, holder_process=gone)
    RunLeaseFactory(name="free")
    assert [read(name)["process_gone"] for name in ("here", "alive", "there", "free")] == [
        *(True, False, False, False)
    ]


# -- progress


@pytest.mark.parametrize(
    ("done", "total", "share"),
    [
        (3, 10, 0.3),
        (0, 10, 0.0),
        (10, 10, 1.0),
        (0.5, 2.0, 0.25),
        (10**400, 10**401, 0.1),
        (11, 10, None),
        (-1, 10, None),
        (-2, -1, None),
        (0, 0, None),
        (0, -1, None),
        (3, None, None),
        (None, 10, None),
        ("3", 10, None),
        (True, 10, None),
        (1.5, 10**400, None),
    ],
)
def test_the_share_of_what_is_done_is_told_where_it_makes_sense(done, total, share):
    assert card.progress_share({"done": done, "total": total}) == (share and pytest.approx(share))


@pytest.mark.parametrize("progress", [None, "odd", [3, 10], {}, 3])
def test_what_is_no_progress_has_no_share(progress):
    assert card.progress_share(progress) is None


NUMBERS = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.none())


@settings(deadline=None)
@given(done=NUMBERS, total=NUMBERS)
def test_a_share_lies_between_0_and_1_whatever_was_told(done, total):
    share = card.progress_share({"done": done, "total": total})
    assert share is None or 0 <= share <= 1


def held(done: float, total: float | None, **values: Any) -> None:
    """A lease that was claimed 1100 seconds ago and told its progress 100 seconds ago."""
    RunLeaseFactory(
        name="job",
        held=True,
        progress={"done": done, "total": total, "message": ""},
        **{"claimed_at": ago(1100), "renewed_at": ago(100)} | values,
    )


@pytest.mark.django_db
@pytest.mark.parametrize(("done", "left"), [(25, 2900), (50, 900), (80, 150)])
def test_what_is_left_is_told_from_the_time_up_to_the_renewal_that_brought_the_progress(done, left):
    held(done, 100)
    assert read()["estimated_left"] == pytest.approx(left, abs=60)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("done", "total", "values"),
    [
        (0, 100, {}),
        (100, 100, {}),
        (101, 100, {}),
        (-1, 100, {}),
        (50, 0, {}),
        (50, None, {}),
        # It should have been done since the last renewal.
        (50, 100, {"claimed_at": ago(1010), "renewed_at": ago(1000)}),
        (50, 100, {"expires_at": ago(1)}),
        (50, 100, {"expires_at": ago(1), "paused": True}),
        (50, 100, {"claimed_at": None}),
        (5e-324, 1.0, {}),
    ],
)
def test_nothing_is_estimated_where_it_cannot_be_told(done, total, values):
    held(done, total, **values)
    assert read()["estimated_left"] is None


@pytest.mark.django_db
def test_a_free_lease_has_no_estimate_left_of_its_last_run():
    RunLeaseFactory(name="job", claimed_at=ago(110), renewed_at=ago(10))
    found = read()
    assert (found["estimated_left"], found["progress_share"], found["renewed_ago"]) == (None,) * 3
