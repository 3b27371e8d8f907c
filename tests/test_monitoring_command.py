"""``manage.py runlease check`` and ``silence``, from code and as real processes."""

import json
import re
from datetime import timedelta
from io import StringIO

import pytest
from django import VERSION
from django.core import mail
from django.core.mail.backends.locmem import EmailBackend
from django.core.management import CommandError, call_command

from django_runlease.clock import Now, Seconds
from django_runlease.models import Alert, Outcome, Run, RunLease

from .factories import RunFactory, RunLeaseFactory
from .support import ADMINS, MAILERS, ROOT, manage, open_transaction, spawn_manage

ALERT_KEYS = [
    *("kind", "lease_name", "severity", "message", "remedy", "opened_at", "resolved_at"),
    *("silenced_until", "silenced_by", "notified_at", "recovery_notified_at", "silenced"),
]


def run(*words, **options):
    """What the command prints, and its exit code."""
    out = StringIO()
    try:
        call_command("runlease", *words, stdout=out, **options)
    except CommandError as error:
        return out.getvalue(), error.returncode
    return out.getvalue(), 0


def run_json(*words):
    text, code = run(*words, "--json")
    return json.loads(text), code


def failing(name="job"):
    RunLeaseFactory(name=name)
    RunFactory.create_batch(3, lease_name=name, outcome=Outcome.FAILED)


def contended(name="job"):
    RunLeaseFactory(name=name)
    RunFactory(lease_name=name, declined=True)


@pytest.mark.django_db
def test_well_is_0_a_warning_1_and_critical_2():
    assert run("check") == ("All is well: no alert.\n", 0)
    contended("a")
    text, code = run("check")
    assert (code, len(text.splitlines())) == (1, 1)
    failing("b")
    text, code = run("check")
    assert code == 2
    critical, warning = text.splitlines()
    assert critical == (
        "CRITICAL b: failing: 3 failures in a row, and none has ever succeeded"
        " — see `manage.py runlease history b` for the errors"
    )
    assert warning.startswith("WARNING a: contention: 1 tick declined as held or busy")


@pytest.mark.django_db
def test_as_json_it_is_the_status_the_moment_and_the_alerts():
    answer, code = run_json("check")
    assert (list(answer), code) == (["status", "checked_at", "alerts"], 0)
    assert (answer["status"], answer["alerts"]) == ("ok", [])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", answer["checked_at"])
    failing()
    answer, code = run_json("check")
    assert (answer["status"], code) == ("critical", 2)
    (alert,) = answer["alerts"]
    assert list(alert) == ALERT_KEYS
    assert (alert["lease_name"], alert["kind"], alert["silenced"]) == ("job", "failing", False)
    assert alert["opened_at"].endswith("Z")


@pytest.mark.django_db
def test_the_fields_of_an_alert_are_those_of_its_model():
    fields = [field.name for field in Alert._meta.concrete_fields]
    assert [*fields[1:], "silenced"] == ALERT_KEYS


@pytest.mark.django_db
def test_one_lease_can_be_checked_alone_and_an_unknown_one_is_2():
    failing("a")
    RunLeaseFactory(name="b")
    assert run("check", "b")[1] == 0
    assert run("check", "a")[1] == 2
    # A job that has not run yet.
    assert run("check", "clearsessions") == ("All is well: no alert.\n", 0)
    with pytest.raises(CommandError, match="there is no lease 'nobody'") as refused:
        call_command("runlease", "check", "nobody")
    assert refused.value.returncode == 2


@pytest.mark.django_db
def test_a_silenced_alert_is_marked_and_not_counted():
    failing()
    run("check")
    text, code = run("silence", "job", "failing", "--for", "1h")
    assert code == 0
    assert re.fullmatch(r"job: failing: silenced until .* UTC by .*@.*\.\n", text)
    text, code = run("check")
    assert code == 0
    assert re.search(r"CRITICAL job: failing: .* \(silenced until .* UTC by .*@.*\)$", text)
    answer, code = run_json("check")
    assert (answer["status"], answer["alerts"][0]["silenced"], code) == ("ok", True, 0)
    assert run("silence", "job", "failing", "--lift") == ("job: failing: not silenced.\n", 0)
    assert run("check")[1] == 2


@pytest.mark.django_db
def test_silence_takes_a_moment_and_tells_it_as_json():
    failing()
    run("check")
    answer, code = run_json("silence", "job", "failing", "--until", "2100-01-01T00:00:00+01:00")
    assert (list(answer), code) == (ALERT_KEYS, 0)
    assert answer["silenced_until"] == "2099-12-31T23:00:00.000000Z"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job", "failing", "--for", "soon"], "--for: 'soon' is not a duration"),
        (["job", "failing", "--until", "soon"], "is not ISO 8601"),
        (["job", "failing", "--until", "2100-01-01T00:00"], "no UTC offset"),
        (["job", "failing", "--until", "2020-01-01T00:00Z"], "has passed"),
        (["job", "failing"], "one of the arguments"),
        (["job", "failing", "--lift", "--for", "1h"], "not allowed with"),
        (["job", "faling", "--for", "1h"], "invalid choice"),
        (["job", "stuck", "--for", "1h"], "there has been no alert 'stuck'"),
        (["nobody", "failing", "--for", "1h"], "there has been no alert 'failing'"),
    ],
)
def test_a_silence_that_cannot_be_meant_is_refused_with_2(words, message):
    failing()
    run("check")
    with pytest.raises(CommandError, match=re.escape(message)) as refused:
        call_command("runlease", "silence", *words)
    assert refused.value.returncode == 2
    assert Alert.objects.get().silenced_until is None


@pytest.mark.django_db(transaction=True)
def test_a_silence_that_meets_a_mail_being_sent_says_to_try_again():
    failing()
    run("check")
    with open_transaction("SELECT * FROM runlease_alert FOR UPDATE"):
        with pytest.raises(CommandError, match="job: its row is locked.*; try again$") as refused:
            call_command("runlease", "silence", "job", "failing", "--for", "1h")
    assert refused.value.returncode == 1


@pytest.mark.django_db
def test_what_somebody_else_wrote_steers_no_terminal():
    RunLeaseFactory(name="job", expired=True, holder="evil\x1b[2J\n")
    text, code = run("check")
    assert code == 1
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == 1


@pytest.mark.django_db
def test_a_mistake_in_the_rules_is_2(settings):
    settings.RUNLEASE = {"ALERTS": {"overrun": {"share": "much"}}}
    with pytest.raises(CommandError, match="is not a share such as") as refused:
        call_command("runlease", "check")
    assert refused.value.returncode == 2


@pytest.mark.django_db(transaction=True)
def test_as_a_process_it_prints_its_alerts_and_nothing_more():
    failing()
    done = manage("runlease", "check")
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout.startswith("CRITICAL job: failing: ")
    done = manage("runlease", "check", "--json")
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["status"] == "critical"


@pytest.mark.django_db(transaction=True)
def test_without_the_database_it_is_69():
    done = manage("runlease", "check", env={"DATABASE_URL": "postgres://nobody@127.0.0.1:1/none"})
    assert (done.returncode, done.stdout) == (69, "")
    assert len(done.stderr.splitlines()) == 1


def example(tmp_path, lines):
    """The environment of a process whose settings are the example's, and *lines*."""
    text = f"from example_project.settings import *\n{lines}\n"
    (tmp_path / "own_settings.py").write_text(text, encoding="utf-8")
    return {"DJANGO_SETTINGS_MODULE": "own_settings", "PYTHONPATH": f"{tmp_path}:{ROOT}"}


LOGGED = """
HANDLER = {"class": "logging.StreamHandler"}
LOGGING = {"version": 1, "handlers": {"all": HANDLER}, "root": {"handlers": ["all"]}}
"""


@pytest.mark.django_db(transaction=True)
def test_processes_that_check_at_once_open_one_incident_and_tell_it_once(tmp_path):
    failing()
    env = example(tmp_path, LOGGED)
    processes = [spawn_manage("runlease", "check", "--notify", env=env) for _ in range(3)]
    told = ""
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 2
        assert out.startswith("CRITICAL job: failing")
        told += err
    assert told == "job: failing: 3 failures in a row, and none has ever succeeded\n"
    assert Alert.objects.get().notified_at is not None


@pytest.mark.django_db(transaction=True)
def test_where_nobody_would_be_told_notify_says_so_also_while_all_is_well(tmp_path):
    done = manage("runlease", "check", "--notify")
    assert (done.returncode, done.stdout) == (0, "All is well: no alert.\n")
    assert done.stderr.startswith("--notify tells nobody: set ADMINS, or connect")
    assert manage("runlease", "check").stderr == ""
    failing()
    done = manage("runlease", "check", "--notify", "--json")
    assert (done.returncode, json.loads(done.stdout)["status"]) == (2, "critical")
    assert done.stderr.startswith("--notify tells nobody")
    # So it is told when there is somebody.
    assert Alert.objects.get().notified_at is None
    done = manage("runlease", "check", "--notify", env=example(tmp_path, LOGGED))
    assert done.stderr.startswith("job: failing: ")
    assert Alert.objects.get().notified_at is not None


@pytest.mark.django_db(transaction=True)
def test_a_receiver_alone_is_somebody_to_tell(tmp_path):
    failing()
    receiver = """
from django.dispatch import receiver
from django_runlease.signals import alert_opened

@receiver(alert_opened)
def page(lease, kind, **facts):
    print("paged:", lease, kind)
"""
    (tmp_path / "pager.py").write_text(receiver, encoding="utf-8")
    env = example(tmp_path, 'INSTALLED_APPS += ["pager"]')
    done = manage("runlease", "check", "--notify", env=env)
    assert "paged: job failing" in done.stdout
    assert "tells nobody" not in done.stderr


@pytest.mark.django_db
def test_notify_tells_the_admins_once(settings):
    settings.ADMINS, settings.MAILERS = ADMINS, MAILERS
    failing()
    for _ in range(2):
        assert run("check", "--notify")[1] == 2
    (letter,) = mail.outbox
    assert "job: failing" in letter.subject
    answer, _ = run_json("check")
    assert answer["alerts"][0]["notified_at"] is not None


@pytest.mark.django_db(transaction=True)
def test_a_mail_that_cannot_be_sent_is_an_error_after_the_alerts(tmp_path):
    contended()
    env = example(
        tmp_path,
        f"""
ADMINS = {ADMINS}
if {VERSION >= (6, 1)}:
    SMTP = "django.core.mail.backends.smtp.EmailBackend"
    MAILERS = {{"default": {{"BACKEND": SMTP, "OPTIONS": {{"host": "127.0.0.1", "port": 1}}}}}}
else:
    EMAIL_HOST, EMAIL_PORT = "127.0.0.1", 1
""",
    )
    done = manage("runlease", "check", "--notify", "--json", env=env)
    assert done.returncode == 1
    assert json.loads(done.stdout)["status"] == "warning"
    assert "the mail to the admins was not sent" in done.stderr
    assert "Traceback" not in done.stderr
    assert Alert.objects.get().notified_at is None
    # Also where nothing is wrong any more, but a recovery could not be told.
    Alert.objects.update(notified_at=Now())
    Run.objects.all().delete()
    done = manage("runlease", "check", "--notify", env=env)
    assert (done.returncode, done.stdout) == (1, "All is well: no alert.\n")


@pytest.mark.django_db
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_whatever_a_mail_backend_raises_the_alerts_are_shown(monkeypatch, settings, options):
    class ServiceError(Exception):
        """As the clients of mail services raise, which know nothing of smtplib."""

    def refuse(self, messages):
        raise ServiceError("no answer")

    settings.ADMINS, settings.MAILERS = ADMINS, MAILERS
    failing()
    out = StringIO()
    with monkeypatch.context() as broken:
        broken.setattr(EmailBackend, "send_messages", refuse)
        with pytest.raises(ServiceError, match="no answer"):
            call_command("runlease", "check", "--notify", *options, stdout=out)
    assert "3 failures in a row" in out.getvalue()
    answer, code = run_json("check", "--notify")
    assert code == 2
    assert answer["alerts"][0]["notified_at"] is not None, "told by the next check"


@pytest.mark.django_db
def test_the_whole_life_of_an_incident_by_the_command_alone():
    RunLeaseFactory(
        name="job",
        every=timedelta(hours=1),
        claimed_at=Now() - Seconds(timedelta(hours=2)),
    )
    assert run("check")[1] == 2
    RunLease.objects.update(claimed_at=Now())
    assert run("check")[1] == 0
    alert = Alert.objects.get()
    assert alert.kind == "overdue"
    assert alert.resolved_at is not None
