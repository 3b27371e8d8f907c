"""The guard of a program: what becomes of it when its runjob is killed, frozen, or unguarded."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from django_runlease import clock
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.supervisor import GUARD

from .programs import all_gone, ended, gone_before_expiry, guards, is_alive, started
from .support import DEADLINE, manage, wait_for

# With a child, and a child's child that ignores what can be ignored.
FAMILY = """
    last = "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 3, 15)]; say('up'); sleep()"
    say(os.getpid(), *child(f"say('up', *child({last!r})); sleep()"))
    sleep()
"""


def guard_of(runjob):
    return wait_for(lambda: guards(runjob))[0]


# -- the guard alone


@contextmanager
def alone():
    """A guard process, and a process group with a member."""
    victim = subprocess.Popen(["sleep", "600"], process_group=0)
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", GUARD, "guard"],
        stdin=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )
    try:
        yield guard, victim
    finally:
        for process in (victim, guard):
            process.kill()
            process.wait()
        guard.stdin.close()


def tell(guard, text):
    guard.stdin.write(text.encode())


def test_it_kills_the_group_at_end_of_file():
    with alone() as (guard, victim):
        tell(guard, f"group {victim.pid}\n")
        guard.stdin.close()
        assert victim.wait(DEADLINE) == -signal.SIGKILL
        assert guard.wait(DEADLINE) == 0


def test_it_kills_the_group_when_the_last_time_it_was_told_has_passed():
    with alone() as (guard, victim):
        began = clock.local()
        # Read at once, so that the first counts as little as one that has been replaced in time.
        tell(guard, f"until {began - 1}\ngroup {victim.pid}\nuntil {began + 600}\n")
        until = clock.local() + 1
        tell(guard, f"until {until}\n")
        assert victim.wait(DEADLINE) == -signal.SIGKILL
        assert clock.local() >= until


def test_a_line_may_come_in_pieces():
    with alone() as (guard, victim):
        text = f"until {clock.local() + 600}\ngroup {victim.pid}\nuntil {clock.local()}\n"
        for character in text:
            tell(guard, character)
        assert victim.wait(DEADLINE) == -signal.SIGKILL


def test_without_a_group_it_kills_nothing():
    with alone() as (guard, victim):
        tell(guard, f"until {clock.local()}\n")
        assert guard.wait(DEADLINE) == 0
        assert victim.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_outlives_what_ends_a_service(number):
    with alone() as (guard, victim):
        tell(guard, f"group {victim.pid}\n")
        status = Path(f"/proc/{guard.pid}/status")
        mask = lambda: int(status.read_text().partition("SigIgn:")[2].split()[0], 16)  # noqa: E731
        wait_for(lambda: mask() >> (number - 1) & 1)
        guard.send_signal(number)
        time.sleep(0.1)
        assert guard.poll() is None
        guard.stdin.close()
        assert victim.wait(DEADLINE) == -signal.SIGKILL


def test_the_gate_runs_nothing_if_its_runner_is_gone(tmp_path):
    waiting, go = os.pipe()
    gate = subprocess.Popen(
        [sys.executable, "-I", "-S", GUARD, "gate", str(waiting), "touch", str(tmp_path / "ran")],
        pass_fds=[waiting],
    )
    os.close(waiting)
    os.close(go)
    assert gate.wait(DEADLINE) == 0
    assert not (tmp_path / "ran").exists()


# -- under runjob

pytestmark = pytest.mark.django_db(transaction=True)


def test_kill_9_of_runjob_kills_the_program_and_its_grandchildren_at_once():
    runjob, pids = started(FAMILY, options=("--ttl", "10m"))
    with ended(runjob, pids):
        guard = guard_of(runjob)
        runjob.kill()
        all_gone([*pids, guard.pid])


def test_sigstop_of_runjob_kills_them_before_the_lease_expires():
    runjob, pids = started(FAMILY, options=("--ttl", "8"))
    with ended(runjob, pids):
        guard = guard_of(runjob)
        runjob.send_signal(signal.SIGSTOP)
        gone_before_expiry(pids)
        all_gone([guard.pid])
        # It wakes, and says so.
        runjob.send_signal(signal.SIGCONT)
        _, err = runjob.communicate(timeout=DEADLINE)
        assert runjob.returncode == 70, err
    assert Run.objects.get().outcome == Outcome.LOST


def test_a_frozen_program_is_killed_too():
    runjob, pids = started(FAMILY, options=("--ttl", "8"))
    with ended(runjob, pids):
        for pid in [*pids, runjob.pid]:
            os.kill(pid, signal.SIGSTOP)
        gone_before_expiry(pids)


def test_a_guard_that_is_killed_is_replaced_and_the_new_one_guards():
    runjob, pids = started(FAMILY, options=("--ttl", "20"))
    with ended(runjob, pids):
        first = guard_of(runjob)
        first.kill()
        wait_for(lambda: [guard for guard in guards(runjob) if guard.pid != first.pid])
        assert all(map(is_alive, pids))
        runjob.kill()
        all_gone(pids)


def test_the_new_guard_knows_the_last_time_too():
    runjob, pids = started(FAMILY, options=("--ttl", "8"))
    with ended(runjob, pids):
        first = guard_of(runjob)
        first.kill()
        wait_for(lambda: [guard for guard in guards(runjob) if guard.pid != first.pid])
        runjob.send_signal(signal.SIGSTOP)
        gone_before_expiry(pids)


REPLACED = "the guard process was killed; another one is started\n"


def test_runjob_ends_well_although_its_guard_is_frozen_or_killed():
    for number in (signal.SIGSTOP, signal.SIGKILL):
        runjob, pids = started("say(os.getpid()); sys.stdin.read()")
        with ended(runjob, pids):
            guard_of(runjob).send_signal(number)
            out, err = runjob.communicate(timeout=DEADLINE)
            # Whether the watch still looks before the end is a matter of milliseconds.
            assert (out, err) in (("", ""), ("", REPLACED))
            assert runjob.returncode == 0
        assert RunLease.objects.get().token is None


def test_a_guard_is_in_a_session_of_its_own_and_holds_nothing_of_its_runners():
    runjob, pids = started("say(os.getpid()); sys.stdin.read()")
    with ended(runjob, pids):
        guard = guard_of(runjob)
        assert os.getsid(guard.pid) == guard.pid != os.getsid(runjob.pid)
        files = Path(f"/proc/{guard.pid}/fd")
        # At its start it also has the files that Python reads.
        wait_for(lambda: sorted(int(file.name) for file in files.iterdir()) == [0, 1, 2])
        assert psutil.Process(guard.pid).net_connections() == []


# -- takeover


def test_while_a_member_of_the_group_lives_the_lease_of_a_killed_runjob_is_held():
    """Without runjob and without its guard, and long before the ttl is over."""
    runjob, pids = started(FAMILY, options=("--ttl", "10m"))
    with ended(runjob, pids):
        # Frozen, it cannot start another guard.
        guard = guard_of(runjob)
        runjob.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(runjob.pid).status() == psutil.STATUS_STOPPED)
        guard.kill()
        all_gone([guard.pid])
        runjob.kill()
        runjob.wait()
        *others, last = pids
        for pid in others:
            os.kill(pid, signal.SIGKILL)
        all_gone(others)
        assert is_alive(last)
        declined = manage("runjob", "prog", "-E", "75", "--", "true")
        assert declined.returncode == 75
        assert Run.objects.latest("id").reason == "held"
        os.kill(last, signal.SIGKILL)
        all_gone([last])
        after = manage("runjob", "prog", "-E", "75", "--", "echo", "ran")
        assert (after.returncode, after.stdout) == (0, "ran\n")
    assert RunLease.objects.get().generation == 2
    assert Run.objects.earliest("id").outcome == Outcome.ABANDONED


def test_a_killed_runjob_whose_guard_did_its_work_is_replaced_on_the_next_tick():
    runjob, pids = started(FAMILY, options=("--ttl", "10m"))
    with ended(runjob, pids):
        runjob.kill()
        runjob.wait()
        all_gone(pids)
        after = manage("runjob", "prog", "-E", "75", "--", "echo", "ran")
    assert (after.returncode, after.stdout) == (0, "ran\n")
    assert "took over from" in after.stderr
    assert "its process is gone" in after.stderr
    assert RunLease.objects.get().generation == 2
