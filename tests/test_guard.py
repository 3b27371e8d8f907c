"""The guard of a program: what becomes of it when its runjob is killed, frozen, or unguarded."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from django_runlease import clock
from django_runlease.holder import start_ticks
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.supervisor import GUARD, Guard

from .programs import all_gone, ended, gone_before_expiry, guards, is_alive, started
from .support import DEADLINE, expire, manage, spawn_manage, wait_for

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

        def is_ignored():
            mask = int(status.read_text().partition("SigIgn:")[2].split()[0], 16)
            return mask >> (number - 1) & 1

        wait_for(is_ignored)
        guard.send_signal(number)
        time.sleep(0.1)
        assert guard.poll() is None
        guard.stdin.close()
        assert victim.wait(DEADLINE) == -signal.SIGKILL


def test_a_guard_is_replaced_if_it_was_killed_and_not_if_it_has_ended_by_itself(caplog):
    """It ends when the runner was frozen for too long, and has then killed the program."""
    with Guard() as guard:
        killed = guard._process
        guard.check()
        assert guard._process is killed
        killed.kill()
        killed.wait(30)
        guard.check()
        second = guard._process
        assert second is not killed
        assert "the guard process was killed" in caplog.text
        caplog.clear()
        guard.tell(until=clock.local())
        assert second.wait(30) == 0
        guard.check()
        assert guard._process is second
        assert not caplog.text


def test_a_frozen_guard_is_replaced_before_its_runner_would_wait_for_it():
    with Guard() as guard:
        frozen = guard._process
        frozen.send_signal(signal.SIGSTOP)
        fcntl.fcntl(frozen.stdin, fcntl.F_SETPIPE_SZ, 4096)
        told = threading.Thread(
            target=lambda: [guard.tell(until=clock.local() + 600) for _ in range(400)], daemon=True
        )
        told.start()
        told.join(DEADLINE)
        try:
            assert not told.is_alive()
            assert guard._process is not frozen
            assert frozen.wait(DEADLINE) == -signal.SIGKILL
        finally:
            frozen.kill()


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


@contextmanager
def unguarded():
    """A program, with children, whose runjob is frozen, and whose guard was killed."""
    runjob, pids = started(FAMILY, options=("--ttl", "10m"))
    with ended(runjob, pids):
        # Frozen, it cannot start another guard.
        guard = guard_of(runjob)
        runjob.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(runjob.pid).status() == psutil.STATUS_STOPPED)
        guard.kill()
        all_gone([guard.pid])
        yield runjob, pids


@contextmanager
def left_behind():
    """A program, with children, whose runjob was killed, and before it the guard."""
    with unguarded() as (runjob, pids):
        runjob.kill()
        runjob.wait()
        yield pids


def kill(pids):
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    all_gone(pids)


def tick(*options):
    return manage("runjob", "prog", "-E", "75", *options, "--", "echo", "ran")


@pytest.mark.parametrize("when", ["before the expiry", "after the expiry"])
def test_while_a_member_of_the_group_lives_the_lease_of_a_killed_runjob_is_held(when):
    """Without runjob and without its guard."""
    with left_behind() as pids:
        if when == "after the expiry":
            expire("prog")
        *others, last = pids
        kill(others)
        assert is_alive(last)
        declined = tick()
        assert declined.returncode == 75
        assert Run.objects.latest("id").reason == "held"
        assert (f"in process group {pids[0]}" in declined.stderr) == (when == "after the expiry")
        kill([last])
        after = manage("runjob", "prog", "-E", "75", "--", "echo", "ran")
        assert (after.returncode, after.stdout) == (0, "ran\n")
    assert RunLease.objects.get().generation == 2
    assert Run.objects.earliest("id").outcome == Outcome.ABANDONED


def test_a_tick_declined_for_a_program_that_was_left_says_where_it_runs_and_what_to_do():
    with left_behind() as (leader, *_):
        expire("prog")
        said = (
            f"; the lease has expired, but its program still runs here, in process group {leader}:"
            f" end that with `kill -- -{leader}`, or take the lease away with"
            " `manage.py runlease break`"
        )
        holder = RunLease.objects.get().holder
        declined = tick("-v2")
        assert re.fullmatch(
            rf"prog: held by {re.escape(holder)} since [-0-9]+ [:0-9]+ UTC{re.escape(said)}",
            declined.stderr.splitlines()[0],
        )
        assert said in tick("--dry-run").stdout
        # Its very word.
        subprocess.run(["sh", "-c", f"kill -- -{leader}"], check=True)
        wait_for(lambda: not is_alive(leader))


def test_a_break_ends_the_wait_for_a_program_that_was_left():
    with left_behind() as pids:
        expire("prog")
        assert tick().returncode == 75
        broken = manage("runlease", "break", "prog", "--yes")
        assert broken.returncode == 0, broken.stderr
        after = tick()
        assert (after.returncode, after.stdout, after.stderr) == (0, "ran\n", "")
        assert is_alive(pids[0])


def test_a_hot_spare_says_once_what_it_waits_for_and_runs_when_that_has_ended():
    with left_behind() as pids:
        expire("prog")
        spare = spawn_manage("runjob", "prog", "--standby", "--", "echo", "ran")
        with ended(spare):
            said = spare.stderr.readline()
            assert f"still runs here, in process group {pids[0]}" in said
            kill(pids)
            out, err = spare.communicate(timeout=DEADLINE)
        assert (spare.returncode, out) == (0, "ran\n")
        assert err.splitlines() == [line for line in err.splitlines() if "took over" in line]


def test_a_program_left_by_a_runjob_that_is_only_frozen_keeps_the_lease_too():
    with unguarded():
        expire("prog")
        assert tick().returncode == 75


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"host": "elsewhere"},
        {"holder_process": {"boot_id": "another"}},
        {"holder_process": {"pid_namespace": "pid:[1]"}},
        {"holder_process": {"pid_namespace": None}},
        {"holder_process": {"time_namespace": "time:[1]"}},
    ],
)
def test_of_another_host_kernel_or_container_only_the_expiry_counts(elsewhere):
    with left_behind():
        expire("prog")
        if process := elsewhere.get("holder_process"):
            known = RunLease.objects.get().holder_process
            elsewhere = {"holder_process": {**known, **process}}
        RunLease.objects.update(**elsewhere)
        assert tick().stdout == "ran\n"


def test_a_group_whose_number_was_given_again_keeps_nobody_waiting():
    with left_behind() as (leader, *_):
        expire("prog")
        known = RunLease.objects.get().holder_process
        stat = Path(f"/proc/{leader}/stat").read_text(encoding="utf-8")
        assert (known["group"], known["group_start"]) == (leader, start_ticks(stat))
        RunLease.objects.update(holder_process={**known, "group_start": None})
        assert tick().returncode == 75
        RunLease.objects.update(holder_process={**known, "group_start": start_ticks(stat) - 1})
        assert tick().stdout == "ran\n"


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
