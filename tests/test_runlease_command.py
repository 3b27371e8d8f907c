"""``manage.py runlease``, from code and as a real process on a real terminal."""

import getpass
import json
import os
import re
import signal
import socket
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_runlease.clock import Now, Seconds
from django_runlease.models import Alert, Outcome, Run, RunLease

from .factories import RunFactory, RunLeaseFactory
from .support import ROOT, database_url, manage, named_by, open_transaction
from .terminal import Start, terminal

__all__ = ["terminal"]

HOSTILE = "a\x1b[2Jb\x07c\x9bd\u202ee\x7ff"
DECLARED = "clearsessions"
REGISTERED = "charge_due_invoices"
NAMED = ("show", "history", "pause", "resume", "break")
LEASE_KEYS = [
    *("name", "generation", "expires_at", "ttl", "every", "holder", "host", "holder_process"),
    *("claimed_at", "renewed_at", "heartbeat", "not_before", "last_tick", "paused", "paused_by"),
    *("paused_reason", "progress", "state", "held_for", "renewed_ago", "expires_in", "due_in"),
]
CARD_KEYS = [
    *(*LEASE_KEYS, "process_age", "process_gone", "progress_share", "estimated_left", "alerts"),
    *("uncertain_effects", "declines_since_start", "statistics", "runs", "declines", "actions"),
]
RUN_KEYS = [
    *("lease_name", "generation", "holder", "host", "trigger", "took_over_from", "tick"),
    *("started_at", "finished_at", "outcome", "reason", "waited", "lag", "exit_code", "error"),
    *("output", "duration"),
]
ALERT_KEYS = [
    *("kind", "lease_name", "severity", "message", "remedy", "opened_at", "resolved_at"),
    *("silenced_until", "silenced_by", "notified_at", "recovery_notified_at", "silenced"),
]
LOCK = "SELECT * FROM runlease_runlease FOR UPDATE"


def run(*words: str, **options: Any) -> str:
    """What the command prints when it is called from code."""
    out = StringIO()
    call_command("runlease", *words, stdout=out, **options)
    return out.getvalue()


def run_json(*words: str, **options: Any) -> Any:
    return json.loads(run(*words, json=True, **options))


def refused(*words: str, **options: Any) -> tuple[int, str]:
    """The exit code and the message with which the command refuses."""
    with pytest.raises(CommandError) as caught:
        run(*words, **options)
    assert str(caught.value) == str(caught.value).strip() != ""
    assert "\n" not in str(caught.value)
    return caught.value.returncode, str(caught.value)


def rows() -> list[Any]:
    return [list(RunLease.objects.order_by("pk").values()), list(Run.objects.values())]


# -- reading


@pytest.mark.django_db
def test_without_any_row_every_list_says_plainly_that_it_is_empty():
    assert run("list") == "No lease yet: `manage.py runjob NAME` makes the first.\n"
    assert run("history") == "No run yet: `manage.py runjob NAME` makes the first.\n"
    assert run("history", DECLARED) == (
        f"No run yet: `manage.py runjob {DECLARED}` makes the first.\n"
    )
    assert run_json("list") == run_json("history") == run_json("history", DECLARED) == []


@pytest.mark.django_db
def test_list_shows_name_state_holder_and_generation():
    RunLeaseFactory(name="billing", held=True, generation=7)
    RunLeaseFactory(name="audit")
    titles, audit, billing = run("list").splitlines()
    assert titles.split() == ["NAME", "STATE", "HOLDER", "GENERATION"]
    assert audit.split() == ["audit", "free", "1"]
    assert re.fullmatch(r"billing  held \ds, expires in 4m 5\ds  elsewhere:4711 +7", billing)


@pytest.mark.django_db
def test_list_as_json_is_an_array_of_leases():
    RunLeaseFactory(name="billing", held=True)
    [lease] = run_json("list")
    assert list(lease) == LEASE_KEYS
    assert (lease["name"], lease["state"], lease["ttl"]) == ("billing", "held", 300)


@pytest.mark.django_db
def test_show_is_one_lease_with_its_last_ten_runs_and_apart_its_last_five_declines():
    RunLeaseFactory(name="billing", held=True)
    RunFactory.create_batch(12, lease_name="billing")
    RunFactory.create_batch(12, lease_name="billing", declined=True, started_at=Now())
    RunFactory(lease_name="audit")
    Alert.objects.create(kind="lost", lease_name="billing", severity="warning", opened_at=Now())
    lease = run_json("show", "billing")
    assert list(lease) == CARD_KEYS
    assert [each["lease_name"] for each in lease["runs"]] == ["billing"] * 10
    assert list(lease["runs"][0]) == list(lease["declines"][0]) == RUN_KEYS
    assert list(lease["alerts"][0]) == ALERT_KEYS
    page = run("show", "billing")
    assert page.count("  succeeded  ") == 10
    assert page.count("held by elsewhere:4711") == 5
    assert "12 in a row since the last start" in page
    assert re.search(r"renewed \d+s ago", page)
    assert "Alert       lost, warning, since 2" in page


@pytest.mark.django_db
def test_history_shows_the_last_twenty_runs_or_as_many_as_asked_for():
    RunFactory.create_batch(25, lease_name="billing")
    assert len(run_json("history")) == len(run_json("history", "billing")) == 20
    assert len(run("history").splitlines()) == 21
    assert len(run_json("history", "billing", limit=23)) == 23
    assert len(run_json("history", "--limit", "3")) == 3


@pytest.mark.django_db
def test_history_as_json_is_an_array_of_runs():
    RunFactory(lease_name="billing")
    [told] = run_json("history", "billing")
    assert list(told) == RUN_KEYS


@pytest.mark.django_db
def test_history_shows_only_what_is_asked_for():
    for hours, outcome in enumerate(["failed", "succeeded", "lost"]):
        started = Now() - Seconds(timedelta(hours=hours, minutes=1))
        RunFactory(lease_name="billing", outcome=outcome, host=f"web{hours}", started_at=started)

    def told(*words: str, **options: Any) -> list[str]:
        return [each["outcome"] for each in run_json("history", *words, **options)]

    assert told("--outcome", "failed") == ["failed"]
    assert told("--outcome", "lost", "--outcome", "failed") == ["failed", "lost"]
    assert told("billing", outcome=["lost"]) == ["lost"]
    assert told("--since", "2h") == ["failed", "succeeded"]
    assert told("--until", "1h") == ["succeeded", "lost"]
    assert told("--since", "2000-01-01T00:00:00Z", "--until", "PT2H") == ["lost"]
    assert told(since=timedelta(hours=1), until=datetime.now(UTC)) == ["failed"]
    assert told("--host", "web1") == ["succeeded"]
    assert told("--outcome", "lost", "--host", "web1") == []
    assert run("history", "--outcome", "failed").splitlines()[1].split()[2:4] == [
        *("billing", "failed")
    ]
    assert run("history", "billing", "--outcome", "stalled") == "No run matches.\n"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--outcome", "broken"], "succeeded, failed, declined"),
        (["--since", ""], "--since:  is not a moment"),
        (["--until", ""], "--until:  is not a moment"),
        (["--until", "4000d"], "up to 3660 days"),
        (["--host", ""], "--host: name a host, or leave the option out"),
        (["--since", "yesterday"], "--since: yesterday is not a moment: write an instant"),
        (["--until", "2026-11-30T12:00:00"], "such as 2030-01-31T06:00:00+00:00, or how long ago"),
        (["--until", "2026-11-30"], "with its UTC offset"),
        (["--since", "1h", "--until", "2h"], "exchange the two"),
        (["nobody", "--outcome", "failed"], "there is no lease nobody"),
    ],
)
def test_a_filter_that_is_wrong_is_exit_2_with_the_accepted_forms(words, remedy):
    code, message = refused("history", *words)
    assert code == 2
    # Python 3.11 quotes the choices.
    assert remedy in message.replace("'", "")


@pytest.mark.django_db
def test_the_figures_of_the_history_of_a_lease_or_of_all():
    assert run("history", "--stats").startswith("No lease yet")
    RunLeaseFactory(name="billing", every=timedelta(seconds=10))
    RunLeaseFactory(name="other")
    RunFactory(lease_name="billing")
    RunFactory(lease_name="billing", outcome="failed")
    RunFactory(lease_name="billing", declined=True)
    titles, billing, other = run("history", "--stats").splitlines()
    assert titles.split()[:4] == ["NAME", "RUNS", "SUCCEEDED", "DECLINED"]
    assert billing.split() == ["billing", "2", *("50", "%"), "1", "1s", "1s", "1s", "10", "%"]
    assert other.split() == ["other", "0", "0"]
    [told] = run_json("history", "billing", "--stats")
    assert (told["runs"], told["success_rate"], told["declined"]) == (2, 0.5, 1)
    [told] = run_json("history", "billing", "--stats", "--until", "1h")
    assert (told["runs"], told["declined"]) == (0, 0)


@pytest.mark.django_db
def test_the_figures_of_nobody_or_of_a_part_are_refused():
    code, message = refused("history", "nobody", "--stats")
    assert (code, message.startswith("there is no lease 'nobody'")) == (2, True)
    for words in (["--outcome", "failed"], ["--host", "web1"], ["--host", ""]):
        code, message = refused("history", "--stats", *words)
        assert (code, message.startswith("--stats counts all")) == (2, True)
    code, message = refused("history", "--stats", "--since", "soon")
    assert (code, message.startswith("--since: 'soon' is not")) == (2, True)


@pytest.mark.django_db
def test_the_history_of_a_deleted_lease_can_still_be_read():
    RunFactory(lease_name="gone")
    assert [each["lease_name"] for each in run_json("history", "gone")] == ["gone"]


@pytest.mark.django_db
def test_no_token_is_ever_shown():
    tokens = [str(RunLeaseFactory(name="billing", held=True).token)]
    tokens += [str(RunFactory(lease_name="billing", running=True).token)]
    for words in (["list"], ["show", "billing"], ["history"], ["break", "billing", "--yes"]):
        for more in ([], ["--json"]):
            shown = run(*words, *more)
            assert not any(token in shown or token.replace("-", "") in shown for token in tokens)


@pytest.mark.django_db
@pytest.mark.parametrize("json", [False, True])
@pytest.mark.parametrize("words", [["list"], ["show", "billing"], ["history"]])
def test_hostile_text_of_the_database_never_reaches_the_terminal(words, json):
    RunLeaseFactory(name="billing", held=True, holder=HOSTILE, paused=True, paused_reason=HOSTILE)
    RunLeaseFactory(name=HOSTILE, progress={"done": HOSTILE, "message": HOSTILE})
    RunFactory(lease_name="billing", holder=HOSTILE, host=HOSTILE, reason=HOSTILE)
    RunFactory(lease_name="billing", declined=True, holder=HOSTILE, host=HOSTILE)
    Alert.objects.create(
        kind=HOSTILE, lease_name="billing", severity="warning", message=HOSTILE, opened_at=Now()
    )
    shown = run(*words, json=json)
    assert shown.replace("\n", "").isprintable()


@pytest.mark.django_db
def test_the_number_of_queries_does_not_grow_with_the_rows(django_assert_max_num_queries):
    RunLeaseFactory.create_batch(30)
    RunLeaseFactory(name="billing")
    RunFactory.create_batch(30, lease_name="billing")
    for most, *words in (
        *((1, "list"), (9, "show", "billing"), (3, "history"), (2, "history", "billing")),
        *((1, "history", "--outcome", "failed"), (2, "history", "--host", "web1")),
        (1, "history", "--stats"),
    ):
        with django_assert_max_num_queries(most):
            run(*words)


# -- pause and resume


@pytest.mark.django_db
def test_pause_says_who_and_why_and_resume_takes_it_back(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    RunLeaseFactory(name="billing")
    lease = run_json("pause", "billing", reason="disk full")
    assert list(lease) == LEASE_KEYS
    assert (lease["state"], lease["paused"]) == ("paused", True)
    assert (lease["paused_by"], lease["paused_reason"]) == (
        f"alice@{socket.gethostname()}",
        "disk full",
    )
    lease = run_json("resume", "billing")
    assert (lease["state"], lease["paused_by"], lease["paused_reason"]) == ("free", "", "")


@pytest.mark.django_db
@pytest.mark.parametrize("error", [KeyError, OSError, ImportError])
def test_a_user_without_an_entry_in_passwd_is_named_by_number(monkeypatch, error):
    def getuser() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", getuser)
    RunLeaseFactory(name="billing")
    lease = run_json("pause", "billing")
    assert lease["paused_by"] == f"{os.getuid()}@{socket.gethostname()}"


@pytest.mark.django_db
def test_pause_and_resume_say_what_they_did():
    RunLeaseFactory(name="billing", held=True)
    assert run("resume", "billing") == "billing: it was not paused.\n"
    assert run("pause", "billing") == (
        "billing: paused; every claim declines until it is resumed. "
        "Its holder elsewhere:4711 goes on.\n"
    )
    assert run("resume", "billing") == "billing: resumed.\n"


@pytest.mark.django_db
@pytest.mark.parametrize("name", [DECLARED, REGISTERED])
def test_a_job_that_has_not_run_yet_can_be_paused(name):
    assert run_json("pause", name)["state"] == "paused"
    assert RunLease.objects.get().name == name


# -- break


@pytest.mark.django_db
def test_break_takes_the_lease_away_and_the_next_claim_waits_for_its_expiry(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "alice")
    before = RunLeaseFactory(name="billing", held=True, generation=7)
    before.refresh_from_db()
    RunFactory(lease_name="billing", running=True)
    text = run("break", "billing", yes=True)
    assert "It was held by elsewhere:4711, which may still be running." in text
    assert re.search(r"The next claim may come in 4m 5\ds, at \d{4}-", text)
    after = RunLease.objects.get()
    assert (after.token, after.generation, after.not_before) == (None, 8, before.expires_at)
    closed = Run.objects.get()
    assert closed.outcome == Outcome.LOST
    assert closed.reason == f"broken by alice@{socket.gethostname()}"


@pytest.mark.django_db
def test_break_prints_the_lease_as_list_does():
    RunLeaseFactory(name="billing", held=True)
    lease = run_json("break", "billing", yes=True)
    assert list(lease) == LEASE_KEYS
    assert (lease["state"], lease["holder"]) == ("free", "")
    assert lease["due_in"] == pytest.approx(300, abs=30)


@pytest.mark.django_db
def test_break_now_lets_the_next_claim_come_at_once_and_says_what_that_means():
    RunLeaseFactory(name="billing", held=True)
    assert "exclusion is given up" in run("break", "billing", yes=True, now=True)
    assert RunLease.objects.get().not_before is None


@pytest.mark.django_db
def test_break_of_a_free_lease_says_that_it_only_lifted_the_minimum_hold():
    RunLeaseFactory(name="billing", not_before=Now(), generation=7)
    text = run("break", "billing", yes=True)
    assert text == "billing: it was free, so only its minimum hold was lifted.\n"
    lease = RunLease.objects.get()
    assert (lease.not_before, lease.generation) == (None, 7)


@pytest.mark.django_db
@pytest.mark.parametrize("forget", [False, True])
def test_break_forgets_the_last_tick_when_asked_to(forget):
    RunLeaseFactory(name="billing", held=True, last_tick=Now())
    text = run("break", "billing", yes=True, forget_tick=forget)
    assert ("Its last tick may run again." in text) == forget
    assert (RunLease.objects.get().last_tick is None) == forget


@pytest.mark.django_db
def test_break_without_a_terminal_wants_yes_and_changes_nothing():
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    code, message = refused("break", "billing")
    assert (code, "--yes" in message) == (2, True)
    assert rows() == before


@pytest.mark.django_db(transaction=True)
def test_a_locked_row_is_exit_1_and_names_the_backend_that_locks_it():
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    with open_transaction(LOCK):
        code, _ = refused("break", "billing", yes=True)
        message = named_by(lambda: refused("break", "billing", yes=True)[1])
    assert (code, "--force" in message) == (1, True)
    assert rows() == before


@pytest.mark.django_db(transaction=True)
def test_break_with_force_ends_the_connection_that_locks_the_row():
    RunLeaseFactory(name="billing", held=True)
    blocker = connection.copy()
    try:
        with blocker.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute(LOCK)
        run("break", "billing", yes=True, force=True)
    finally:
        blocker.close()
    assert RunLease.objects.get().token is None


# -- what is refused


@pytest.mark.django_db
@pytest.mark.parametrize("action", NAMED)
def test_an_unknown_name_is_exit_2_names_the_remedy_and_changes_nothing(action):
    RunLeaseFactory(name="billing")
    before = rows()
    code, message = refused(action, "biling", **({"yes": True} if action == "break" else {}))
    assert code == 2
    assert message == "there is no lease 'biling': `manage.py runlease list` shows them all"
    assert rows() == before


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["show", "resume", "break"])
def test_a_job_that_has_not_run_yet_has_no_lease_to_show_resume_or_break(action):
    code, message = refused(action, DECLARED, **({"yes": True} if action == "break" else {}))
    assert (code, "has not run yet" in message) == (2, True)
    assert not RunLease.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("action", NAMED)
@pytest.mark.parametrize("name", ["", " billing", "x" * 201, "bil\x1bling", "e\u0301"])
def test_a_bad_name_is_exit_2_and_never_repaired(action, name):
    code, message = refused(action, name)
    assert (code, message.isprintable()) == (2, True)
    assert message.startswith("a lease's name ")
    assert not RunLease.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["history", "--limit", "many"], {}),
        (["history", "--limit", "0"], {}),
        (["history"], {"limit": -1}),
        (["history"], {"limit": "5"}),
        (["list"], {"using": "nowhere"}),
        (["list", "billing"], {}),
        (["explode"], {}),
        (["show"], {}),
        ([], {}),
    ],
)
def test_wrong_usage_is_exit_2_from_code_too(words, options):
    assert refused(*words, **options)[0] == 2


# -- as a process


@pytest.mark.django_db(transaction=True)
def test_a_process_exits_0_and_prints_to_stdout():
    RunLeaseFactory(name="billing", held=True)
    for words in (["list"], ["show", "billing"], ["history"], ["break", "billing", "--yes"]):
        done = manage("runlease", *words)
        assert (done.returncode, bool(done.stdout)) == (0, True)
        assert "\x1b" not in done.stdout


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "words",
    [
        ["show", "nobody"],
        ["pause", " x"],
        ["break", "billing"],
        ["history", "--limit", "0"],
        ["history", "--limit", "x"],
        ["list", "--using", "nowhere"],
        ["explode"],
    ],
)
def test_a_process_exits_2_with_one_line_on_stderr(words):
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    done = manage("runlease", *words, stdin=DEVNULL)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert rows() == before


@pytest.mark.django_db(transaction=True)
def test_options_of_django_may_follow_the_action():
    RunLeaseFactory(name="billing", held=True)
    assert "\x1b[32;1mheld" in manage("runlease", "list", "--force-color").stdout
    assert "\x1b[32;1mheld" in manage("runlease", "--force-color", "list").stdout
    assert manage("runlease", "list", "--settings", "example_project.settings").returncode == 0
    assert manage("runlease", "list", "--no-color", "-v", "2", "--pythonpath=.").returncode == 0
    assert "Traceback" in manage("runlease", "show", "nobody", "--traceback").stderr


@pytest.mark.django_db(transaction=True)
def test_the_leases_can_be_seen_while_the_project_fails_its_checks(tmp_path: Path):
    (tmp_path / "faulty.py").write_text("from example_project.settings import *\nTEMPLATES = []\n")
    env = {"DJANGO_SETTINGS_MODULE": "faulty", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    assert manage("check", env=env).returncode == 1
    assert manage("runlease", "list", env=env).returncode == 0


@pytest.mark.django_db(transaction=True)
def test_text_that_the_encoding_of_stdout_lacks_does_not_end_in_an_error():
    RunLeaseFactory(name="日本")
    done = manage("runlease", "list", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, "?" in done.stdout) == (0, True)
    done = manage("runlease", "list", "--json", env={"PYTHONIOENCODING": "ascii"})
    assert json.loads(done.stdout)[0]["name"] == "日本"


def broken_database(query: str) -> dict[str, str]:
    return {"DATABASE_URL": f"{database_url()}?options={query}"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("words", [["list"], ["pause", DECLARED], ["break", "billing", "--yes"]])
@pytest.mark.parametrize(
    ("broken", "remedy"),
    [
        (lambda: {"DATABASE_URL": "postgres://u@127.0.0.1:1/nothing"}, "database runs"),
        (lambda: broken_database("-c%20search_path%3Dnowhere"), "manage.py migrate"),
        (lambda: broken_database("-c%20role%3Dpg_monitor"), "grant"),
    ],
    ids=["unreachable", "no table", "no permission"],
)
def test_a_database_that_cannot_be_used_is_exit_69_and_one_line_with_the_remedy(
    words, broken, remedy
):
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    done = manage("runlease", *words, env=broken())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (69, "", 1)
    assert remedy in done.stderr
    assert "'default'" in done.stderr
    assert rows() == before


# -- on a terminal


@pytest.mark.django_db(transaction=True)
def test_on_a_terminal_break_names_the_holder_and_asks(terminal: Start):
    RunLeaseFactory(name="billing", held=True)
    asking = terminal("break", "billing", "--json")
    asking.read_until("[y/N] ")
    assert "billing is held by elsewhere:4711 since 20" in asking.shown
    assert "Its holder may still be running. The next claim may come in 4m 5" in asking.shown
    asking.type("y\n")
    code, out = asking.end()
    assert (code, json.loads(out)["state"]) == (0, "free")
    assert RunLease.objects.get().token is None


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("answer", ["\n", "n\n", "yellow\n"])
def test_any_answer_but_yes_changes_nothing(terminal: Start, answer):
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    asking = terminal("break", "billing")
    asking.read_until("[y/N] ")
    asking.type(answer)
    assert asking.end()[0] == 1
    assert "nothing changed" in asking.shown
    assert rows() == before


@pytest.mark.django_db(transaction=True)
def test_an_interrupt_at_the_question_changes_nothing_and_is_exit_130(terminal: Start):
    RunLeaseFactory(name="billing", held=True)
    before = rows()
    asking = terminal("break", "billing")
    asking.read_until("[y/N] ")
    asking.process.send_signal(signal.SIGINT)
    assert asking.end()[0] == 130
    assert "Traceback" not in asking.shown
    assert rows() == before


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_changed_hands_during_the_question_is_not_broken(terminal: Start):
    """The answer was meant for the holder that the question named."""
    RunLeaseFactory(name="billing", held=True)
    asking = terminal("break", "billing")
    asking.read_until("[y/N] ")
    RunLease.objects.update(generation=2, holder="another:1")
    before = rows()
    asking.type("y\n")
    assert asking.end()[0] == 1
    assert "it has changed meanwhile, so nothing was done" in asking.shown
    assert rows() == before


@pytest.mark.django_db
def test_output_that_goes_elsewhere_than_to_the_terminal_of_its_process_has_no_colours(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("django.core.management.color.supports_color", lambda: True)
    RunLeaseFactory(name="billing", held=True)
    assert "\x1b" not in run("list")


@pytest.mark.django_db(transaction=True)
def test_a_server_that_takes_no_writes_gives_69_and_the_remedy():
    RunLeaseFactory(name="billing")
    url = f"{database_url()}?options=-cdefault_transaction_read_only%3Don"
    for words in (["pause", "billing"], ["resume", "billing"], ["break", "billing", "--yes"]):
        done = manage("runlease", *words, env={"DATABASE_URL": url})
        assert done.returncode == 69
        assert done.stderr.count("\n") == 1
        assert "connect to the primary" in done.stderr


@pytest.mark.django_db
def test_instants_beyond_the_calendar_are_shown_all_the_same():
    """PostgreSQL knows infinity; only a hand writes it."""
    RunLeaseFactory(name="billing", held=True)
    RunFactory(lease_name="billing")
    with connection.cursor() as cursor:
        cursor.execute("UPDATE runlease_runlease SET expires_at = 'infinity'")
        cursor.execute("UPDATE runlease_run SET started_at = '-infinity', finished_at = NULL")
    assert "billing" in run("list")
    assert "billing" in run("show", "billing")
    (listed,) = run_json("list")
    assert listed["expires_at"].startswith("9999-12-31")
    assert listed["expires_in"] is None
    (told,) = run_json("history", "billing")
    assert told["started_at"].startswith("0001-01-01")
    assert told["duration"] is None


@pytest.mark.django_db
def test_a_reason_for_a_pause_is_bounded():
    RunLeaseFactory(name="billing")
    with pytest.raises(CommandError, match="at most 500 characters") as refused:
        run("pause", "billing", "--reason", "x" * 501)
    assert refused.value.returncode == 2
    assert not RunLease.objects.get().paused
