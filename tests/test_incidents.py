"""Incidents: opened once, kept, resolved; told once each, by whoever comes first."""

import threading
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import partial
from smtplib import SMTPServerDisconnected

import pytest
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.db import connection, transaction

from django_runlease import claim, incidents, signals, silences, store
from django_runlease.alerts import evaluate
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Alert, OperatorAction, Outcome, Run, RunLease
from django_runlease.store import Closing
from django_runlease.testing import expire_now

from .factories import AlertFactory, RunFactory, RunLeaseFactory
from .support import (
    ADMINS,
    MAILERS,
    ago,
    backends,
    elsewhere,
    open_transaction,
    together,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)

NAME = "job"


def run(outcome=Outcome.SUCCEEDED):
    held = claim(NAME, ttl=60, heartbeat=False)
    held.end(Closing(outcome=outcome))


def fail(times=3):
    for _ in range(times):
        run(Outcome.FAILED)


def check(name=None, **options):
    return incidents.check("default", name, **options)


def kinds(report):
    return [(alert["kind"], alert["severity"]) for alert in report.alerts]


@pytest.fixture(autouse=True)
def admins(settings):
    settings.ADMINS, settings.MAILERS = ADMINS, MAILERS


@pytest.fixture
def told():
    """What was sent, in order: (name of the signal, facts)."""
    told, receivers = [], []
    for name in ("alert_opened", "alert_resolved"):

        def receive(signal, sender, name=name, **facts):
            assert sender is Alert
            told.append((name, facts))

        getattr(signals, name).connect(receive)
        receivers.append((name, receive))
    yield told
    for name, receive in receivers:
        getattr(signals, name).disconnect(receive)


# -- open, single, resolved


def test_an_incident_opens_stays_single_and_is_resolved():
    fail()
    report = check()
    assert (report.status, kinds(report)) == ("critical", [("failing", "critical")])
    opened = Alert.objects.get()
    for _ in range(3):
        check()
    assert Alert.objects.get().opened_at == opened.opened_at
    run()
    assert check().status == "ok"
    alert = Alert.objects.get()
    assert alert.resolved_at > alert.opened_at
    assert check().alerts == []


def test_a_job_that_flaps_has_an_incident_each_time():
    for count in (1, 2, 3):
        fail()
        check()
        run()
        check()
        assert Alert.objects.filter(resolved_at__isnull=False).count() == count
    assert not Alert.objects.filter(resolved_at=None).exists()


def test_an_open_incident_tells_the_figures_of_the_last_check():
    fail()
    check()
    fail(1)
    (alert,) = check().alerts
    assert alert["message"].startswith("4 failures in a row")
    assert Alert.objects.get().message == alert["message"]


def test_an_open_incident_may_become_worse():
    held = claim(NAME, every="1h", heartbeat=False, ttl=60)
    for minutes, severity in ((50, "warning"), (70, "critical")):
        RunLease.objects.update(claimed_at=ago(60 * minutes))
        assert kinds(check()) == [("overrun", severity)]
        assert Alert.objects.get().severity == severity
    held.release()


def test_checks_at_once_open_one_incident_each_and_resolve_it_once(told):
    for name in "abcdef":
        RunLeaseFactory(name=name)
        RunFactory.create_batch(3, lease_name=name, outcome=Outcome.FAILED)
    for report in together(*[check] * 6):
        assert len(report.alerts) == 6
    assert Alert.objects.count() == 6
    check(notify=True)
    for name in "abcdef":
        RunFactory(lease_name=name, started_at=ago(1))
    together(*[partial(check, notify=True)] * 6)
    assert Alert.objects.filter(resolved_at__isnull=False).count() == Alert.objects.count() == 6
    assert [name for name, _ in told] == ["alert_opened"] * 6 + ["alert_resolved"] * 6


def test_a_check_of_one_lease_leaves_the_incidents_of_others():
    fail()
    check()
    RunLeaseFactory(name="other")
    assert check("other").status == "ok"
    assert Alert.objects.get().resolved_at is None
    assert kinds(check(NAME)) == [("failing", "critical")]


def test_the_incidents_of_a_removed_lease_are_resolved():
    fail()
    check()
    RunLease.objects.all().delete()
    assert check().status == "ok"
    assert Alert.objects.get().resolved_at is not None


def test_a_check_that_looked_before_a_recovery_does_not_open_the_incident_again():
    fail()
    check()
    looked_at, findings = store.database_clock("default"), evaluate("default")
    run()
    check()
    assert findings
    incidents.record("default", looked_at, findings)
    assert Alert.objects.get().resolved_at is not None


def test_a_check_that_looked_before_an_incident_does_not_resolve_it():
    looked_at, findings = store.database_clock("default"), evaluate("default")
    fail()
    check()
    assert not findings
    incidents.record("default", looked_at, findings)
    assert Alert.objects.get().resolved_at is None


def test_the_number_of_queries_does_not_depend_on_the_number_of_incidents(
    django_assert_max_num_queries,
):
    for rows in (1, 30):
        for lease in RunLeaseFactory.create_batch(rows):
            RunFactory.create_batch(3, lease_name=lease.name, outcome=Outcome.FAILED)
        with django_assert_max_num_queries(21):
            assert check(notify=True).alerts


def test_within_an_open_transaction_nothing_is_recorded():
    with transaction.atomic(), pytest.raises(RunLeaseError, match="open transaction"):
        check()


def test_looking_writes_nothing():
    fail()
    held = claim("ghost", heartbeat=False)
    expire_now(held)
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
        try:
            report = incidents.look("default")
        finally:
            cursor.execute("SET default_transaction_read_only = off")
    assert kinds(report) == [("failing", "critical"), ("ghost", "warning")]
    assert report.alerts[0]["opened_at"] is None
    assert not Alert.objects.exists()
    held.release()


# -- told


def test_an_incident_is_told_once_and_its_end_once(told):
    fail()
    for _ in range(2):
        check(notify=True)
    (name, facts) = told.pop()
    assert (name, told) == ("alert_opened", [])
    alert = Alert.objects.get()
    assert facts.pop("signal", None) is None
    assert facts == {
        "lease": NAME,
        "using": "default",
        "kind": "failing",
        "severity": "critical",
        "message": alert.message,
        "remedy": alert.remedy,
        "opened_at": alert.opened_at,
    }
    (letter,) = mail.outbox
    assert letter.to == ["ops@example.com"]
    assert letter.subject == "[Django] job: failing, critical"
    assert alert.message in letter.body
    assert alert.remedy in letter.body
    run()
    for _ in range(2):
        check(notify=True)
    (name, facts) = told.pop()
    assert (name, told) == ("alert_resolved", [])
    assert facts["resolved_at"] == Alert.objects.get().resolved_at
    assert [letter.subject for letter in mail.outbox[1:]] == ["[Django] job: failing is over"]


def test_a_check_tells_all_its_news_in_one_mail():
    fail()
    RunLeaseFactory(name="other")
    RunFactory.create_batch(3, lease_name="other", outcome=Outcome.FAILED)
    check(notify=True)
    (letter,) = mail.outbox
    assert letter.subject == "[Django] runlease: 2 alerts opened, 0 resolved"
    assert letter.body.count("3 failures in a row") == 2


def test_what_a_quiet_check_opened_the_next_one_that_notifies_tells(told):
    fail()
    check()
    assert (told, mail.outbox) == ([], [])
    check(notify=True)
    assert (len(told), len(mail.outbox)) == (1, 1)


def test_what_began_and_ended_untold_is_not_told(told):
    fail()
    check()
    run()
    check(notify=True)
    check(notify=True)
    assert (told, mail.outbox) == ([], [])


def test_of_many_checks_that_notify_at_once_one_tells(told):
    fail()
    together(*[partial(check, notify=True)] * 6)
    assert (len(told), len(mail.outbox)) == (1, 1)


def test_while_one_check_sends_its_mail_another_neither_waits_nor_tells(monkeypatch, told):
    asked, answer, send = threading.Event(), threading.Event(), EmailBackend.send_messages

    def hang(self, messages):
        asked.set()
        assert answer.wait(60)
        return send(self, messages)

    monkeypatch.setattr(EmailBackend, "send_messages", hang)
    fail()
    results = []
    first = threading.Thread(
        target=lambda: results.append(elsewhere(partial(check, notify=True)).status)
    )
    first.start()
    try:
        assert asked.wait(60)
        assert check(notify=True).status == "critical"
        assert told == []
        run()
        assert check(notify=True).status == "ok"
    finally:
        answer.set()
        first.join()
    assert results == ["critical"]
    assert len(mail.outbox) == 1
    assert [name for name, _ in told] == ["alert_opened"]
    check(notify=True)
    assert [name for name, _ in told] == ["alert_opened", "alert_resolved"]


@pytest.mark.parametrize(
    "error", [ConnectionRefusedError(111, "no answer"), SMTPServerDisconnected("no answer")]
)
def test_a_mail_that_cannot_be_sent_is_said_and_tried_again(monkeypatch, told, error):
    def refuse(self, messages):
        raise error

    fail()
    with monkeypatch.context() as broken:
        broken.setattr(EmailBackend, "send_messages", refuse)
        for _ in range(2):
            report = check(notify=True)
            assert "no answer" in report.untold
            assert report.status == "critical"
            assert told == []
            assert Alert.objects.get().notified_at is None
    assert check(notify=True).untold == ""
    assert (len(told), len(mail.outbox)) == (1, 1)


def test_a_receiver_is_called_after_the_commit():
    seen = []

    def look(**facts):
        seen.append(elsewhere(lambda: Alert.objects.get().notified_at is not None))

    signals.alert_opened.connect(look)
    try:
        fail()
        check(notify=True)
    finally:
        signals.alert_opened.disconnect(look)
    assert seen == [True]


def test_both_events_are_logged(caplog):
    caplog.set_level("INFO", "django_runlease")
    fail()
    check(notify=True)
    run()
    check(notify=True)
    lines = {record.event: record for record in caplog.records}
    assert lines["alert_opened"].getMessage().startswith("job: failing: 3 failures in a row")
    assert lines["alert_resolved"].getMessage() == "job: failing: resolved"


# -- silence


def silence(kind="failing", **options):
    return silences.silence(NAME, kind, "default", by="ops@web1", **options)


def test_a_silenced_alert_is_neither_counted_nor_told_until_the_silence_ends(told):
    fail()
    check()
    row = silence(length=timedelta(hours=1))
    assert (row["silenced"], row["silenced_by"]) == (True, "ops@web1")
    report = check(notify=True)
    assert report.status == "ok"
    assert [alert["silenced"] for alert in report.alerts] == [True]
    assert told == mail.outbox == []
    Alert.objects.update(silenced_until=ago(1))
    assert check(notify=True).status == "critical"
    assert (len(told), len(mail.outbox)) == (1, 1)


def test_a_recovery_too_is_told_when_the_silence_ends(told):
    fail()
    check(notify=True)
    silence(length=timedelta(hours=1))
    run()
    check(notify=True)
    assert [name for name, _ in told] == ["alert_opened"]
    Alert.objects.update(silenced_until=ago(1))
    check(notify=True)
    assert [name for name, _ in told] == ["alert_opened", "alert_resolved"]


def test_a_silence_covers_the_incidents_of_a_job_that_flaps_and_can_be_lifted():
    fail()
    check()
    run()
    check()
    silence(length=timedelta(hours=1))
    fail()
    report = check()
    assert (report.status, kinds(report)) == ("ok", [("failing", "critical")])
    assert report.alerts[0]["silenced_by"] == "ops@web1"
    row = silence()
    assert (row["silenced"], row["silenced_until"], row["silenced_by"]) == (False, None, "")
    assert check().status == "critical"


def test_a_silence_until_a_moment_is_that_moment():
    fail()
    check()
    until = datetime(2100, 1, 1, tzinfo=UTC)
    assert silence(until=until)["silenced_until"] == "2100-01-01T00:00:00.000000Z"
    assert Alert.objects.get().silenced_until == until


LATER = datetime(2100, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"until": LATER.replace(tzinfo=None)}, "no UTC offset"),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, "has passed"),
        ({"length": timedelta(0)}, "0:00:00 is no length of time"),
        ({"length": timedelta(hours=-1)}, "-1 day, 23:00:00 is no length of time"),
        ({"until": LATER, "length": timedelta(hours=1)}, "give one of them"),
    ],
)
def test_a_silence_that_cannot_be_meant_is_refused(given, message):
    fail()
    check()
    with pytest.raises(ValueError, match=message):
        silence(**given)
    assert Alert.objects.get().silenced_until is None


def test_what_has_never_been_an_alert_cannot_be_silenced():
    fail()
    check()
    with pytest.raises(RunLeaseError, match="there has been no alert 'stuck'"):
        silence("stuck", length=timedelta(hours=1))


@pytest.mark.parametrize("kind", ["failing", "stuck"])
def test_a_silence_resolves_no_other_alert_which_perhaps_only_another_host_can_see(told, kind):
    """Nor does one that is refused. What no check has seen is recorded for it, and nothing else."""
    RunLeaseFactory(name=NAME, held=True)
    RunFactory.create_batch(3, lease_name=NAME, outcome="failed")
    RunFactory(lease_name=NAME, declined=True)
    ghost = AlertFactory(lease_name=NAME, kind="ghost", notified_at=ago(30))
    assert {finding.kind.value for finding in evaluate("default")} == {"failing", "contention"}
    with nullcontext() if kind == "failing" else pytest.raises(RunLeaseError):
        silence(kind, length=timedelta(hours=1))
    assert Alert.objects.get(pk=ghost.pk).resolved_at is None
    recorded = set(Alert.objects.values_list("kind", flat=True))
    assert recorded == ({"ghost", "failing"} if kind == "failing" else {"ghost"})
    incidents.tell("default")
    assert mail.outbox == []


def test_of_two_who_lift_a_silence_at_once_one_did_it():
    AlertFactory(lease_name=NAME, kind="failing", silenced_until=ago(-900), silenced_by="ada")
    waiting = "wait_event_type = 'Lock'"
    with open_transaction("SELECT 1 FROM runlease_alert FOR UPDATE") as finish:

        def let_them() -> None:
            wait_for(lambda: backends(waiting) == 2)
            finish.set()

        together(silence, silence, let_them)
    assert [action.kind for action in OperatorAction.objects.all()] == ["unsilenced"]


def test_who_silences_is_logged(caplog):
    caplog.set_level("INFO", "django_runlease")
    fail()
    check()
    silence(length=timedelta(hours=1))
    silence()
    events = [record for record in caplog.records if "silenced" in record.event]
    assert [record.event for record in events] == ["alert_silenced", "alert_unsilenced"]
    assert {record.by for record in events} == {"ops@web1"}


# -- the runs of dead holders


def test_a_check_closes_the_run_of_a_dead_holder_which_may_count_as_a_failure():
    fail(2)
    held = claim(NAME, ttl=60, heartbeat=False)
    expire_now(held)
    assert kinds(check()) == [("failing", "critical"), ("ghost", "warning")]
    assert Run.objects.get(pk=held.run_id).outcome == Outcome.ABANDONED
    held.release()


def test_a_locked_incident_keeps_no_check_waiting():
    fail()
    check()
    run()
    with open_transaction("SELECT * FROM runlease_alert FOR UPDATE"):
        assert check(notify=True).status == "ok"
    wait_for(lambda: check().status == "ok")
    assert Alert.objects.get().resolved_at is not None
