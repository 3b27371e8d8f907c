"""``runlease prune``, ``list --unused`` and ``metrics``; and leases that are removed."""

import json
import os
import re
import signal
import stat
import threading
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from pathlib import Path
from subprocess import DEVNULL

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_runlease import metrics, store
from django_runlease.clock import Now, Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Alert, Measure, OperatorAction, Outcome, Run, RunLease, Tally
from django_runlease.store import Blocked, Claimed

from .factories import RunFactory, RunLeaseFactory
from .past import ago, fresh, insert_runs, old
from .support import (
    backends,
    expire,
    granted,
    manage,
    open_transaction,
    refused,
    spawn_manage,
    together,
    wait_for,
    wish,
)
from .terminal import Terminal

DONE = store.Closing(outcome=Outcome.SUCCEEDED)
LONG_AGO = Now() - Seconds(timedelta(days=60))
JOB = "charge_due_invoices"


def run(*words, **options):
    out = StringIO()
    call_command("runlease", *words, stdout=out, **options)
    return out.getvalue()


def fails(*words, **options):
    """The exit code and the message with which the command refuses."""
    with pytest.raises(CommandError) as caught:
        run(*words, **options)
    assert "\n" not in str(caught.value)
    return caught.value.returncode, str(caught.value)


def remove(name="job", unclaimed_for=0.0):
    length = timedelta(seconds=unclaimed_for)
    return store.remove(name, "default", by="ann", unclaimed_for=length)


def names():
    return set(RunLease.objects.values_list("name", flat=True))


# -- prune


@pytest.mark.django_db
def test_prune_keeps_what_the_settings_say_and_tells_what_it_removed(settings):
    fresh()
    old(31, 2, outcome=Outcome.FAILED)
    old(8, declined=True)
    Alert.objects.create(
        kind="lost", severity="warning", lease_name="job", opened_at=ago(90), resolved_at=ago(80)
    )
    OperatorAction.objects.create(kind="resumed", lease_name="job", by="ann", at=ago(31))
    assert run("prune") == (
        "Removed 2 runs, 1 declined tick, 1 resolved alert and 1 operator action. "
        "Runs are kept for 30d, declined ticks for 7d.\n"
    )
    settings.RUNLEASE = {"KEEP_RUNS": "10d", "KEEP_DECLINES": timedelta(days=1)}
    old(11, outcome=Outcome.FAILED)
    old(2, declined=True)
    assert run("prune").startswith("Removed 1 run, 1 declined tick, 0 resolved alerts and ")


@pytest.mark.django_db
def test_a_history_may_be_kept_for_years(settings):
    settings.RUNLEASE = {"KEEP_RUNS": "900d"}
    fresh()
    old(800, outcome=Outcome.FAILED)
    assert run("prune").startswith("Removed 0 runs")
    assert run("prune", "--keep-runs", "850d").startswith("Removed 0 runs")
    assert run("prune", "--keep-runs", "750d").startswith("Removed 1 run,")
    assert len(json.loads(run("history", "--since", "850d", "--json"))) == 1


@pytest.mark.django_db
def test_prune_takes_other_lengths_and_prints_json():
    fresh()
    old(2, outcome=Outcome.FAILED)
    old(0.1, 3, declined=True)
    told = json.loads(run("prune", "--keep-runs", "1d", "--keep-declines", "1h", "--json"))
    assert told == {
        "runs": 1,
        "declines": 3,
        "alerts": 0,
        "actions": 0,
        "keep_runs": 86400,
        "keep_declines": 3600,
    }


@pytest.mark.django_db
@pytest.mark.parametrize("words", [["--keep-runs", "never"], ["--keep-declines", "0"]])
def test_a_bad_length_is_exit_2_names_its_option_and_removes_nothing(words):
    old(400, 2, outcome=Outcome.FAILED)
    code, message = fails("prune", *words)
    assert (code, message.startswith(f"{words[0]}: ")) == (2, True)
    assert Run.objects.count() == 2


@pytest.mark.django_db
def test_a_bad_length_in_the_settings_is_exit_2_and_names_the_key(settings):
    settings.RUNLEASE = {"KEEP_DECLINES": "a week"}
    code, message = fails("prune")
    assert (code, message.startswith('RUNLEASE["KEEP_DECLINES"]: ')) == (2, True)


@pytest.mark.django_db(transaction=True)
def test_a_terminal_shows_a_bar_that_is_gone_at_the_end_and_a_pipe_none():
    insert_runs(8)
    terminal = Terminal("prune")
    code, out = terminal.end()
    assert (code, out.startswith("Removed 4 runs, 4 declined ticks")) == (0, True)
    assert re.search(r"\r\[#+\] 100%  8 removed\x1b\[K", terminal.shown)
    assert terminal.shown.endswith("\r\x1b[K")
    assert manage("runlease", "prune").stderr == ""


SLOW = """
    CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN
            WHILE NOT pg_try_advisory_xact_lock_shared(4711) LOOP
                PERFORM pg_sleep(0.01);
            END LOOP;
            RETURN NULL;
        END $$;
    CREATE TRIGGER slow AFTER DELETE ON runlease_run EXECUTE FUNCTION slow();
"""


@pytest.fixture
def slow_deletes(transactional_db):
    """Deletes from the history wait for whoever has the advisory lock 4711."""
    with connection.cursor() as cursor:
        cursor.execute(SLOW)
        yield
        cursor.execute("DROP TRIGGER slow ON runlease_run; DROP FUNCTION slow")


def test_a_prune_that_is_interrupted_ends_its_batch_says_so_and_the_next_goes_on(slow_deletes):
    insert_runs(20_000)
    with open_transaction("SELECT pg_advisory_xact_lock(4711)") as finish:
        process = spawn_manage("runlease", "prune")
        wait_for(lambda: backends("wait_event = 'PgSleep'") or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        finish.set()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.startswith("CommandError: interrupted: removed 2,500 runs, 2,500 declined ticks")
    assert "the next prune goes on from there" in err
    assert Run.objects.count() == 15_001
    run("prune")
    assert Run.objects.count() == 1


# -- unused leases


@pytest.fixture
def leases(db):
    """Unused ones, and one that is not for each reason."""
    RunLeaseFactory(name="unused", claimed_at=LONG_AGO)
    RunLeaseFactory(name="never claimed")
    RunLeaseFactory(name="ghost", expired=True, claimed_at=LONG_AGO)
    RunLeaseFactory(name="held", held=True, claimed_at=LONG_AGO)
    RunLeaseFactory(name="recent", claimed_at=Now())
    RunLeaseFactory(name=JOB, claimed_at=LONG_AGO)
    RunLeaseFactory(name="clearsessions", claimed_at=LONG_AGO)
    RunLeaseFactory(name="migrate", claimed_at=LONG_AGO)


def test_unused_leases_are_those_of_no_job_that_nobody_holds_or_claimed_of_late(leases):
    told = json.loads(run("list", "--unused", "--json"))
    assert [lease["name"] for lease in told] == ["ghost", "never claimed", "unused"]
    assert "held" not in run("list", "--unused")
    assert len(run("list", "--unused").splitlines()) == 4
    assert len(json.loads(run("list", "--json"))) == 8


@pytest.mark.django_db
def test_how_long_a_lease_has_to_be_unclaimed_is_keep_runs(settings):
    RunLeaseFactory(name="job", claimed_at=ago(10))
    assert run("list", "--unused") == (
        "No lease is unused: each was claimed in the last 30d, or belongs to a job.\n"
    )
    settings.RUNLEASE = {"KEEP_RUNS": "9d"}
    assert "job" in run("list", "--unused")


@pytest.mark.django_db(transaction=True)
def test_an_unused_lease_is_removed_by_its_name_and_its_history_stays():
    RunLeaseFactory(name="job", claimed_at=LONG_AGO, generation=7)
    RunLeaseFactory(name="job 2", claimed_at=LONG_AGO)
    RunFactory(lease_name="job")
    text = run("prune", remove="job", yes=True)
    assert text == "job: removed. If it is claimed again, it starts above 7.\n"
    assert names() == {"job 2"}
    assert Run.objects.count() == 1
    assert granted().generation == 8
    told = json.loads(run("prune", "--remove", "job 2", "--yes", "--json"))
    assert told == {"name": "job 2", "generation": 1}


@pytest.mark.django_db
def test_a_removal_prunes_nothing_else():
    RunLeaseFactory(name="job", claimed_at=LONG_AGO)
    old(400, 2, outcome=Outcome.FAILED)
    run("prune", remove="job", yes=True)
    assert Run.objects.count() == 2


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("held", "manage.py runlease break"),
        ("ghost", "manage.py runlease break"),
        ("recent", "--keep-runs"),
        (JOB, "Take it out of jobs.py"),
        ("clearsessions", "Take it out of jobs.py"),
        ("migrate", "Take it out of jobs.py"),
    ],
)
def test_a_lease_that_is_in_use_is_not_removed_even_with_yes(leases, name, remedy):
    before = names()
    code, message = fails("prune", remove=name, yes=True)
    assert (code, message.startswith(f"{name} was not removed: ")) == (1, True)
    assert remedy in message
    assert names() == before


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"paused": True}, "manage.py runlease resume"),
        ({"not_before": Now() + Seconds(timedelta(hours=1))}, "minimum hold lasts for another"),
    ],
)
def test_a_lease_that_declines_claims_is_not_removed(fields, remedy):
    RunLeaseFactory(name="job", claimed_at=LONG_AGO, **fields)
    code, message = fails("prune", remove="job", yes=True)
    assert (code, remedy in message) == (1, True)
    assert names() == {"job"}


@pytest.mark.django_db
def test_a_shorter_time_lets_a_lease_be_removed_sooner():
    RunLeaseFactory(name="job", claimed_at=ago(1))
    assert fails("prune", "--remove", "job", "--yes", "--keep-runs", "2d")[0] == 1
    run("prune", "--remove", "job", "--yes", "--keep-runs", "1h")
    assert names() == set()


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["nobody", " x", ""])
def test_an_unknown_or_bad_name_is_exit_2(name):
    assert fails("prune", remove=name, yes=True)[0] == 2


@pytest.mark.django_db(transaction=True)
def test_without_a_terminal_a_removal_wants_yes_and_removes_nothing():
    RunLeaseFactory(name="job", claimed_at=LONG_AGO)
    done = manage("runlease", "prune", "--remove", "job", stdin=DEVNULL)
    assert (done.returncode, "add --yes" in done.stderr) == (2, True)
    assert names() == {"job"}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, set()), ("n\n", 1, {"job"})])
def test_on_a_terminal_a_removal_asks(answer, code, left):
    RunLeaseFactory(name="job", claimed_at=LONG_AGO, generation=7)
    terminal = Terminal("prune", "--remove", "job")
    terminal.read_until("Remove it? [y/N] ")
    assert "generation 7" in terminal.shown
    terminal.type(answer)
    assert terminal.end()[0] == code
    assert names() == left


# -- what is known of a removed lease


@pytest.mark.django_db
def test_the_generation_of_a_removed_lease_is_kept_above_its_history_after_a_break_too():
    granted()
    store.break_lease("job", "default", by="ann", at_once=True)
    assert remove() == 2
    assert Run.objects.get().generation == 1
    assert Tally.objects.get(measure=Measure.GENERATION).count == 2
    assert granted().generation == 3


@pytest.mark.django_db
def test_the_generation_is_kept_when_all_runs_of_the_name_are_gone():
    store.release(granted(), DONE)
    remove()
    Run.objects.all().delete()
    assert granted().generation == 2


@pytest.mark.django_db
def test_a_lease_can_be_removed_again_and_again_and_its_generation_never_falls():
    for generation in range(1, 5):
        claimed = granted()
        assert claimed.generation == generation
        store.release(claimed, DONE)
        assert remove() == generation
    RunLeaseFactory(name="job", generation=2)
    remove()
    assert Tally.objects.get(measure=Measure.GENERATION).count == 4


@pytest.mark.django_db
def test_a_removed_lease_forgets_no_counter():
    store.release(granted(), DONE)
    RunFactory(lease_name="job", declined=True)
    before = metrics.text()
    remove()
    assert 'lease="job"' not in metrics.text()
    store.pause("job", "default", by="ann")
    store.resume("job", "default", by="ann")
    counters = [line for line in before.splitlines() if re.match(r"\w+_(total|bucket|sum)", line)]
    assert set(counters) <= set(metrics.text().splitlines())


@pytest.mark.django_db
def test_a_removal_is_logged(caplog):
    caplog.set_level("INFO", logger="django_runlease")
    RunLeaseFactory(name="job", generation=7)
    remove()
    record = caplog.records[-1]
    assert (record.event, record.lease, record.by, record.generation) == (
        *("lease_removed", "job", "ann", 7),
    )


@pytest.mark.django_db
def test_a_lease_that_does_not_exist_cannot_be_removed():
    with pytest.raises(RunLeaseError, match="there is no lease 'job'"):
        remove()


@pytest.mark.django_db
def test_a_lease_whose_holder_never_released_is_not_removed():
    claimed = granted()
    expire()
    with pytest.raises(Blocked, match="has not released it"):
        remove()
    assert claimed.token == RunLease.objects.get().token


@pytest.mark.django_db(transaction=True)
def test_a_claim_that_meets_a_removal_declines_or_goes_on_above_it():
    RunLeaseFactory(name="job", claimed_at=LONG_AGO, generation=7)
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        assert refused().declined.reason == "busy"
    remove()
    assert granted().generation == 8


@pytest.mark.django_db(transaction=True)
def test_of_claims_and_removals_at_once_no_generation_comes_twice(monkeypatch):
    monkeypatch.setattr(store.claims, "CREATIONS", 1000)
    removed, ended = threading.Event(), threading.Event()

    def claim_again_and_again():
        generations = []
        while len(generations) < 10 or not removed.is_set():
            result = store.claim(wish(), "default")
            if isinstance(result, Claimed):
                generations.append(result.generation)
                store.release(result, DONE)
        return generations

    def remove_again_and_again():
        # The claims, which do not wait for a locked row, have to get a turn.
        while not ended.wait(0.01):
            with suppress(RunLeaseError):
                remove()
                removed.set()
        return []

    def claim_all():
        try:
            return [n for found in together(*[claim_again_and_again] * 3) for n in found]
        finally:
            ended.set()

    *_, generations = together(remove_again_and_again, remove_again_and_again, claim_all)
    assert len(generations) == len(set(generations)) >= 30
    assert granted().generation == max(generations) + 1


# -- metrics


@pytest.mark.django_db
def test_metrics_prints_the_text_format_or_json():
    RunLeaseFactory(name="job", held=True)
    assert 'runlease_held{lease="job"} 1.0\n' in run("metrics")
    assert any(metric["name"] == "runlease_held" for metric in json.loads(run("metrics", "--json")))


@pytest.mark.django_db
def test_metrics_replaces_a_file_that_others_may_read_and_leaves_nothing_beside_it(tmp_path):
    RunLeaseFactory(name="job", held=True)
    file = tmp_path / "runlease.prom"
    file.write_text("old")
    before = file.stat().st_ino
    assert run("metrics", "--output", str(file)) == ""
    assert file.read_text() == run("metrics")
    assert file.stat().st_ino != before, "a reader of the old file would see it change"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.django_db
def test_metrics_follows_a_link_to_the_file(tmp_path):
    (tmp_path / "real.prom").write_text("old")
    (tmp_path / "link.prom").symlink_to(tmp_path / "real.prom")
    run("metrics", output=str(tmp_path / "link.prom"))
    assert (tmp_path / "link.prom").is_symlink()
    assert (tmp_path / "real.prom").read_text().startswith("# HELP")


@pytest.mark.django_db
@pytest.mark.parametrize("place", ["nowhere/runlease.prom", "folder", "pipe"])
def test_a_file_that_cannot_be_replaced_is_exit_1_and_leaves_nothing_behind(tmp_path, place):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    code, message = fails("metrics", output=str(tmp_path / place))
    assert (code, message.startswith(f"--output {tmp_path / place}: ")) == (1, True)
    assert {each.name for each in tmp_path.iterdir()} == {"folder", "pipe"}


@pytest.mark.django_db(transaction=True)
def test_metrics_without_a_database_leaves_the_file_as_it_was(tmp_path):
    file = tmp_path / "runlease.prom"
    file.write_text("old")
    env = {"DATABASE_URL": "postgres://u@127.0.0.1:1/nothing"}
    assert manage("runlease", "metrics", "--output", str(file), env=env).returncode == 69
    assert file.read_text() == "old"


@pytest.mark.django_db(transaction=True)
def test_without_prometheus_client_metrics_is_exit_2_and_all_else_works(tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('hidden')")
    env = {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"}
    done = manage("runlease", "metrics", env=env)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert "pip install 'django-runlease[prometheus]'" in done.stderr
    assert manage("runlease", "prune", env=env).returncode == 0
    assert manage("check", env=env).returncode == 0
