"""``manage.py runjob``: in this process for what is declined or refused, as a process for runs."""

import json
import os
import re
import signal
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings

from django_runlease import jobs, store
from django_runlease.clock import Now, Seconds
from django_runlease.management.commands.runjob import Command
from django_runlease.models import Outcome, Run, RunLease
from example_project.billing.models import Invoice

from .factories import InvoiceFactory, RunFactory, RunLeaseFactory
from .support import DEADLINE, UNHURRIED, database_url, granted, spawn_manage, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

SLEEP = "say('ready'); import time; time.sleep(600)"


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


SILENT = Done(0, "", "")


def start(name, *options, code="", **env):
    """A process of its own that runs a job of the test app; *code* is what the job `code` does."""
    env = {**UNHURRIED, "CODE": code, **env}
    return spawn_manage("runjob", name, *options, env=env)


def finish(process):
    try:
        out, err = process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
    return Done(process.returncode, out, err)


def run(name, *options, **more):
    return finish(start(name, *options, **more))


def started(name, *options, **more):
    """A process whose job has said that it is ready."""
    process = start(name, *options, **more)
    line = process.stdout.readline()
    assert line == "ready\n", (line, finish(process))
    return process


def inline(capsys, *argv):
    """The command as ``manage.py`` calls it, in this process."""
    capsys.readouterr()
    code = 0
    try:
        Command().run_from_argv(["manage.py", "runjob", *argv])
    except SystemExit as ending:
        code = ending.code
    return Done(code, *capsys.readouterr())


def only_run():
    return Run.objects.get()


def lease_row(name="code"):
    return RunLease.objects.get(name=name)


@pytest.fixture
def registered():
    """Register a function as a job of this process, for the test."""
    jobs.registered()
    with patch.dict(jobs._registered):

        def register(function, name="inline", **terms):
            jobs.job(name, **terms)(function)
            return name

        yield register


# -- two ticks at once


def test_of_two_ticks_started_at_once_one_runs_and_the_other_declines_silently():
    wait_for_the_decline = """
        import time
        from django_runlease.models import Run
        declines = held.generation
        while Run.objects.filter(outcome="declined").count() < declines:
            time.sleep(0.01)
    """
    for number in range(1, 4):
        ticks = [start("code", code=wait_for_the_decline) for _ in range(2)]
        assert [finish(tick) for tick in ticks] == [SILENT, SILENT]
        found = Run.objects.values_list("outcome", flat=True)
        assert sorted(found) == ["declined"] * number + ["succeeded"] * number
    holders = Run.objects.filter(outcome="succeeded").values_list("holder", flat=True)
    declined = Run.objects.filter(outcome="declined").values_list("holder", "reason")
    assert {holder for holder, _ in declined} <= {*holders, ""}
    assert {reason for _, reason in declined} <= {"held", "busy"}
    assert lease_row().generation == 3


# -- declined


@pytest.fixture
def held_elsewhere():
    return RunLeaseFactory(name="clearsessions", held=True)


def test_a_decline_is_silent_and_exits_0(held_elsewhere):
    assert run("clearsessions") == SILENT
    assert (only_run().outcome, only_run().trigger) == (Outcome.DECLINED, "runjob")


def test_a_decline_says_at_verbosity_2_who_holds_it_since_when(capsys, held_elsewhere):
    done = inline(capsys, "clearsessions", "-v", "2")
    since = f"{RunLease.objects.get().claimed_at:%Y-%m-%d %H:%M:%S} UTC"
    line = f"clearsessions: declined, held by elsewhere:4711 since {since}\n"
    assert done == Done(0, line, "")


@pytest.mark.parametrize(
    ("options", "setting", "code"),
    [
        (["-E", "75"], 0, 75),
        (["-E", "0"], 7, 0),
        (["--conflict-exit-code=3"], 7, 3),
        ([], 7, 7),
        (["-n"], 7, 7),
        (["--nonblock", "-E", "255"], 0, 255),
        (["-w", "0.1"], 0, 75),
        (["--wait", "100ms"], 7, 75),
        (["-w", "0.1", "-E", "0"], 7, 0),
        (["-w", "0.1", "-E", "9"], 0, 9),
    ],
)
def test_the_exit_code_of_a_decline_is_e_else_75_after_waiting_else_the_setting(
    capsys, held_elsewhere, options, setting, code
):
    with override_settings(RUNLEASE={"CONFLICT_EXIT_CODE": setting}):
        assert inline(capsys, "clearsessions", *options) == Done(code, "", "")
    assert only_run().reason == "held"


def test_a_declined_tick_with_e_is_silent_as_a_process_too(held_elsewhere):
    assert run("clearsessions", "-E", "75") == Done(75, "", "")
    assert run("clearsessions", "--wait", "0.1") == Done(75, "", "")


def test_a_pause_is_no_waiting_in_vain(capsys):
    RunLeaseFactory(name="clearsessions", paused=True)
    assert inline(capsys, "clearsessions", "--wait", "60") == SILENT
    done = inline(capsys, "clearsessions", "-v", "2")
    assert done == Done(0, "clearsessions: declined, paused by an operator\n", "")


def test_a_decline_in_code_returns_or_raises_without_ending_the_program(held_elsewhere, capsys):
    assert call_command("runjob", "clearsessions") is None
    for code in (75, 1):
        with pytest.raises(CommandError, match="declined, held by elsewhere") as caught:
            call_command("runjob", "clearsessions", conflict_exit_code=code)
        assert caught.value.returncode == code
    with pytest.raises(CommandError) as caught:
        call_command("runjob", "clearsessions", "--wait", "0.1")
    assert caught.value.returncode == 75
    assert capsys.readouterr() == ("", "")


# -- good runs


def test_a_good_run_is_silent_and_in_the_history():
    assert run("code", code="assert held.name == 'code'") == SILENT
    good = only_run()
    assert (good.outcome, good.exit_code, good.error) == (Outcome.SUCCEEDED, 0, "")
    assert (good.trigger, good.generation, good.waited) == ("runjob", 1, timedelta(0))
    assert good.finished_at >= good.started_at
    assert lease_row().token is None


def test_inside_the_job_the_lease_is_the_current_one_and_held():
    code = """
        from django_runlease import current_lease
        from django_runlease.models import RunLease
        assert current_lease() is held
        assert RunLease.objects.get(name="code").token == held.token
        held.check()
    """
    assert run("code", code=code) == SILENT


def test_an_async_job_runs_under_its_lease():
    code = """
        from django_runlease import current_lease
        await asyncio.sleep(0.01)
        assert current_lease() is held
        say("ran")
    """
    assert run("async_code", code=code) == Done(0, "ran\n", "")
    assert only_run().outcome == Outcome.SUCCEEDED


def test_a_callable_that_is_no_function_may_be_a_job():
    assert run("partial") == Done(0, "partial\n", "")


def test_management_commands_run_under_their_own_name_or_that_of_an_entry(capfd, registered):
    call_command("runjob", "clearsessions")
    call_command("runjob", "check")
    out = capfd.readouterr().out
    assert "no issues" in out
    with override_settings(
        RUNLEASE={"JOBS": {"a list": {"command": ["runlease", "list", "--json"]}}}
    ):
        call_command("runjob", "a list")
    listed = json.loads(capfd.readouterr().out)
    assert [lease["name"] for lease in listed] == ["a list", "check", "clearsessions"]
    assert set(Run.objects.values_list("outcome", flat=True)) == {Outcome.SUCCEEDED}


def test_a_management_command_runs_as_a_process():
    assert run("clearsessions") == SILENT
    assert lease_row("clearsessions").ttl == timedelta(minutes=10)
    done = run("alias")
    assert [lease["name"] for lease in json.loads(done.out)] == ["alias", "clearsessions"]
    assert (done.code, done.err) == (0, "")


def test_a_good_run_in_code_returns(registered, capsys):
    ran = []
    name = registered(lambda held: ran.append(held.generation))
    call_command("runjob", name)
    call_command("runjob", name, ttl="1m", at_least="10s", verbosity=2)
    assert ran == [1, 2]
    assert capsys.readouterr() == ("inline: succeeded\n", "")
    assert lease_row(name).ttl == timedelta(minutes=1)


def test_terms_come_from_the_command_line_else_the_decorator_else_the_entry(registered):
    terms = []
    name = registered(lambda held: terms.append(held.ttl.total_seconds()), ttl="7m")
    entry = {"JOBS": {name: {"ttl": "9m", "every": "1h"}, "check": {"ttl": "8m"}}, "TTL": "3m"}
    with override_settings(RUNLEASE=entry):
        call_command("runjob", name)
        call_command("runjob", name, "--ttl", "1m")
        assert lease_row(name).every == timedelta(hours=1)
        call_command("runjob", name, "--every", "2h")
        assert lease_row(name).every == timedelta(hours=2)
        call_command("runjob", "check", verbosity=0)
        assert lease_row("check").ttl == timedelta(minutes=8)
    with override_settings(RUNLEASE={"TTL": "3m"}):
        call_command("runjob", registered(lambda held: terms.append(held.ttl.total_seconds()), "o"))
    assert terms == [420, 60, 420, 180]


def test_terms_of_a_process_come_from_the_decorator_before_the_entry():
    assert run("termed") == SILENT
    row = lease_row("termed")
    assert (row.ttl, row.every) == (timedelta(minutes=7), timedelta(hours=1))
    assert row.not_before is not None


# -- failed runs


FAILURES = [
    ("raise ZeroDivisionError('odd')", 1, Outcome.FAILED),
    (
        "from django.core.management import CommandError as E; raise E('no', returncode=3)",
        3,
        "failed",
    ),
    ("raise SystemExit('text')", 1, Outcome.FAILED),
    ("raise SystemExit(256)", 1, Outcome.FAILED),
    ("raise SystemExit(-1)", 255, Outcome.FAILED),
    ("raise SystemExit", 0, Outcome.SUCCEEDED),
    ("raise KeyboardInterrupt", 130, Outcome.TERMINATED),
]


def test_the_exit_code_says_how_the_job_failed_and_so_does_the_history():
    ticks = [start(f"code-{n}", code=code) for n, (code, *_) in enumerate(FAILURES)]
    ended = [finish(tick) for tick in ticks]
    for number, (_, code, outcome) in enumerate(FAILURES):
        tick_run = Run.objects.get(lease_name=f"code-{number}")
        told = (ended[number].code, tick_run.exit_code, tick_run.outcome)
        assert told == (code, code, outcome), FAILURES[number]
        assert ended[number].out == ""
        assert bool(ended[number].err) == bool(code)
        assert lease_row(f"code-{number}").token is None
    failed = Run.objects.get(lease_name="code-0")
    for text in (ended[0].err, failed.error):
        assert "Traceback (most recent call last)" in text
        assert "ZeroDivisionError: odd" in text
    assert ended[0].err.endswith("code-0: ZeroDivisionError: odd\n")
    assert failed.reason == "ZeroDivisionError: odd"
    assert ended[1].err == "code-1: CommandError: no\n"
    assert ended[2].err == "code-2: SystemExit: text\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("odd"), 1),
        (CommandError("no", returncode=3), 3),
        (SystemExit(3), 3),
        (SystemExit("text"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_a_failed_run_in_code_raises_a_command_error_with_the_code(registered, error, code):
    def fail(held):
        raise error

    with pytest.raises(CommandError) as caught:
        call_command("runjob", registered(fail))
    assert caught.value.returncode == code
    assert caught.value.__cause__ is error
    assert only_run().exit_code == code


def test_a_system_exit_of_0_in_code_returns(registered):
    def leave(held):
        raise SystemExit(0)

    assert call_command("runjob", registered(leave)) is None


def test_a_job_that_leaves_its_connection_broken_is_released_all_the_same():
    code = """
        from django.db import connection, transaction
        transaction.set_autocommit(False)
        try:
            connection.cursor().execute("SELECT nothing")
        except Exception:
            pass
    """
    assert run("code", code=code) == SILENT
    assert lease_row().token is None


# -- signals


CLEAN_UP = """
    import time
    from django_runlease.models import RunLease
    try:
        say("ready")
        time.sleep(60)
    finally:
        say(f"held: {RunLease.objects.get(name=held.name).token == held.token}")
        held.check()
        say("clean")
"""
SWALLOW = """
    import time
    try:
        say("ready")
        time.sleep(60)
    except BaseException:
        say("swallowed")
"""
ASYNC_CLEAN_UP = """
    try:
        say("ready")
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.01)
        held.check()
        say("clean")
"""


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("code", CLEAN_UP, "held: True\nclean\n"),
        ("code", SWALLOW, "swallowed\n"),
        ("async_code", ASYNC_CLEAN_UP, "clean\n"),
    ],
)
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_the_job_clean_up_while_it_holds_and_then_releases(
    name, code, said, number, exit_code
):
    process = started(name, code=code)
    process.send_signal(number)
    done = finish(process)
    assert (done.code, done.out) == (exit_code, said)
    assert done.err == f"{name}: stopped by {number.name}\n"
    assert lease_row(name).token is None
    stopped = only_run()
    assert (stopped.outcome, stopped.exit_code) == (Outcome.TERMINATED, exit_code)
    assert stopped.reason == f"stopped by {number.name}"


def test_a_second_sigterm_ends_at_once():
    code = """
        import time
        try:
            say("ready")
            time.sleep(60)
        finally:
            say("cleaning")
            time.sleep(60)
    """
    process = started("code", "--grace", "60s", code=code)
    process.terminate()
    assert process.stdout.readline() == "cleaning\n"
    process.terminate()
    assert finish(process).code == -signal.SIGTERM
    assert lease_row().token is not None


def test_a_stopped_job_that_does_not_end_within_its_grace_is_ended():
    process = started("code", "--grace", "0.3", code=STUBBORN)
    process.terminate()
    done = finish(process)
    assert done.code == 143
    assert "the process is ended" in done.err
    assert lease_row().token is not None
    assert (only_run().outcome, only_run().exit_code) == (Outcome.TERMINATED, 143)


STUBBORN = """
    import time
    words = ["ready"]
    while True:
        try:
            if words:
                say(words.pop())
            time.sleep(60)
        except BaseException:
            pass
"""


def backend(application, state, query="%"):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
            " AND state = %s AND query LIKE %s",
            [application, state, query],
        )
        return cursor.fetchone()[0]


def test_a_signal_ends_a_tick_that_waits_and_leaves_nothing():
    RunLeaseFactory(name="code", held=True)
    before = RunLease.objects.values().get()
    process = start("code", "--wait", "60", code="say('ran')", PGAPPNAME="waiting")
    wait_for(lambda: backend("waiting", "idle", "%COMMIT%"))
    process.terminate()
    done = finish(process)
    assert (done.code, done.out) == (143, "")
    assert done.err == "code: stopped while waiting for the lease\n"
    assert not Run.objects.exists()
    assert RunLease.objects.values().get() == before


def test_a_standby_takes_over_when_the_holder_releases():
    RunLeaseFactory(name="code", held=True, paused=True)
    process = start("code", "--standby", code="say('ran')", PGAPPNAME="standby")
    wait_for(lambda: backend("standby", "idle", "%COMMIT%"))
    RunLease.objects.update(token=None, expires_at=None, paused=False)
    assert finish(process) == Done(0, "ran\n", "")
    assert only_run().waited > timedelta(0)


def test_a_stopped_jobs_statement_is_cancelled_and_its_write_is_not_committed():
    InvoiceFactory(customer="before")
    code = """
        from django.db import connection
        say("ready")
        connection.cursor().execute(
            "UPDATE billing_invoice SET customer = 'after' FROM (SELECT pg_sleep(600)) AS slept"
        )
    """
    process = started("code", code=code, PGAPPNAME="updating")
    wait_for(lambda: backend("updating", "active", "%pg_sleep%"))
    process.terminate()
    done = finish(process)
    assert (done.code, done.out) == (143, "")
    assert not backend("updating", "active", "%pg_sleep%")
    with connection.cursor() as cursor:
        cursor.execute("SELECT customer FROM billing_invoice FOR UPDATE NOWAIT")
        assert cursor.fetchall() == [("before",)]
    assert only_run().outcome == Outcome.TERMINATED


# -- timeout, stall, loss


def test_timeout_and_stall_after_stop_the_job_with_124_unless_it_makes_progress():
    # The clock is not waited for: before each progress, it is 8 minutes later than at the last.
    progressing = """
        for done in range(3):
            held._progressed -= 480
            held.check()
            held.progress(done, 3)
    """
    ticks = {
        "timed_out": start("code-0", "--timeout", "0.5", code=SLEEP),
        "stalled": start("code-1", "--stall-after", "0.5", code=SLEEP),
        "succeeded": start("code-2", "--stall-after", "10m", code=progressing),
        "awaiting": start("async_code", "--timeout", "0.5", code="await asyncio.sleep(60)"),
    }
    done = {outcome: finish(tick) for outcome, tick in ticks.items()}
    assert {outcome: tick.code for outcome, tick in done.items()} == {
        "timed_out": 124,
        "stalled": 124,
        "succeeded": 0,
        "awaiting": 124,
    }
    assert done["timed_out"].err.endswith("code-0: ran longer than its timeout of 500ms\n")
    assert done["stalled"].err.endswith("code-1: made no progress for 500ms\n")
    runs = Run.objects.order_by("lease_name").values_list("outcome", "exit_code")
    assert list(runs) == [
        ("timed_out", 124),
        ("timed_out", 124),
        ("stalled", 124),
        ("succeeded", 0),
    ]
    assert not RunLease.objects.exclude(token=None).exists()


def test_a_job_that_swallows_its_timeout_is_ended_and_keeps_the_lease_until_it_expires():
    done = run("code", "--timeout", "0.3", "--grace", "0.3", code=STUBBORN)
    assert done.code == 124
    assert "ran longer than its timeout" in done.err
    assert lease_row().token is not None
    assert (only_run().outcome, only_run().exit_code) == (Outcome.TIMED_OUT, 124)
    assert only_run().finished_at is not None


def test_a_job_whose_lease_is_broken_is_told_and_exits_70():
    process = started("code", "--ttl", "20", code=SLEEP)
    store.break_lease("code", "default", by="ops")
    done = finish(process)
    assert done.code == 70
    assert re.search(r"^code: .*lease", done.err, re.MULTILINE)
    assert (only_run().outcome, only_run().exit_code) == (Outcome.LOST, 70)
    assert lease_row().token is None


def test_a_job_that_swallows_the_loss_is_ended_before_its_lease_would_have_expired():
    process = started("code", "--ttl", "8", code=STUBBORN)
    store.break_lease("code", "default", by="ops")

    def gone():
        over = RunLease.objects.filter(not_before__lte=Now()).exists()
        alive = process.poll() is None
        assert not (over and alive)
        return not alive

    wait_for(gone)
    assert lease_row().not_before is not None
    done = finish(process)
    assert done.code == 70
    assert "the process is ended" in done.err
    assert only_run().outcome == Outcome.LOST


def test_a_job_that_returns_although_its_lease_was_lost_exits_70():
    code = """
        from django_runlease import store
        store.break_lease("code", "default", by="ops")
    """
    done = run("code", code=code)
    assert done.code == 70
    assert re.search(
        r"^code: the lease was lost: broken by ops; .*returned$", done.err, re.MULTILINE
    )
    assert only_run().outcome == Outcome.LOST


def test_a_job_in_c_code_that_never_gives_up_the_gil_ends_too():
    code = "say('ready'); import re; re.match('(a+)+$', 'a' * 60 + 'b')"
    # For years, if nothing ended it.
    done = run("code", "--ttl", "8", code=code)
    assert done.code in (1, 70)
    assert done.out == "ready\n"
    assert done.err


@pytest.mark.parametrize("taken", [True, False])
def test_a_process_that_was_frozen_past_its_ttl_does_not_go_on(taken):
    code = """
        import time
        say("ready")
        while True:
            time.sleep(0.001)
    """
    # Not by the backstop for C code, which leaves no outcome.
    process = started("code", "--ttl", "6", code=code, UNHURRIED="600")
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: RunLease.objects.with_state().get().state == "expired")
    other = granted("code") if taken else None
    process.send_signal(signal.SIGCONT)
    done = finish(process)
    assert done.code == 70
    assert "lease" in done.err
    assert Run.objects.order_by("id")[0].outcome == Outcome.LOST
    if other is not None:
        assert lease_row().token == other.token


def test_a_process_that_was_frozen_for_long_does_nothing_more_when_it_wakes():
    """What ends it first is the backstop for C code, whose exit code is 1."""
    InvoiceFactory(customer="before")
    code = """
        import time
        from example_project.billing.models import Invoice
        say("ready")
        for _ in range(10_000):
            time.sleep(0.001)
        Invoice.objects.update(customer="after")
    """
    process = started("code", "--ttl", "6", code=code)
    process.send_signal(signal.SIGSTOP)
    ago = Now() - Seconds(timedelta(seconds=1))
    wait_for(lambda: RunLease.objects.filter(expires_at__lt=ago).exists())
    process.send_signal(signal.SIGCONT)
    assert finish(process).code in (1, 70)
    assert Invoice.objects.get().customer == "before"
    assert only_run().outcome in (Outcome.RUNNING, Outcome.LOST)


# -- the database does not answer


@pytest.fixture
def powerless():
    """A role that may log in, and nothing more."""
    name = f"{connection.settings_dict['NAME']}_powerless"
    role = connection.ops.quote_name(name)
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}; GRANT USAGE ON SCHEMA public TO {role}")
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_job_does_not_run_where_the_database_does_not_give_the_lease_and_69_says_so(powerless):
    url = database_url()
    ways = {
        "reached": "postgres://nobody@127.0.0.1:1/nothing",
        "migrate": f"{url}?options=-csearch_path%3Dnowhere",
        "grant": f"{url}?options=-crole%3D{powerless}",
    }
    tries = [(remedy, []) for remedy in ways]
    tries += [("reached", ["--wait", "60"]), ("reached", ["--dry-run"])]
    ticks = [
        start("code", *options, code="say('ran')", DATABASE_URL=ways[remedy])
        for remedy, options in tries
    ]
    for (remedy, options), tick in zip(tries, ticks, strict=True):
        done = finish(tick)
        assert (done.code, done.out) == (69, ""), (remedy, options, done)
        assert done.err.startswith("code: the job did not run: ")
        assert remedy in done.err
        assert done.err.count("\n") == 1
    assert not Run.objects.exists()
    assert not RunLease.objects.exists()


def test_an_unreachable_database_in_code_is_a_command_error(registered):
    with patch.dict(connection.settings_dict, HOST="127.0.0.1", PORT="1"):
        connection.close()
        with pytest.raises(CommandError, match="did not run") as caught:
            call_command("runjob", registered(lambda held: None))
    assert caught.value.returncode == 69


def test_a_tick_works_once_the_table_is_there():
    url = database_url()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE runlease_runlease RENAME TO elsewhere")
    try:
        done = run("code", code="say('ran')", DATABASE_URL=url)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE elsewhere RENAME TO runlease_runlease")
    assert (done.code, done.out) == (69, "")
    assert run("code", code="say('ran')").out == "ran\n"


# -- bad input


BAD_INPUT = [
    (["nosuch"], "there is no job 'nosuch'"),
    (["clearsesions"], 'did you mean "clearsessions"'),
    ([""], "name is empty"),
    ([" check"], "no space at either end: write 'check'"),
    (["a" * 201], "at most 200"),
    (["check\t"], "printable"),
    ([], "NAME"),
    (["check", "more"], "more"),
    (["check", "--tll", "5m"], "--tll"),
    (["check", "--ttl", "soon"], "ttl: 'soon' is not a duration"),
    (["check", "--ttl", "0"], "ttl: '0' is not a positive duration"),
    (["check", "--ttl=-5"], "ttl: '-5'"),
    (["check", "--ttl", "1ms"], "too short to be renewed"),
    (["check", "--ttl", "nan"], "ttl: 'nan'"),
    (["check", "--ttl", "999d"], "longer than 366 days"),
    (["check", "--every", ""], "every: ''"),
    (["check", "--at-least", "x"], "at_least: 'x'"),
    (["check", "--timeout", "x"], "timeout: 'x'"),
    (["check", "--stall-after", "x"], "stall_after: 'x'"),
    (["check", "--grace", "x"], "grace: 'x'"),
    (["check", "--grace", "0"], "grace: '0'"),
    (["check", "--wait", "x"], "wait: 'x'"),
    (["check", "-w", "0"], "wait: '0'"),
    (["check", "--every", "1m", "--at-least", "1m"], "shorter than every"),
    (["check", "--timeout", "1m", "--stall-after", "2m"], "shorter than timeout"),
    (["check", "-E", "256"], "-E: '256' is not an exit code: write a number from 0 to 255"),
    (["check", "-E=-1"], "-E"),
    (["check", "-E", "x"], "-E: 'x'"),
    (["check", "-E", ""], "-E: ''"),
    (["check", "-E", "1.5"], "-E: '1.5'"),
    (["check", "--tick", "tomorrow"], "--tick: 'tomorrow' is not ISO 8601"),
    (["check", "--tick", "2026-01-31T06:00:00"], "has no UTC offset"),
    (["check", "--tick", "2026-01-31"], "has no UTC offset"),
    (["check", "--tick", "2126-01-31T06:00:00+00:00"], "ahead of the database's clock"),
    (["check", "--tick", ""], "--tick"),
    (["check", "-w", "5", "-n"], "--wait and --nonblock contradict each other"),
    (["check", "-w", "5", "--standby"], "--wait and --standby contradict"),
    (["check", "-n", "--standby"], "--nonblock and --standby contradict"),
    (["check", "--using", "elsewhere"], "no database 'elsewhere'"),
    (["check", "--using", ""], "database"),
]


@pytest.mark.parametrize(("argv", "message"), BAD_INPUT)
def test_bad_input_is_refused_in_one_line_with_2_and_nothing_has_changed(capsys, argv, message):
    done = inline(capsys, *argv)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("runjob: ")
    assert message in done.err
    assert done.err.count("\n") == 1
    assert not RunLease.objects.exists()
    assert not Run.objects.exists()


@pytest.mark.parametrize(("argv", "message"), BAD_INPUT[:8])
def test_bad_input_in_code_is_a_command_error(argv, message):
    with pytest.raises(CommandError, match=re.escape(message)) as caught:
        call_command("runjob", *argv)
    assert caught.value.returncode == 2


def test_bad_input_of_a_process_is_refused_in_one_line():
    ticks = [start("nosuch"), start("code", "--nosuch")]
    for tick in ticks:
        done = finish(tick)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
        assert done.err.startswith("runjob: ")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"JOBS": {"check": {"tll": "5m"}}}, 'did you mean "ttl"'),
        ({"JOBS": {"check": {"ttl": "x"}}}, "ttl: 'x'"),
        ({"JOBS": {"check": {"command": "nosuch"}}}, "no management command 'nosuch'"),
        ({"JOBS": {"check": {"command": ["check"], "program": ["true"]}}}, "keep one of them"),
        ({"CONFLICT_EXIT_CODE": 256}, "CONFLICT_EXIT_CODE"),
        ({"TTL": "x"}, 'RUNLEASE["TTL"]'),
        ({"DATABASE": "elsewhere"}, "no database 'elsewhere'"),
        ([], "RUNLEASE is a dict"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line_with_2_and_nothing_has_changed(
    capsys, setting, message
):
    with override_settings(RUNLEASE=setting):
        done = inline(capsys, "check")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert message in done.err
    assert not RunLease.objects.exists()


def test_two_jobs_of_one_name_are_refused(capsys, registered):
    registered(lambda held: None)

    def another(held):
        raise AssertionError

    registered(another)
    done = inline(capsys, "inline")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "two jobs are called 'inline'" in done.err


# -- dry run, ticks, minimum hold


def test_a_dry_run_says_what_would_happen_and_changes_nothing(capsys):
    done = inline(capsys, "check", "--dry-run", "--ttl", "1m")
    assert done == Done(0, "check: manage.py check would run now (ttl 1m)\n", "")
    assert not RunLease.objects.exists()
    RunLeaseFactory(name="check", held=True)
    before = RunLease.objects.values().get()
    done = inline(capsys, "check", "--dry-run", "-E", "75")
    assert done.code == 0
    assert "would be declined, held by elsewhere:4711" in done.out
    assert RunLease.objects.values().get() == before
    assert not Run.objects.exists()


def test_a_dry_run_refuses_bad_input(capsys):
    tick = "2126-01-31T06:00:00+00:00"
    for argv in (["nosuch"], ["check", "--tick", tick], ["check", "--using", "elsewhere"]):
        done = inline(capsys, *argv, "--dry-run")
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_a_tick_runs_once_and_again_only_with_now():
    tick = datetime.now(UTC).replace(microsecond=0).isoformat()
    assert run("code", "--tick", tick, code="say('ran')").out == "ran\n"
    first = only_run()
    assert first.tick.isoformat() == tick
    assert timedelta(0) <= first.lag < timedelta(seconds=30)
    second = run("code", "--tick", tick, "-v", "2", code="say('ran')")
    assert second == Done(0, "code: declined, this tick has had its run\n", "")
    assert Run.objects.last().reason == "same_tick"
    assert run("code", "--tick", tick, "--now", code="say('ran')").out == "ran\n"


def test_a_tick_in_code_may_be_given_as_a_datetime(registered):
    tick = datetime.now(UTC)
    call_command("runjob", registered(lambda held: None), tick=tick)
    assert only_run().tick == tick


def test_a_minimum_hold_declines_the_next_tick_until_it_has_passed_or_with_now(registered):
    name = registered(lambda held: None, at_least="1m")
    call_command("runjob", name)
    with pytest.raises(CommandError, match="declined, not due before"):
        call_command("runjob", name, conflict_exit_code=75)
    call_command("runjob", name, now=True)
    runs = Run.objects.order_by("id").values_list("outcome", "reason")
    assert list(runs) == [("succeeded", ""), ("declined", "not_due"), ("succeeded", "")]


def test_now_ignores_no_holder(held_elsewhere):
    with pytest.raises(CommandError, match="declined, held"):
        call_command("runjob", "clearsessions", now=True, conflict_exit_code=75)


def test_a_crashed_tick_may_run_again():
    tick = datetime.now(UTC)
    RunLeaseFactory(name="check", expired=True, last_tick=tick)
    RunFactory(lease_name="check", running=True)
    call_command("runjob", "check", tick=tick.isoformat(), verbosity=0)
    assert set(Run.objects.values_list("outcome", flat=True)) == {"abandoned", "succeeded"}


# -- quiet success


NOISE = """
    import os, sys
    print("from python")
    print("from python", file=sys.stderr)
    os.system("echo from a child; echo from a child >&2")
    os.write(1, b"from c\\n")
    os.write(2, b"from c\\n")
"""
ALL_NOISE = {"from python", "from a child", "from c"}


def test_quiet_success_prints_nothing_of_a_good_run_and_everything_of_a_bad_one():
    assert run("code", "--quiet-success", code=NOISE) == SILENT
    loud = run("code", code=NOISE)
    assert set(loud.out.splitlines()) == set(loud.err.splitlines()) == ALL_NOISE
    bad = run("code", "--quiet-success", code=NOISE + "    raise ZeroDivisionError('odd')")
    assert bad.code == 1
    assert set(bad.out.splitlines()) == ALL_NOISE
    assert set(bad.err.splitlines()) >= ALL_NOISE
    assert bad.err.endswith("code: ZeroDivisionError: odd\n")


def test_quiet_success_prints_what_a_stopped_job_said():
    process = start("code", "--quiet-success", code=NOISE + "    import time; time.sleep(60)")
    wait_for(lambda: Run.objects.running().exists())
    process.terminate()
    done = finish(process)
    assert done.code == 143
    assert done.err.endswith("code: stopped by SIGTERM\n")


def test_quiet_success_prints_everything_of_a_run_that_had_to_be_ended():
    code = NOISE + "    held._started -= 600\n" + STUBBORN
    done = run("code", "--quiet-success", "--timeout", "10m", "--grace", "0.2", code=code)
    assert done.code == 124
    assert set(done.out.splitlines()) >= ALL_NOISE
    assert set(done.err.splitlines()) >= ALL_NOISE
    assert "the process is ended" in done.err


def test_quiet_success_in_code_prints_as_ever(registered, capsys):
    call_command("runjob", registered(lambda held: print("hello")), quiet_success=True)
    assert capsys.readouterr().out == "hello\n"


def test_the_token_is_in_no_output():
    code = (
        "from django_runlease.models import Run; Run.objects.update(reason=str(held.token)); 1 / 0"
    )
    done = run("code", "-v", "3", code=code)
    token = str(only_run().token)
    assert done.code == 1
    assert token not in done.out + done.err
    assert os.environ.get("RUNLEASE_TOKEN") is None
