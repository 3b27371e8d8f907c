"""Crash takeover: who is dead, who is not, and what the next tick does about it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from django.db import connection

from django_runlease import claim, holder, store
from django_runlease.holder import (
    group_led_by,
    is_dead,
    is_empty,
    living_group,
    this_process,
)
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import Claimed, Closing

from .factories import RunLeaseFactory
from .support import (
    DEADLINE,
    ROOT,
    backends,
    elsewhere,
    environment,
    expire,
    granted,
    manage,
    open_transaction,
    refused,
    spawn_manage,
    spawn_python,
    together,
    wait_for,
    wish,
)

pytestmark = pytest.mark.django_db(transaction=True)

HOLD = """
import sys, time
from django_runlease import claim
held = claim("job", ttl="10m")
assert held, held
print(held.generation, flush=True)
sys.stdin.read()
"""


def crashed(code=HOLD, number=signal.SIGKILL):
    """A holder that was killed, and collected by its parent."""
    process = holding(code)
    process.send_signal(number)
    process.communicate()
    return process


def holding(code=HOLD):
    process = spawn_python(code, stdin=subprocess.PIPE)
    line = process.stdout.readline()
    assert line, process.communicate()
    return process


def end(process):
    process.kill()
    process.communicate()


def row():
    return RunLease.objects.get(name="job")


# -- the tick after a crash


def test_the_next_tick_after_a_kill_takes_over_at_once_and_says_why(caplog):
    dead = crashed()
    before = row()
    held = claim("job", ttl=60)
    assert (held.generation, held.name) == (2, "job")
    assert before.token != held.token
    first, second = Run.objects.order_by("id")
    assert (first.outcome, second.outcome) == (Outcome.ABANDONED, Outcome.RUNNING)
    assert first.finished_at is not None
    (line,) = [line for line in caplog.messages if "took over" in line]
    assert line == f"job: took over from {before.holder}: its process is gone"
    assert str(dead.pid) in line
    held.release()


def test_the_next_runjob_after_a_kill_takes_over_and_its_log_says_why():
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_jobs", "CODE": "say(held.generation)"}
    waiting = {**env, "CODE": "say('ready'); import time; time.sleep(60)"}
    first = spawn_manage("runjob", "code", "--ttl", "10m", env=waiting)
    assert first.stdout.readline() == "ready\n"
    end(first)
    after = manage("runjob", "code", "-E", "75", env=env)
    assert (after.returncode, after.stdout) == (0, "2\n")
    assert "took over from" in after.stderr
    assert Run.objects.earliest("id").outcome == Outcome.ABANDONED


def test_a_crashed_tick_may_be_run_again_and_a_finished_one_not():
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_jobs", "CODE": "say(held.generation)"}
    waiting = {**env, "CODE": "say('ready'); import time; time.sleep(60)"}
    tick = ("--tick", "2026-01-31T06:00:00+00:00")
    first = spawn_manage("runjob", "code", "--ttl", "10m", *tick, env=waiting)
    assert first.stdout.readline() == "ready\n"
    end(first)
    again = manage("runjob", "code", *tick, env=env)
    assert (again.returncode, again.stdout) == (0, "2\n")
    third = manage("runjob", "code", *tick, env=env)
    assert (third.returncode, third.stdout) == (0, "")
    assert Run.objects.latest("id").reason == "same_tick"


def test_of_many_ticks_after_a_crash_one_takes_over():
    for generation in (2, 4, 6, 8):
        crashed()
        results = together(*[lambda: store.claim(wish(), "default")] * 6)
        (winner,) = [result for result in results if isinstance(result, Claimed)]
        assert winner.generation == generation
        reasons = {result.declined.reason for result in results if result is not winner}
        assert reasons <= {"held", "busy"}
        store.release(winner, Closing(outcome=Outcome.SUCCEEDED))


def test_while_a_fenced_statement_of_the_dead_holder_is_in_flight_the_next_tick_is_busy():
    code = """
import sys
from django.db import connection
from django_runlease import claim
held = claim("job", ttl="10m")
with held.fence():
    print("fenced", flush=True)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE billing_invoice SET cents = 1 FROM (SELECT pg_sleep(600)) AS slept")
"""
    process = holding(code)
    wait_for(lambda: sleeping())
    end(process)
    assert refused().declined.reason == "busy"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE query LIKE '%pg_sleep(600)%' AND pid <> pg_backend_pid()"
        )
    wait_for(lambda: not sleeping())
    assert granted().generation == 2


def sleeping():
    return backends("query LIKE '%pg_sleep(600)%' AND state = 'active'")


def test_a_locked_row_of_a_dead_holder_is_busy():
    crashed()
    with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
        assert refused().declined.reason == "busy"
    assert granted().generation == 2


def test_a_dry_run_sees_the_crash():
    crashed()
    RunLease.objects.update(name="code")
    env = {"DJANGO_SETTINGS_MODULE": "tests.settings_jobs"}
    assert "would run now" in manage("runjob", "code", "--dry-run", env=env).stdout


def test_a_paused_lease_of_a_dead_holder_is_not_taken():
    crashed()
    store.pause("job", "default", by="ops")
    assert refused().declined.reason == "paused"


# -- who is not dead


def test_a_stopped_holder_is_never_taken_for_dead():
    process = holding()
    try:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
        assert refused().declined.reason == "held"
        process.send_signal(signal.SIGCONT)
        assert refused().declined.reason == "held"
    finally:
        end(process)
    assert granted().generation == 2


@pytest.mark.parametrize(
    "change",
    [
        {"host": "elsewhere"},
        {"holder_process": {"boot_id": "another"}},
        {"holder_process": {"boot_id": None}},
        {"holder_process": {"boot_id": ""}},
        {"holder_process": {"pid_namespace": "pid:[1]"}},
        {"holder_process": {"pid_namespace": None}},
        {"holder_process": {"time_namespace": "time:[1]"}},
        {"holder_process": {"time_namespace": None}},
        {"holder_process": {"pid": None}},
        {"holder_process": {"pid": "4711"}},
        {"holder_process": {"pid": 0}},
        {"holder_process": {"pid": -1}},
        {"holder_process": None},
        {"holder_process": []},
    ],
)
def test_another_host_kernel_or_container_is_never_judged_by_pid(change):
    crashed()
    lease = row()
    if isinstance(process := change.get("holder_process"), dict):
        change = {"holder_process": {**lease.holder_process, **process}}
    RunLease.objects.update(**change)
    assert refused().declined.reason == "held"


def test_a_live_process_that_was_given_the_same_pid_is_not_the_holder():
    process = holding()
    try:
        lease = row()
        known = {**lease.holder_process, "start": lease.holder_process["start"] - 1}
        RunLease.objects.update(holder_process=known)
        assert granted().generation == 2
    finally:
        end(process)


def test_where_the_start_was_not_told_a_live_pid_is_alive():
    process = holding()
    try:
        RunLease.objects.update(holder_process={**row().holder_process, "start": None})
        assert refused().declined.reason == "held"
    finally:
        end(process)


def test_a_holder_in_another_pid_namespace_is_not_judged():
    """Its pid is nobody's here, or somebody else's."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c"]
    inside = subprocess.Popen(
        [*words, "import django; django.setup()\n" + HOLD],
        env=environment(),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert inside.stdout.readline() == "1\n"
    inside.kill()
    inside.communicate()
    assert row().holder_process["pid"] == 1
    assert refused().declined.reason == "held"


def test_under_a_foreign_proc_nobody_is_judged():
    """In a container that sees its host's /proc, pids mean other processes."""
    crashed()
    code = """
import json
from django_runlease import claim
print(bool(claim("job", ttl=60)))
"""
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c"]
    # The namespace it reads of itself in the foreign /proc is still its own.
    RunLease.objects.update(holder_process=row().holder_process)
    inside = subprocess.run(
        [*words, "import django; django.setup()\n" + code],
        env=environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert inside.stdout == "False\n"


def test_in_another_time_namespace_a_living_holder_is_not_taken_for_dead():
    """Every process seems to have started at another time there."""
    code = """
from django_runlease import claim
print(claim("job", ttl=60))
"""
    words = ["unshare", "--time", "--boottime", "100000", sys.executable, "-c"]
    process = holding()
    try:
        inside = subprocess.run(
            [*words, "import django; django.setup()\n" + code],
            env=environment(),
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        assert inside.stdout.startswith("held by ")
        assert row().generation == 1
    finally:
        end(process)


# -- the judgement alone


def identity(pid, **more):
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    return {**this_process().process, "pid": pid, "start": holder.start_ticks(stat), **more}


def judged(process):
    return is_dead(this_process().host, process)


def test_itself_is_alive():
    assert not judged(this_process().process)


def test_a_process_that_has_ended_is_dead_also_before_it_is_collected():
    child = subprocess.Popen(["sleep", "60"])
    known = identity(child.pid)
    assert not judged(known)
    child.kill()
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert judged(known)
    child.wait()
    assert judged(known)


def test_a_process_whose_first_thread_has_ended_is_alive_while_another_runs():
    code = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=[60]).start()
print("up", flush=True)
ctypes.CDLL(None).syscall(ctypes.c_long(60), ctypes.c_long(0))
"""
    if os.uname().machine != "x86_64":
        code = code.replace("(60), ", "(93), ")
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        known = identity(child.pid)
        stat = Path(f"/proc/{child.pid}/stat")
        wait_for(lambda: stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z")
        assert not judged(known)
    finally:
        child.kill()
        child.communicate()
    assert judged(known)


@pytest.fixture
def ended_process():
    child = subprocess.Popen(["true"])
    known = identity(child.pid)
    child.wait()
    return known


def test_what_cannot_be_read_is_alive(monkeypatch, tmp_path):
    child = subprocess.Popen(["sleep", "60"])
    known = identity(child.pid, start=1)
    try:
        assert judged(known)
        # As with hidepid: there, and not to be read.
        (tmp_path / "self").symlink_to(str(os.getpid()))
        this_process()
        monkeypatch.setattr(holder, "PROC", tmp_path)
        assert not judged(known)
    finally:
        child.kill()
        child.wait()


def test_where_proc_is_missing_or_foreign_nobody_is_dead(monkeypatch, tmp_path, ended_process):
    assert judged(ended_process)
    monkeypatch.setattr(holder, "PROC", tmp_path)
    assert not judged(ended_process)
    (tmp_path / "self").symlink_to("1")
    assert not judged(ended_process)
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert judged(ended_process)


def test_a_group_is_empty_when_all_its_members_have_ended_and_not_before(ended_process):
    group = subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo $!; exec sleep 60"], process_group=0, stdout=subprocess.PIPE
    )
    try:
        member = int(group.stdout.readline())
        known = {**ended_process, "group": group.pid}
        assert not is_empty(group.pid)
        assert not judged(known)
        group.kill()
        wait_for(lambda: psutil.Process(group.pid).status() == psutil.STATUS_ZOMBIE)
        # The leader is gone, but not its child.
        assert not is_empty(group.pid)
        assert not judged(known)
        os.kill(member, signal.SIGKILL)
        wait_for(lambda: is_empty(group.pid))
        assert judged(known)
    finally:
        group.kill()
        group.communicate()
    wait_for(lambda: is_empty(group.pid))


def test_under_a_foreign_proc_a_group_lives_while_any_process_of_it_can_be_signalled(
    monkeypatch, tmp_path
):
    member = subprocess.Popen(["sleep", "60"], process_group=0)
    known = {**this_process().process, **group_led_by(member.pid)}
    host = this_process().host
    (tmp_path / "self").symlink_to("1")
    (tmp_path / str(member.pid)).mkdir()
    stat = Path(f"/proc/{member.pid}/stat").read_text(encoding="utf-8")
    (tmp_path / str(member.pid) / "stat").write_text(stat, encoding="utf-8")
    monkeypatch.setattr(holder, "PROC", tmp_path)
    try:
        assert living_group(host, known) == member.pid
        # A start read there is another process's.
        assert living_group(host, {**known, "group_start": 1}) == member.pid
        assert group_led_by(member.pid) == {"group": member.pid, "group_start": None}
    finally:
        member.kill()
        member.wait()
    assert living_group(host, known) is None


@pytest.mark.parametrize("group", [None, 0, -1, "4711"])
def test_what_is_no_group_does_not_live(group):
    known = {**this_process().process, "group": group}
    assert living_group(this_process().host, known) is None


def test_no_claim_or_decline_looks_at_all_processes_where_no_program_was_left(
    monkeypatch, ended_process
):
    def scan(group):
        raise AssertionError("all processes were looked at")

    monkeypatch.setattr(holder, "is_empty", scan)
    free = granted()
    store.note_group(free, os.getpgrp())
    assert refused().declined.reason == "held"
    store.release(free, Closing(outcome=Outcome.SUCCEEDED))
    granted()
    expire()
    expired = granted()
    store.note_group(expired, ended_process["pid"])
    expire()
    assert granted().generation == 4


@pytest.mark.parametrize("shown", [[], ["process 1"], ["its member"]])
def test_a_group_whose_members_may_be_hidden_is_not_empty(monkeypatch, tmp_path, shown):
    child = subprocess.Popen(["true"], process_group=0)
    wait_for(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    assert is_empty(child.pid)
    for pid in [{"process 1": 1, "its member": child.pid}[which] for which in shown]:
        (tmp_path / str(pid)).mkdir()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        (tmp_path / str(pid) / "stat").write_text(stat, encoding="utf-8")
    monkeypatch.setattr(holder, "PROC", tmp_path)
    assert not is_empty(child.pid)
    child.wait()


def test_a_claim_by_an_unprivileged_process_does_not_take_from_a_live_holder_of_root():
    """Its signal is refused, which says that the process is there."""
    process = holding()
    code = """
import os, sys
os.setgid(65534); os.setuid(65534)
from django_runlease.holder import is_dead, this_process
import json
host, known = json.loads(sys.argv[1])
print(is_dead(host, known))
"""
    try:
        if os.geteuid() == 0:
            known = json.dumps([row().host, row().holder_process])
            done = spawn_python(code, known)
            out, err = done.communicate(timeout=DEADLINE)
            assert (out, err) == ("False\n", "")
    finally:
        end(process)


def test_a_row_that_was_never_a_process_is_held():
    RunLeaseFactory(name="job", held=True)
    assert refused().declined.reason == "held"
    assert elsewhere(lambda: refused().declined.reason) == "held"
