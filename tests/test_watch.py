"""The watch over a run in this process: told in time, ended in time, and renewed until then."""

import faulthandler
import signal
import subprocess
import sys

import psutil
import pytest

from django_runlease import clock, lease, store
from django_runlease.clock import Now
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.watch import backstop, last_words

from .programs import end_backends, ended, gone_before_expiry
from .support import (
    DEADLINE,
    UNHURRIED,
    backends,
    elsewhere,
    environment,
    open_transaction,
    spawn_manage,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


def start(name, *options, code, **env):
    env = {**UNHURRIED, "CODE": code, **env}
    return spawn_manage("runjob", name, *options, env=env, stdin=subprocess.PIPE)


def started(name, *options, **more):
    process = start(name, *options, **more)
    line = process.stdout.readline()
    assert line == "ready\n", (line, process.communicate())
    return process


def finish(process, data=None):
    out, err = process.communicate(data, timeout=DEADLINE)
    return process.returncode, out, err


def row(name="code"):
    return RunLease.objects.get(name=name)


def only_run():
    return Run.objects.get()


# -- who keeps the heartbeat from its turn, and who does not


def test_a_job_that_never_gives_up_the_gil_is_ended_before_its_lease_expires():
    """With the stacks of its threads, and by a timer that a fork has not stopped."""
    code = """
        import ctypes, os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if not child:
            # It has no such timer, and does not wait for that of its parent.
            import faulthandler
            faulthandler.cancel_dump_traceback_later()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        say("ready")
        while True:
            ctypes.PyDLL(None).usleep(60_000_000)
    """
    process = started("code", "--ttl", "12", code=code)
    with ended(process):
        gone_before_expiry([process.pid], "code")
        code, _, err = finish(process)
    assert code in (1, 70)
    assert "usleep" in err or "in _run" in err


@pytest.mark.parametrize("ttl", [0.1, 1, 3, 5, 60])
def test_c_code_is_ended_after_the_last_words_and_before_the_lease_expires(ttl, monkeypatch):
    armed = []
    with lease("code", ttl=ttl, heartbeat=False) as held, monkeypatch.context() as patch:
        patch.setattr(faulthandler, "dump_traceback_later", lambda left, **_: armed.append(left))
        now = held.trusted_until
        patch.setattr(clock, "local", lambda: now)
        with backstop(held) as trust:
            trust(now)
        assert last_words(held) < armed[0] < ttl / 10


def test_a_job_that_blocks_the_event_loop_for_longer_than_its_lease_is_trusted_keeps_it():
    code = """
        from django_runlease import clock
        say("ready")
        end = held.trusted_until + 1
        while clock.local() < end:
            pass
        held.check()
    """
    process = started("async_code", "--ttl", "8", code=code)
    assert finish(process)[::2] == (0, "")
    assert (only_run().outcome, only_run().generation) == (Outcome.SUCCEEDED, 1)
    assert row("async_code").token is None


def test_a_job_that_holds_a_long_transaction_is_renewed_and_released():
    code = """
        from django.db import connection, transaction
        with transaction.atomic():
            with connection.cursor() as cursor:
                cursor.execute("SELECT 1 FROM billing_invoice FOR UPDATE")
                say("ready")
                cursor.execute("SELECT pg_sleep(5)")
        held.check()
    """
    process = started("code", "--ttl", "8", code=code)
    assert finish(process)[::2] == (0, "")
    assert (only_run().outcome, row().token) == (Outcome.SUCCEEDED, None)


def test_a_job_that_broke_its_transaction_is_renewed_and_released():
    code = """
        import time
        from django.db import DatabaseError, connection, transaction
        transaction.set_autocommit(False)
        try:
            connection.cursor().execute("SELECT nothing")
        except DatabaseError:
            say("ready")
        time.sleep(5)
        held.check()
    """
    process = started("code", "--ttl", "8", code=code)
    assert finish(process)[::2] == (0, "")
    assert (only_run().outcome, row().token) == (Outcome.SUCCEEDED, None)


@pytest.mark.parametrize("when", ["at its start", "while it is renewed", "at its end"])
def test_ended_backends_cost_neither_the_lease_nor_the_result(when):
    code = """
        import sys
        say("ready")
        sys.stdin.readline()
        held.check()
        say("on")
        sys.stdin.readline()
    """
    process = started("code", "--ttl", "20", code=code)
    before = row().renewed_at
    if when == "at its start":
        end_backends()
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "on\n"
    if when == "while it is renewed":
        wait_for(lambda: row().renewed_at > before)
        end_backends()
        again = row().renewed_at
        wait_for(lambda: row().renewed_at > again)
    if when == "at its end":
        end_backends()
    code, out, err = finish(process, "\n")
    assert (code, out) == (0, ""), err
    assert (only_run().outcome, row().token) == (Outcome.SUCCEEDED, None)


# -- renewed until the job is dead

CLEAN_UP = """
    import time
    try:
        say("ready")
        time.sleep(600)
    finally:
        time.sleep(7)
        held.check()
        say(held.remaining() > 0)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_clean_up_that_is_longer_than_the_ttl_is_renewed_until_it_is_done(number, code):
    process = started("code", "--ttl", "6", "--grace", "60", code=CLEAN_UP)
    with ended(process):
        process.send_signal(number)
        gone_before_expiry_unless_released(process)
        assert finish(process) == (code, "True\n", f"code: stopped by {number.name}\n")
    assert (only_run().outcome, only_run().generation) == (Outcome.TERMINATED, 1)
    assert row().token is None


def gone_before_expiry_unless_released(process):
    def over():
        expired = RunLease.objects.with_state().get(name="code").state == "expired"
        assert not expired
        return process.poll() is not None

    wait_for(over)


def test_a_clean_up_after_a_timeout_is_renewed_too():
    # A check would raise again: it is late.
    code = CLEAN_UP.replace("held.check()", "held.raise_if_lost()")
    code = code.replace('say("ready")', 'say("ready"); held._started -= 600')
    process = started("code", "--ttl", "6", "--timeout", "10m", "--grace", "60", code=code)
    assert finish(process)[:2] == (124, "True\n")
    assert (only_run().outcome, row().token) == (Outcome.TIMED_OUT, None)


def as_process_1(*options, code):
    words = [sys.executable, "manage.py", "runjob", "code", *options]
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *words],
        env=environment(**UNHURRIED, CODE=code),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert outside.stdout.readline() == "ready\n"
    (runjob,) = psutil.Process(outside.pid).children()
    return outside, runjob


def test_as_process_1_the_second_sigterm_ends_at_once_too():
    """There the default action of a signal is nothing."""
    code = CLEAN_UP.replace("time.sleep(7)", "say('cleaning'); time.sleep(600)")
    outside, runjob = as_process_1("--grace", "600", code=code)
    with ended(outside, [runjob.pid]):
        runjob.terminate()
        assert outside.stdout.readline() == "cleaning\n"
        runjob.terminate()
        outside.wait(DEADLINE)
        wait_for(lambda: not runjob.is_running())


@pytest.mark.parametrize("code", [CLEAN_UP, "say('ready'); import time; time.sleep(600)"])
def test_as_process_1_it_takes_a_sigterm(code):
    outside, runjob = as_process_1("--ttl", "6", "--grace", "60", code=code)
    with ended(outside, [runjob.pid]):
        runjob.terminate()
        code, _, err = finish(outside)
    assert (code, err) == (143, "code: stopped by SIGTERM\n")
    assert (only_run().outcome, row().token) == (Outcome.TERMINATED, None)


def test_a_sigterm_that_another_thread_takes_stops_the_job_in_its_sleep():
    """The same as one that comes in the moment before the sleep."""
    code = """
        import signal, threading, time
        def take():
            time.sleep(0.5)
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        threading.Thread(target=take).start()
        time.sleep(600)
    """
    process = start("code", code=code)
    with ended(process):
        assert finish(process)[::2] == (143, "code: stopped by SIGTERM\n")


# -- told before its time is over, and ended by then

TELL = """
    from django_runlease import LeaseLost
    import time
    try:
        say("ready")
        time.sleep(600)
    except LeaseLost as loss:
        from django_runlease import clock
        say(f"{clock.local() < held.trusted_until} {held.lost_reason}")
        raise
"""


def test_a_job_that_cannot_be_renewed_is_told_before_its_trusted_time_is_over():
    process = started("code", "--ttl", "24", code=TELL)
    with table_locked():
        assert process.stdout.readline() == "True unreachable\n"
    code, _, err = finish(process)
    assert code == 70
    assert "renewed nothing for" in err
    assert only_run().outcome == Outcome.LOST


def table_locked():
    return open_transaction("LOCK TABLE runlease_runlease IN ACCESS EXCLUSIVE MODE")


def test_a_job_whose_lease_is_broken_is_told_at_once():
    process = started("code", "--ttl", "30", code=TELL)
    elsewhere(lambda: store.break_lease("code", "default", by="ops"))
    assert process.stdout.readline() == "True broken\n"
    code, _, err = finish(process)
    assert code == 70
    assert "broken by ops" in err
    assert (only_run().outcome, only_run().exit_code) == (Outcome.LOST, 70)


SWALLOW = """
    import time
    said = False
    while True:
        try:
            if not said:
                said = True
                say("ready")
            time.sleep(600)
        except BaseException:
            pass
"""


def test_a_job_that_swallows_the_loss_is_ended_before_its_lease_expires_and_its_run_says_so():
    process = started("code", "--ttl", "8", code=SWALLOW)
    with ended(process):
        # So that nothing is renewed; what was broken does not count here.
        waiting = "wait_event_type = 'Lock' AND query LIKE '%WITH wanted%'"
        with table_locked():
            wait_for(lambda: backends(waiting))
            assert process.wait(DEADLINE) == 70
        assert RunLease.objects.with_state().get(name="code").state in ("held", "expired")
        _, _, err = finish(process)
    assert "the process is ended" in err
    wait_for(lambda: only_run().outcome != Outcome.RUNNING)
    assert (only_run().outcome, only_run().exit_code) == (Outcome.LOST, 70)


def test_a_job_that_swallows_a_break_is_ended_before_the_next_may_start():
    process = started("code", "--ttl", "8", code=SWALLOW)
    with ended(process):
        elsewhere(lambda: store.break_lease("code", "default", by="ops"))

        def gone():
            due = RunLease.objects.get(name="code").not_before
            over = RunLease.objects.filter(not_before=due, not_before__lte=Now()).exists()
            alive = process.poll() is None
            assert not (over and alive)
            return not alive

        wait_for(gone)
        assert process.returncode == 70
    assert (only_run().outcome, only_run().exit_code) == (Outcome.LOST, 70)
