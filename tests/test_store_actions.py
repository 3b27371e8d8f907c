"""What operators do is written down, in the transaction that does it, and nothing else is."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.db import IntegrityError, connection

from django_runlease import history, silences, store
from django_runlease.clock import Now
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import (
    ActionKind,
    Alert,
    OperatorAction,
    Outcome,
    Run,
    RunLease,
)
from django_runlease.store import Blocked, Closing, Seen
from django_runlease.store import connection as store_connection
from django_runlease.store.connection import database_clock

from .factories import AlertFactory, RunLeaseFactory
from .past import ago, prune
from .support import granted, open_transaction, together

DONE = Closing(outcome=Outcome.SUCCEEDED)
LONG = "x" * 501
ODD = 'Ä "q" \'; -- %s {} \N{RECEIPT}'


@pytest.fixture
def short_timeout(monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 300)


def actions(name="job"):
    """Who, what and why, the first one first."""
    found = OperatorAction.objects.filter(lease_name=name).order_by("at", "pk")
    return list(found.values_list("kind", "by", "reason"))


def detail():
    return OperatorAction.objects.latest("pk").detail


def pause(reason="", by="ann", name="job"):
    store.pause(name, "default", by=by, reason=reason)


def resume(reason="", by="ann", name="job"):
    return store.resume(name, "default", by=by, reason=reason)


def break_job(**options):
    return store.break_lease("job", "default", **{"by": "ann", **options})


def silence(**options):
    return silences.silence("job", "failing", "default", **{"by": "ann", **options})


def remove():
    return store.remove("job", "default", by="ann", unclaimed_for=timedelta(0))


def do_all():
    """Each of the ways in which an operator changes something."""
    AlertFactory(lease_name="job", kind="failing")
    store.release(granted(), DONE)
    return {
        "paused": lambda: pause("a"),
        "resumed": lambda: resume("b"),
        "broken": lambda: (granted(), break_job(reason="c", at_once=True)),
        "silenced": lambda: silence(length=timedelta(hours=1), reason="d"),
        "unsilenced": lambda: silence(reason="e"),
        "removed": remove,
    }


# -- what is written down


@pytest.mark.django_db
def test_every_action_says_who_and_why_on_the_databases_clock():
    began = database_clock("default")
    for do in do_all().values():
        do()
    assert actions() == [
        ("paused", "ann", "a"),
        ("resumed", "ann", "b"),
        ("broken", "ann", "c"),
        ("silenced", "ann", "d"),
        ("unsilenced", "ann", "e"),
        ("removed", "ann", ""),
    ]
    assert [kind for kind, *_ in actions()] == ActionKind.values
    times = [at.timestamp() for at in OperatorAction.objects.values_list("at", flat=True)]
    assert times == sorted(times)
    assert began <= times[0] <= times[-1] <= database_clock("default")


@pytest.mark.django_db
@pytest.mark.parametrize("at_once", [True, False])
def test_a_break_says_who_lost_the_lease_and_when_the_next_claim_could_come(at_once):
    claimed = granted(tick=datetime(2020, 1, 1, tzinfo=UTC))
    lease = history.lease("job", "default")
    broken = break_job(reason="it hangs", at_once=at_once, forget_tick=at_once)
    assert detail() == {
        "was_held": True,
        "holder": lease["holder"],
        "generation": claimed.generation,
        "at_once": at_once,
        "free_at": None if at_once else lease["expires_at"],
        "connections_ended": 0,
        "tick_forgotten": at_once,
    }
    assert history.iso(broken.free_at) == detail()["free_at"]
    assert Run.objects.get().reason == "broken by ann: it hangs"


@pytest.mark.django_db
def test_a_break_of_a_free_lease_stands_there_if_it_lifts_something():
    store.release(granted(tick=datetime(2020, 1, 1, tzinfo=UTC)), DONE)
    break_job()
    assert actions() == []
    break_job(forget_tick=True)
    assert (detail()["was_held"], detail()["tick_forgotten"]) == (False, True)
    break_job(forget_tick=True)
    assert len(actions()) == 1
    store.release(granted(), DONE, at_least=timedelta(minutes=5))
    break_job(reason="again")
    assert actions()[1:] == [("broken", "ann", "again")]
    assert detail() == {
        "was_held": False,
        "holder": "",
        "generation": 2,
        "at_once": True,
        "free_at": None,
        "connections_ended": 0,
        "tick_forgotten": False,
    }


@pytest.mark.django_db(transaction=True)
def test_a_forced_break_says_how_many_connections_it_ended():
    granted()
    blocker = connection.copy()
    try:
        with blocker.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM runlease_runlease FOR KEY SHARE")
        break_job(force=True)
    finally:
        blocker.close()
    assert detail()["connections_ended"] == 1


@pytest.mark.django_db
def test_a_silence_names_the_alert_and_its_end():
    AlertFactory(lease_name="job", kind="failing")
    until = datetime(2100, 1, 1, tzinfo=UTC)
    silence(until=until)
    assert detail() == {"alert": "failing", "until": "2100-01-01T00:00:00.000000Z"}
    silence()
    assert detail() == {"alert": "failing"}


@pytest.mark.django_db
def test_a_removal_says_at_which_generation_and_outlives_the_lease():
    RunLeaseFactory(name="job", generation=7)
    remove()
    assert detail() == {"generation": 7}
    assert not RunLease.objects.exists()


@pytest.mark.django_db
def test_names_and_words_of_any_kind_are_kept_as_they_are():
    pause(ODD, by=ODD, name=ODD)
    assert actions(ODD) == [("paused", ODD, ODD)]
    assert history.actions("default", ODD)[0]["reason"] == ODD


@pytest.mark.django_db
def test_text_that_the_database_cannot_store_keeps_no_action_from_being_written_down():
    AlertFactory(lease_name="job", kind="failing")
    bad = {"by": "a\0", "reason": "\ud800"}
    pause(**bad)
    resume(**bad)
    granted()
    break_job(**bad)
    silence(**bad, length=timedelta(hours=1))
    assert {words for _, *words in map(tuple, actions()) for words in [tuple(words)]} == {
        ("a\ufffd", "\ufffd")
    }
    assert len(actions()) == 4
    assert Run.objects.get().reason == "broken by a\ufffd: \ufffd"


# -- what is not an action


@pytest.mark.django_db
def test_a_pause_with_another_reason_is_an_action_and_the_same_again_is_none():
    pause("disk full")
    pause("disk full")
    pause("disk is being replaced")
    pause("disk is being replaced", by="bob")
    assert actions() == [
        ("paused", "ann", "disk full"),
        ("paused", "ann", "disk is being replaced"),
        ("paused", "bob", "disk is being replaced"),
    ]
    assert RunLease.objects.get().paused_by == "bob"


@pytest.mark.django_db
def test_a_resume_of_what_is_not_paused_changes_nothing_and_is_not_told(caplog):
    caplog.set_level("INFO", "django_runlease")
    RunLeaseFactory(name="job")
    assert resume() is False
    assert actions() == []
    assert not caplog.records
    pause()
    assert resume() is True
    assert [record.event for record in caplog.records] == ["lease_paused", "lease_resumed"]


@pytest.mark.django_db
def test_a_silence_that_is_not_there_or_is_over_is_not_lifted():
    alert = AlertFactory(lease_name="job", kind="failing")
    silence()
    Alert.objects.filter(pk=alert.pk).update(silenced_until=Now())
    silence()
    assert actions() == []
    assert Alert.objects.get().silenced_until is None


@pytest.mark.django_db
@pytest.mark.parametrize("do", [pause, resume, break_job, silence])
def test_a_reason_that_is_too_long_changes_nothing_and_says_what_to_do(do):
    AlertFactory(lease_name="job", kind="failing")
    RunLeaseFactory(name="job", held=True, paused=do is resume)
    before = list(RunLease.objects.values())
    with pytest.raises(ValueError, match="at most 500 characters, and this one has 501: say it"):
        do(reason=LONG)
    assert list(RunLease.objects.values()) == before
    assert actions() == []
    do(reason=LONG[1:])
    assert (len(actions()) == 1) == (do is not silence)


@pytest.mark.django_db
def test_what_is_refused_is_not_written_down():
    RunLeaseFactory(name="job", held=True)
    for do in (
        lambda: break_job(seen=Seen(generation=7, is_held=True)),
        lambda: store.break_lease("nobody", "default", by="ann"),
        lambda: resume(name="nobody"),
        lambda: silence(length=timedelta(hours=1)),
        remove,
    ):
        with pytest.raises(RunLeaseError):
            do()
    assert not OperatorAction.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_break_that_is_blocked_leaves_no_action(short_timeout):
    granted()
    lock = "SELECT 1 FROM runlease_runlease FOR KEY SHARE"
    with open_transaction(lock), pytest.raises(Blocked, match="is locked"):
        break_job()
    assert actions() == []
    break_job()
    assert actions() == [("broken", "ann", "")]


# -- in one transaction


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ActionKind.values)
def test_nothing_is_done_that_cannot_be_written_down(kind):
    ways = do_all()
    for do in list(ways.values())[: list(ways).index(kind)]:
        do()
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE runlease_operatoraction ADD CONSTRAINT no CHECK (kind <> '{kind}')"
        )
    if kind == "broken":
        granted()
        ways[kind] = lambda: break_job(at_once=True)
    rows = (RunLease, Run, Alert, OperatorAction)
    before = [list(model.objects.values()) for model in rows]
    with pytest.raises(IntegrityError):
        ways[kind]()
    assert [list(model.objects.values()) for model in rows] == before


@pytest.mark.django_db(transaction=True)
def test_who_is_kept_from_writing_it_down_does_not_pause(short_timeout):
    RunLeaseFactory(name="job")
    lock = "LOCK TABLE runlease_operatoraction IN SHARE MODE"
    with open_transaction(lock), pytest.raises(Blocked, match="try again"):
        pause()
    assert not RunLease.objects.get().paused
    assert actions() == []


@pytest.mark.django_db(transaction=True)
def test_operators_at_once_are_written_down_in_the_order_in_which_they_had_their_way():
    RunLeaseFactory(name="job")

    def operate(who):
        for n in range(10):
            pause(f"{n}", by=who)
            resume(by=who)

    together(*[lambda who=who: operate(who) for who in ("ann", "bob", "eve")])
    told = actions()
    pauses = [(by, reason) for kind, by, reason in told if kind == "paused"]
    assert sorted(pauses) == sorted(
        (who, f"{n}") for who in ("ann", "bob", "eve") for n in range(10)
    )
    kinds = [kind for kind, *_ in told]
    assert ("resumed", "resumed") not in pairwise(kinds)
    assert (kinds[0], kinds[-1]) == ("paused", "resumed")


@pytest.mark.django_db(transaction=True)
def test_of_two_who_resume_at_once_one_did_it():
    RunLeaseFactory(name="job", paused=True)
    done = together(*[lambda who=who: resume(by=who) for who in ("ann", "bob")])
    assert sorted(done) == [False, True]
    assert len(actions()) == 1


@pytest.mark.django_db(transaction=True)
def test_of_two_who_break_one_claim_one_did_it():
    seen = Seen(generation=granted().generation, is_held=True)

    def break_it(who):
        try:
            return break_job(by=who, seen=seen).was_held
        except Blocked:
            return False

    done = together(*[lambda who=who: break_it(who) for who in ("ann", "bob")])
    assert sorted(done) == [False, True]
    [(_, by, _)] = actions()
    assert Run.objects.get().reason == f"broken by {by}"


@pytest.mark.django_db(transaction=True)
def test_writing_it_down_takes_no_lock_on_a_lease():
    RunLeaseFactory(name="job")
    insert = (
        "INSERT INTO runlease_operatoraction (lease_name, kind, by, reason, at, detail)"
        " VALUES ('job', 'paused', 'ann', '', now(), '{}')"
    )
    with open_transaction(insert):
        assert granted().generation == 2


# -- the reads


@pytest.mark.django_db
def test_actions_are_read_newest_first_as_many_as_asked_for_and_within_a_period():
    for n in range(25):
        OperatorAction.objects.create(
            lease_name=f"job-{n % 2}", kind="paused", by="ann", reason=str(n), at=ago(25 - n)
        )

    def read(name=None, **more):
        return [int(row["reason"]) for row in history.actions("default", name, **more)]

    assert read() == list(range(24, 4, -1))
    assert read("job-1", limit=3) == [23, 21, 19]
    assert read(since=timedelta(days=2.5)) == [24, 23]
    assert read(until=timedelta(days=23.5)) == [1, 0]
    now = datetime.now(UTC)
    assert read(since=now - timedelta(days=3.5), until=now - timedelta(days=1.5)) == [23, 22]
    with pytest.raises(ValueError, match="exchange the two"):
        read(since=timedelta(days=1), until=timedelta(days=2))
    with pytest.raises(ValueError, match="not a positive whole number"):
        read(limit=0)
    assert list(history.actions("default", "job-1")[0]) == [
        *("lease_name", "kind", "by", "reason", "at", "detail")
    ]


@pytest.mark.django_db
def test_actions_of_one_lease_of_all_and_of_a_period_are_found_by_an_index():
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO runlease_operatoraction (lease_name, kind, by, reason, at, detail)"
            " SELECT 'job-' || n % 100, 'paused', 'ann', '', now() - n * interval '1 minute', '{}'"
            " FROM generate_series(1, 20000) n; ANALYZE runlease_operatoraction"
        )
    read = OperatorAction.objects.order_by("-at", "-pk")
    assert "runlease_action_history" in read.filter(lease_name="job-7")[:20].explain()
    assert "runlease_action_newest" in read[:20].explain()


# -- retention


def old(days, kind, name="job", **more):
    row = OperatorAction.objects.create(lease_name=name, kind=kind, by="ann", at=ago(days), **more)
    return row.pk


def left():
    return set(OperatorAction.objects.values_list("pk", flat=True))


@pytest.mark.django_db
def test_actions_go_when_they_are_older_than_runs_are_kept():
    RunLeaseFactory(name="job")
    gone = [old(31, kind) for kind in ActionKind.values]
    kept = {old(29, kind) for kind in ActionKind.values}
    assert prune(batch=2).actions == len(gone)
    assert left() == kept


@pytest.mark.django_db
def test_who_paused_a_lease_that_still_is_stays_however_old():
    RunLeaseFactory(name="job", paused=True)
    RunLeaseFactory(name="other")
    old(60, "paused")
    old(50, "resumed")
    kept = {old(40, "paused"), old(35, "paused")}
    old(33, "broken")
    old(40, "paused", "other")
    assert prune().actions == 4
    assert left() == kept
    RunLease.objects.update(paused=False)
    assert prune().actions == 2


@pytest.mark.django_db(transaction=True)
def test_an_action_that_somebody_has_locked_is_left_for_the_next_prune():
    locked, _ = old(40, "broken"), old(40, "broken")
    with open_transaction(f"SELECT 1 FROM runlease_operatoraction WHERE id = {locked} FOR UPDATE"):
        assert prune().actions == 1
        assert left() == {locked}
    assert prune().actions == 1
