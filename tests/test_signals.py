"""What receivers are told, when, and that they cannot harm a job."""

import re
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from django_runlease import HeldLease, LeaseLost, claim, clock, lease, signals, store
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Closing
from django_runlease.testing import expire_now, held_by_another, take_over_now

from .support import elsewhere, wait_for

SIGNALS = (
    "lease_claimed",
    "lease_declined",
    "lease_lost",
    "lease_released",
    "run_finished",
)


class Told(list):
    """What was told, in order: (name of the signal, sender, facts)."""

    def names(self):
        return [name for name, sender, facts in self]

    def facts(self, name):
        (found,) = [facts for told, sender, facts in self if told == name]
        return found


@pytest.fixture
def told():
    told, receivers = Told(), []
    for name in SIGNALS:

        def receive(signal, sender, name=name, **facts):
            told.append((name, sender, facts))

        getattr(signals, name).connect(receive)
        receivers.append((name, receive))
    yield told
    for name, receive in receivers:
        getattr(signals, name).disconnect(receive)


@pytest.fixture
def receiver():
    """Connect a function to a signal until the end of the test."""
    connected = []

    def connect(name, function):
        getattr(signals, name).connect(function)
        connected.append((name, function))

    yield connect
    for name, function in connected:
        getattr(signals, name).disconnect(function)


def hold(name="job", **options):
    held = claim(name, **{"ttl": 60, "heartbeat": False, **options})
    assert isinstance(held, HeldLease), held
    return held


@pytest.mark.django_db(transaction=True)
def test_a_run_is_told_from_the_claim_to_its_end(told):
    tick = datetime(2026, 1, 1, tzinfo=UTC)
    held = hold(tick=tick)
    held.release()
    run = Run.objects.get()
    common = {
        "lease": "job",
        "using": "default",
        "generation": 1,
        "holder": run.holder,
        "run_id": run.pk,
    }
    assert told.names() == ["lease_claimed", "lease_released", "run_finished"]
    assert [sender for name, sender, facts in told] == [RunLease, RunLease, Run]
    assert told.facts("lease_claimed") == {
        **common,
        "trigger": "api",
        "tick": tick,
        "took_over_from": "",
        "because": "",
    }
    assert told.facts("lease_released") == common
    finished = told.facts("run_finished")
    assert finished.pop("duration") >= 0
    assert finished == {**common, "outcome": "succeeded", "reason": "", "exit_code": None}


@pytest.mark.django_db(transaction=True)
def test_the_duration_of_a_run_is_without_what_receivers_of_its_release_take(told):
    released = []

    def linger(**facts):
        released.append(clock.local())
        time.sleep(0.3)

    before = clock.local()
    signals.lease_released.connect(linger)
    try:
        claim("job").release()
    finally:
        signals.lease_released.disconnect(linger)
    assert told.facts("run_finished")["duration"] <= released[0] - before


@pytest.mark.django_db(transaction=True)
def test_a_declined_tick_is_told_with_the_reason_and_who_holds_the_lease(told):
    with held_by_another("job", holder="web2:7"):
        declined = claim("job")
    assert told.names() == ["lease_declined"]
    assert told.facts("lease_declined") == {
        "lease": "job",
        "using": "default",
        "generation": None,
        "holder": "web2:7",
        "run_id": declined.run_id,
        "reason": "held",
        "trigger": "api",
        "tick": None,
    }


@pytest.mark.django_db(transaction=True)
def test_a_decline_that_leaves_no_row_is_told_too(told, settings):
    settings.RUNLEASE = {"RECORD_DECLINES": False}
    with held_by_another("job"):
        claim("job")
    assert told.facts("lease_declined")["run_id"] is None
    assert not Run.objects.filter(outcome=Outcome.DECLINED).exists()


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_waits_tells_one_decline_when_it_gives_up(told):
    with held_by_another("job"):
        claim("job", wait=0.2)
    assert told.names() == ["lease_declined"]


@pytest.mark.django_db(transaction=True)
def test_a_takeover_tells_whose_run_it_closed(told):
    stale = hold()
    expire_now(stale)
    hold().release()
    abandoned, own = [facts for name, sender, facts in told if name == "run_finished"]
    assert (abandoned["run_id"], abandoned["generation"]) == (stale.run_id, 1)
    assert (abandoned["outcome"], own["outcome"]) == (Outcome.ABANDONED, Outcome.SUCCEEDED)
    assert abandoned["duration"] >= 0
    facts = [facts for name, sender, facts in told if name == "lease_claimed"][1]
    assert facts["took_over_from"] == Run.objects.get(pk=stale.run_id).holder
    assert facts["because"] == "its lease had expired"
    assert Run.objects.get(generation=2).took_over_from == facts["took_over_from"]
    assert not stale.release()


@pytest.mark.django_db(transaction=True)
def test_a_break_closes_the_run_and_its_holder_learns_it_one_time(told):
    held = hold()
    store.break_lease("job", "default", by="ops")
    assert told.facts("run_finished")["outcome"] == Outcome.LOST
    assert told.facts("run_finished")["reason"] == "broken by ops"
    for _ in range(2):
        with pytest.raises(LeaseLost):
            held.renew()
    assert told.facts("lease_lost")["reason"] == "broken"
    assert told.facts("lease_lost")["detail"] == "broken by ops"
    assert not held.release()
    assert told.names() == ["lease_claimed", "run_finished", "lease_lost", "run_finished"]


@pytest.fixture
def beats_often(monkeypatch):
    """So often that no test waits for them long, with a ttl that outlasts a slow machine."""
    monkeypatch.setattr("django_runlease.heartbeat.BEATS_PER_TTL", 60)


@pytest.mark.django_db(transaction=True)
def test_a_loss_that_the_heartbeat_notices_is_told(told, beats_often):
    with pytest.raises(LeaseLost), lease("job", ttl=30) as held:
        take_over_now(held.name)
        wait_for(held.lost.is_set)
        wait_for(lambda: "lease_lost" in told.names())
    assert told.facts("lease_lost")["reason"] == "taken"


@pytest.mark.django_db(transaction=True)
def test_a_run_that_is_closed_without_a_release_is_told(told):
    held = hold()
    held.close_run(Closing(outcome=Outcome.TIMED_OUT, reason="too long", exit_code=124))
    finished = told.facts("run_finished")
    assert (finished["outcome"], finished["exit_code"]) == (Outcome.TIMED_OUT, 124)
    held.release()


@pytest.mark.django_db(transaction=True)
def test_receivers_are_called_after_the_commit(receiver):
    seen = []

    def look(lease, **facts):
        row = elsewhere(lambda: RunLease.objects.values("generation", "token").get(name=lease))
        seen.append((row["generation"], row["token"] is not None))

    for name in ("lease_claimed", "lease_released", "run_finished"):
        receiver(name, look)
    hold().release()
    assert seen == [(1, True), (1, False), (1, False)]


@pytest.mark.django_db
def test_inside_a_test_case_they_are_called_too(told):
    hold().release()
    assert told.names() == ["lease_claimed", "lease_released", "run_finished"]


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_raises_harms_neither_the_job_nor_other_receivers(receiver, told, caplog):
    def broken(**facts):
        raise RuntimeError("no such channel")

    for name in SIGNALS:
        receiver(name, broken)
    with lease("job", ttl=60) as held:
        assert not claim("job")
    assert not held.lost.is_set()
    assert Run.objects.get(pk=held.run_id).outcome == Outcome.SUCCEEDED
    names = ["lease_claimed", "lease_declined", "lease_released", "run_finished"]
    assert told.names() == names
    errors = [record for record in caplog.records if record.name == "django.dispatch"]
    assert len(errors) == len(names)
    assert all("no such channel" in record.getMessage() for record in errors)


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_ends_the_process_leaves_no_lease_behind(receiver):
    def stop(**facts):
        raise SystemExit(3)

    receiver("lease_claimed", stop)
    with pytest.raises(SystemExit):
        claim("job", ttl=60)
    assert RunLease.objects.get().token is None
    assert Run.objects.get().outcome == Outcome.FAILED


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_hangs_does_not_hold_up_the_heartbeat(receiver, beats_often):
    inside, leave = threading.Event(), threading.Event()

    def hang(**facts):
        inside.set()
        leave.wait(60)

    receiver("lease_lost", hang)
    other = claim("other", ttl=60)
    held = claim("job", ttl=30)
    try:
        take_over_now("job")
        wait_for(inside.is_set)
        began = RunLease.objects.get(name="other").renewed_at
        later = began + timedelta(milliseconds=1)
        wait_for(lambda: RunLease.objects.filter(name="other", renewed_at__gt=later).exists())
    finally:
        leave.set()
    assert other.release()
    assert not held.release()


@pytest.mark.django_db(transaction=True)
def test_no_token_is_told(told):
    held = hold()
    claim("job")
    take_over_now("job")
    with pytest.raises(LeaseLost):
        held.renew()
    assert not held.release()
    names = ["lease_claimed", "lease_declined", "lease_lost", "run_finished"]
    assert told.names() == names
    assert not re.search(f"{held.token}|{held.token.hex}", repr(told))
