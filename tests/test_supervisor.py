"""Programs under a lease: real processes, from their first byte to the last of their group."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from django.db import connection

from django_runlease import runner
from django_runlease.claiming import Claim
from django_runlease.clock import Now
from django_runlease.exceptions import LeaseLost
from django_runlease.interrupts import Interrupts
from django_runlease.jobs import Job
from django_runlease.models import Outcome, Run, RunLease
from django_runlease.store import break_lease
from django_runlease.supervisor import Program, ProgramFailed
from django_runlease.terms import resolve

from .programs import (
    all_gone,
    end_backends,
    ended,
    gone_before_expiry,
    is_alive,
    python,
    start,
    started,
)
from .support import (
    DEADLINE,
    backends,
    elsewhere,
    environment,
    manage,
    open_transaction,
    spawn_manage,
    spawn_python,
    wait_for,
)

pytestmark = pytest.mark.django_db(transaction=True)


def finish(process, data=None):
    out, err = process.communicate(data, timeout=DEADLINE)
    return process.returncode, out, err


def run(*words, data=None, **more):
    return finish(start(*words, **more), data)


def only_run():
    return Run.objects.get()


def row():
    return RunLease.objects.get(name="prog")


def is_free():
    return row().token is None


# -- output and input


def test_output_is_passed_on_as_it_comes_and_input_reaches_the_program():
    code = 'say("first"); say(sys.stdin.readline().strip()); sys.stderr.write("second\\n")'
    process = start(*python(code))
    # It waits for us, so this has come while it runs.
    assert process.stdout.readline() == "first\n"
    assert finish(process, "a word\n") == (0, "a word\n", "second\n")
    assert is_free()
    good = only_run()
    assert (good.outcome, good.exit_code, good.trigger) == (Outcome.SUCCEEDED, 0, "runjob")
    assert sorted(good.output.splitlines()) == ["a word", "first", "second"]


def test_a_part_of_a_line_is_passed_on_as_it_comes():
    code = 'os.write(1, b"no newline"); sys.stdin.read()'
    process = start(*python(code), text=False)
    assert os.read(process.stdout.fileno(), 100) == b"no newline"
    assert finish(process) == (0, b"", b"")


def test_binary_output_and_input_are_passed_on_unchanged_and_can_be_recorded():
    every = bytes(range(256)) * 4_000
    code = "data = sys.stdin.buffer.read(); os.write(2, bytes(range(256)))\n"
    code += "sys.stdout.buffer.write(data)"
    process = start(*python(code), text=False)
    assert finish(process, every) == (0, every, bytes(range(256)))
    assert 0 < len(only_run().output) <= 8_000
    assert is_free()


def test_memory_is_bounded_whatever_the_program_prints_and_the_end_is_kept():
    code = r"""
        def peak():
            status = open(f"/proc/{os.getppid()}/status").read()
            return int(status.partition("VmHWM:")[2].split()[0])
        before = peak()
        for _ in range(800):
            os.write(1, b"x" * 65_535 + b"\n")
        os.write(2, f"{peak() - before}\n".encode())
        say("the end")
    """
    process = start(*python(code), text=False, stdout=subprocess.PIPE)
    size = 0
    while chunk := process.stdout.read1(1 << 20):
        size += len(chunk)
        last = chunk
    assert process.wait(DEADLINE) == 0
    kilobytes = int(process.stderr.read())
    process.communicate()
    assert size == 800 * 65_536 + 8
    assert last.endswith(b"the end\n")
    assert kilobytes < 8_000
    kept = only_run().output
    assert len(kept) <= 8_000
    assert "the end\n" in kept[-100:]


def test_a_program_whose_reader_has_gone_is_told_as_if_it_wrote_there_itself():
    code = """
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        say(os.getpid())
        while True:
            say("more")
    """
    process, _ = started(code)
    process.stdout.close()
    assert process.wait(DEADLINE) == 128 + signal.SIGPIPE
    process.stderr.close()
    process.stdin.close()
    assert only_run().reason == "killed by SIGPIPE"


def test_output_into_a_full_pipe_that_does_not_block_is_not_lost():
    """Some parents leave their end of standard output without blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    process = start(*python('os.write(1, b"x" * 1_000_000)'), stdout=writer, text=False)
    os.close(writer)
    received = b""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        # Until the pipe is full.
        wait_for(lambda: Run.objects.exists())
        time.sleep(0.5)
        while chunk := pipe.read(65_536):
            received += chunk
    assert finish(process)[0] == 0
    assert len(received) == 1_000_000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_program_runs_although_standard_streams_are_closed(closed, tmp_path):
    words = [sys.executable, "manage.py", "runjob", "prog", "--", "sh", "-c"]
    program = f"echo out; echo err >&2; echo ran >> {tmp_path}/ran"
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *words, program]
    done = subprocess.run(
        shell, env=environment(), capture_output=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert sorted(only_run().output.split()) == ["err", "out"]
    assert only_run().outcome == Outcome.SUCCEEDED
    assert is_free()


# -- how it ended


@pytest.mark.parametrize(
    ("code", "exit_code", "message"),
    [
        ("sys.exit(1)", 1, "exit code 1"),
        ("sys.exit(75)", 75, "exit code 75"),
        ("sys.exit(255)", 255, "exit code 255"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "killed by SIGKILL"),
        ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", 165, "killed by signal 37"),
    ],
)
def test_the_programs_exit_code_is_passed_on_and_recorded(code, exit_code, message):
    assert run(*python(code)) == (exit_code, "", f"prog: {message}\n")
    failed = only_run()
    assert (failed.outcome, failed.exit_code) == (Outcome.FAILED, exit_code)
    assert (failed.reason, failed.error) == (message, "")
    assert is_free()


def test_a_failure_is_no_success_where_the_parent_ignores_its_children():
    """What a process ignores, those it starts ignore too; then nobody tells an exit code."""
    words = [sys.executable, "manage.py", "runjob", "prog", "--", "sh", "-c", "exit 7"]
    shell = ["bash", "-c", "trap '' CHLD; exec \"$@\"", "sh", *words]
    done = subprocess.run(
        shell, env=environment(), capture_output=True, check=False, timeout=DEADLINE
    )
    assert done.returncode == 7, done.stderr
    assert only_run().exit_code == 7


@pytest.mark.parametrize(
    ("words", "exit_code", "said"),
    [
        (["/nonexistent/program"], 127, "No such file"),
        (["no-such-program-anywhere"], 127, "No such file"),
        (["/etc/passwd/program"], 127, "Not a directory"),
        (["/etc"], 126, "Permission denied"),
        (["{tmp}/script"], 126, "Permission denied"),
        (["{tmp}/binary"], 126, "Exec format error"),
    ],
)
def test_what_cannot_be_run_exits_as_in_a_shell_and_releases_at_once(
    tmp_path, words, exit_code, said
):
    (tmp_path / "script").write_text("#!/bin/sh\n")
    (tmp_path / "binary").write_bytes(b"\x7fELF")
    (tmp_path / "binary").chmod(0o755)
    words = [word.format(tmp=tmp_path) for word in words]
    code, out, err = run(*words)
    assert (code, out) == (exit_code, "")
    assert re.fullmatch(rf"{words[0]}: {said}.*\nprog: exit code {exit_code}\n", err), err
    assert (only_run().outcome, only_run().exit_code) == (Outcome.FAILED, exit_code)
    assert is_free()


def test_words_reach_the_program_as_they_are():
    words = ["", "a b", "--", "-w", "--ttl", "ü", "*", "$HOME"]
    code, out, err = run(*python("say(sys.argv[1:])"), *words)
    assert (code, out, err) == (0, f"{words}\n", "")


def test_the_program_is_told_its_lease_in_the_environment():
    code = 'say([value for key, value in sorted(os.environ.items()) if "RUNLEASE_" in key])'
    process = start(*python(code + "\nsys.stdin.read()"))
    told = process.stdout.readline()
    lease = row()
    assert told == f"{['default', str(lease.generation), 'prog', str(lease.token)]}\n"
    assert finish(process)[0] == 0


def test_the_program_starts_as_a_fresh_process():
    """In a group of its own, with no file and no signal that was changed by Python or by us."""
    script = """
        grep -E 'Sig(Blk|Ign)' /proc/self/status
        ls /proc/self/fd
        test $(cut -d' ' -f5 /proc/$$/stat) = $$ && echo leads its group
    """
    program = ["sh", "-c", script]
    fresh = subprocess.run(program, capture_output=True, text=True, check=True, process_group=0)
    assert "leads" in fresh.stdout
    assert run(*program) == (0, fresh.stdout, "")


def test_its_group_and_name_without_arguments_are_written_into_the_lease_before_it_starts():
    code = """
        import django, os
        django.setup()
        from django_runlease.models import RunLease
        process = RunLease.objects.get().holder_process
        print(process["group"] == os.getpgrp() == os.getpid(), process["pid"] == os.getppid())
        print(process["runs"])
    """
    process = start(sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines()))
    assert finish(process) == (0, f"True True\n{sys.executable}\n", "")


def test_a_program_whose_lease_was_lost_before_it_started_does_not_start(tmp_path):
    """Broken between the claim and the start, when the row is locked by somebody."""
    held = Claim(name="prog", terms=resolve({"ttl": 60})).run()
    break_lease("prog", "default", by="somebody")
    program = Program(["touch", str(tmp_path / "ran")], held, grace=1)
    with Interrupts() as interrupts, pytest.raises(LeaseLost, match="before the program started"):
        program.run(interrupts)
    assert not (tmp_path / "ran").exists()
    held.release()


def test_quiet_success_is_silent_unless_the_program_fails():
    code = 'say("out"); sys.stderr.write("err\\n"); sys.exit({})'
    options = ("--quiet-success",)
    assert run(*python(code.format(0)), options=options) == (0, "", "")
    assert only_run().output
    failed = run(*python(code.format(3)), options=options)
    assert failed == (3, "out\n", "err\nprog: exit code 3\n")


def test_json_shows_the_output_of_the_run():
    code, out, err = run("sh", "-c", "echo hello >&2", options=("--json",))
    assert (code, err) == (0, "hello\n")
    assert json.loads(out)["output"] == "hello\n"


def test_an_entry_of_jobs_runs_its_program_on_its_terms():
    entry = {"program": [*python('say("ran", *sys.argv[1:])'), "an argument"], "ttl": "9m"}
    env = {
        "DJANGO_SETTINGS_MODULE": "tests.settings_jobs",
        "RUNLEASE": json.dumps({"JOBS": {"prog": entry}}),
    }
    done = manage("runjob", "prog", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran an argument\n", "")
    assert row().ttl.total_seconds() == 540
    # Words on the command line go before, on the terms of the entry.
    done = manage("runjob", "prog", "--", "echo", "other", env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "other\n", "")
    assert row().ttl.total_seconds() == 540


# -- signals


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGHUP", "SIGQUIT", "SIGWINCH"])
def test_signals_are_forwarded_to_the_program(name):
    code = f"""
        signal.signal(signal.{name}, lambda number, frame: os.write(1, b"got %d\\n" % number))
        say(os.getpid())
        import select
        # Not read() alone, which a signal in the moment before it would have to await.
        while not select.select([0], [], [], 0.05)[0]:
            pass
    """
    process, _ = started(code)
    number = getattr(signal, name)
    process.send_signal(number)
    assert process.stdout.readline() == f"got {int(number)}\n"
    assert finish(process) == (0, "", "")


def test_a_forwarded_signal_that_ends_the_program_is_its_exit_code():
    process, pids = started("say(os.getpid()); sleep()")
    process.send_signal(signal.SIGHUP)
    assert finish(process) == (129, "", "prog: killed by SIGHUP\n")
    all_gone(pids)


FAMILY = """
    nephew = child("say('up'); sleep()")
    son = child("pids = child('say(\\"up\\"); sleep()'); say('up', *pids); sleep()")
    say(os.getpid(), *nephew, *son)
    sleep()
"""


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stop_reaches_the_whole_group_and_then_releases(number, exit_code):
    process, pids = started(FAMILY)
    with ended(process, pids):
        process.send_signal(number)
        code, _, err = finish(process)
        assert code == exit_code
        assert err.endswith(f"prog: stopped by {number.name}\n")
        assert not any(map(is_alive, pids))
    assert (only_run().outcome, only_run().exit_code) == (Outcome.TERMINATED, exit_code)
    assert is_free()


def test_every_process_of_the_group_gets_sigterm_and_may_clean_up_while_the_lease_is_held():
    """For 7 s, with a ttl of 6 s."""
    code = r"""
        clean = '''
            def stop(number, frame):
                time.sleep(7)
                os.write(2, b"clean\\n")
                os._exit(0)
            signal.signal(signal.SIGTERM, stop)
        '''
        import textwrap
        clean = textwrap.dedent(clean)
        pids = child(clean + "say('up'); sleep()")
        exec(clean)
        say(os.getpid(), *pids)
        sleep()
    """
    code = code.replace("import textwrap", "sys.path += os.sys.path; import textwrap")
    process, pids = started(code, options=("--ttl", "6", "--grace", "60"))
    with ended(process, pids):
        before = row()
        process.terminate()
        wait_for(lambda: row().renewed_at > before.renewed_at or process.poll() is not None)
        gone_before_expiry(pids)
        code, _, err = finish(process)
    assert (code, err) == (143, "clean\nclean\nprog: stopped by SIGTERM\n")
    assert (only_run().outcome, only_run().generation) == (Outcome.TERMINATED, 1)
    assert (only_run().finished_at - only_run().started_at).total_seconds() > 7
    assert is_free()


STUBBORN = """
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    pids = child(ignore + "say('up'); sleep()")
    exec(ignore)
    say(os.getpid(), *pids)
    sleep()
"""


def test_who_ignores_sigterm_is_killed_after_the_grace():
    process, pids = started(STUBBORN, options=("--grace", "0.5"))
    with ended(process, pids):
        process.terminate()
        code, _, err = finish(process)
        assert (code, err) == (143, "prog: stopped by SIGTERM\n")
        assert not any(map(is_alive, pids))
    assert only_run().outcome == Outcome.TERMINATED
    assert is_free()


def test_a_stopped_process_of_the_group_takes_the_sigterm_too():
    code = """
        clean = "stop = lambda *_: (os.write(2, b'clean\\\\n'), os._exit(0));"
        clean += "signal.signal(signal.SIGTERM, stop);"
        pids = child(clean + "say('up'); os.kill(os.getpid(), signal.SIGSTOP); sleep()")
        say(os.getpid(), *pids)
        sleep()
    """
    # In the order of chance, the SIGHUP for a group whose leader has ended comes first.
    for _ in range(3):
        process, pids = started(code, options=("--grace", "60"))
        with ended(process, pids):
            wait_for(lambda pid=pids[1]: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            process.terminate()
            assert finish(process)[::2] == (143, "clean\nprog: stopped by SIGTERM\n")
            all_gone(pids)


def test_the_second_sigterm_ends_at_once_and_the_guard_ends_the_group():
    code = STUBBORN.replace(
        "exec(ignore)", "signal.signal(signal.SIGTERM, lambda *_: say('ignored'))"
    )
    process, pids = started(code, options=("--grace", "60"))
    with ended(process, pids):
        process.terminate()
        assert process.stdout.readline() == "ignored\n"
        assert process.poll() is None
        process.terminate()
        assert finish(process)[0] == -signal.SIGTERM
        all_gone(pids)
    assert not is_free()


def test_background_children_of_a_program_that_has_ended_are_ended_before_the_release():
    code = """
        say(*child("say('up'); sleep()"))
    """
    process, pids = started(code)
    with ended(process, pids):
        assert finish(process) == (0, "", "")
        assert not any(map(is_alive, pids))
    assert only_run().outcome == Outcome.SUCCEEDED
    assert is_free()


@pytest.mark.parametrize("talk", ["sleep()", "\nwhile True: time.sleep(0.02); os.write(1, b'.')"])
def test_a_daemon_that_left_the_group_and_keeps_the_output_open_is_not_waited_for(talk):
    code = f"""
        there = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", PRELUDE + {talk!r}], start_new_session=True
        )
        say(there.pid)
    """
    process, pids = started(code)
    with ended(process, pids):
        assert process.wait(DEADLINE) == 0
        assert is_free()


def test_all_that_the_program_has_printed_is_passed_on_although_a_daemon_keeps_the_pipe():
    """Also what was still in the pipe when it ended, since nobody had read that far."""
    code = """
        daemon = subprocess.Popen(["sleep", "600"], start_new_session=True)
        os.write(2, f"{os.getpid()} {daemon.pid}\\n".encode())
        for _ in range(13):
            os.write(1, b"x" * 10_000)
        os.write(1, b"end")
    """
    process = start(*python(code), text=False)
    program, daemon = map(int, process.stderr.readline().split())
    with ended(process, [daemon]):
        wait_for(lambda: not is_alive(program))
        assert process.stdout.read() == b"x" * 130_000 + b"end"
        assert process.wait(DEADLINE) == 0


# -- timeout, stall, loss


def test_timeout_stops_the_whole_group_with_124():
    process, pids = started(FAMILY, options=("--timeout", "8"))
    with ended(process, pids):
        code, _, err = finish(process)
        assert (code, err) == (124, "prog: ran longer than its timeout of 8s\n")
        assert not any(map(is_alive, pids))
    assert (only_run().outcome, only_run().exit_code) == (Outcome.TIMED_OUT, 124)
    assert is_free()


def test_timeout_kills_who_ignores_it():
    process, pids = started(STUBBORN, options=("--timeout", "8", "--grace", "0.3"))
    with ended(process, pids):
        assert finish(process)[0] == 124
        assert not any(map(is_alive, pids))
    assert only_run().outcome == Outcome.TIMED_OUT


def test_a_program_that_prints_nothing_for_too_long_is_stalled_and_output_counts_as_progress():
    code = """
        end = time.monotonic() + 7
        while time.monotonic() < end:
            time.sleep(0.05)
            os.write({}, b".")
        sleep()
    """
    options = ("--stall-after", "6")
    processes = {
        f"prog-{stream}": start(
            *python(code.format(stream)), options=options, name=f"prog-{stream}"
        )
        for stream in (1, 2)
    }
    for name, process in processes.items():
        code_, _, err = finish(process)
        assert code_ == 124
        assert err.endswith(f"{name}: made no progress for 6s\n")
        stalled = Run.objects.get(lease_name=name)
        assert stalled.outcome == Outcome.STALLED
        assert (stalled.finished_at - stalled.started_at).total_seconds() > 13
        assert RunLease.objects.get(name=name).token is None


def break_it():
    break_lease("prog", "default", by="somebody")


def test_a_broken_lease_ends_the_group_before_its_time_is_over():
    process, pids = started(FAMILY, options=("--ttl", "30"))
    with ended(process, pids):
        elsewhere(break_it)
        code, _, err = finish(process)
        assert code == 70
        assert "prog: the lease is lost: broken by somebody" in err
        assert not any(map(is_alive, pids))
    assert (only_run().outcome, only_run().exit_code) == (Outcome.LOST, 70)


def test_who_ignores_the_loss_is_killed_before_the_trusted_time_is_over():
    process, pids = started(STUBBORN, options=("--ttl", "8", "--grace", "60"))
    with ended(process, pids):
        elsewhere(break_it)
        not_before = row().not_before

        def gone():
            over = RunLease.objects.filter(name="prog", not_before__lte=Now()).exists()
            alive = any(map(is_alive, pids))
            assert not (over and alive)
            return not alive

        wait_for(gone)
        assert finish(process)[0] == 70
        assert row().not_before == not_before


def test_a_group_whose_lease_cannot_be_renewed_is_ended_before_it_expires():
    process, pids = started(STUBBORN, options=("--ttl", "8", "--grace", "60"))
    with ended(process, pids):
        with open_transaction("SELECT 1 FROM runlease_runlease FOR UPDATE"):
            gone_before_expiry(pids)
        code, _, err = finish(process)
    assert code == 70
    assert "the database has renewed nothing for" in err
    assert only_run().outcome == Outcome.LOST


@pytest.mark.parametrize("when", ["before the program", "while it runs", "at its end"])
def test_ended_backends_cost_neither_the_lease_nor_the_result(when):
    code = """
        say(os.getpid())
        sys.stdin.readline()
        say("on")
        sys.stdin.readline()
    """
    process, _ = started(code, options=("--ttl", "20"))
    if when == "before the program":
        end_backends()
    before = row().renewed_at
    process.stdin.write("go on\n")
    process.stdin.flush()
    assert process.stdout.readline() == "on\n"
    if when == "while it runs":
        wait_for(lambda: row().renewed_at > before)
        end_backends()
        before = row().renewed_at
        wait_for(lambda: row().renewed_at > before)
    if when == "at its end":
        end_backends()
    code, _, err = finish(process, "end\n")
    assert code == 0, err
    assert (only_run().outcome, row().generation) == (Outcome.SUCCEEDED, 1)
    assert is_free()


# -- in a thread


def test_a_program_is_ended_although_nobody_reads_what_it_says():
    """A full pipe must keep neither the group nor runjob from their end."""
    code = """
        say(os.getpid())
        while True:
            os.write(1, b"x" * 10_000)
            os.write(2, b"x" * 10_000)
    """
    process, pids = started(code, options=("--timeout", "8", "--grace", "0.5"))
    with ended(process, pids):
        all_gone(pids)
        assert process.wait(DEADLINE) == 124
    assert only_run().outcome == Outcome.TIMED_OUT


def test_in_a_thread_a_program_runs_and_is_stopped_by_its_timeout():
    def tick(words, **terms):
        claim = Claim(name="prog", terms=resolve({"ttl": 60, **terms}))
        job = Job(name="prog", program=tuple(words))
        return runner.run(job, claim, grace=1, own_process=False)

    assert elsewhere(lambda: tick(["true"])).exit_code == 0
    assert elsewhere(lambda: tick(["false"])).exit_code == 1
    report = elsewhere(lambda: tick(["sleep", "60"], timeout=0.3))
    assert (report.exit_code, report.outcome) == (124, Outcome.TIMED_OUT)


def test_a_process_with_many_open_files_passes_the_output_on_too():
    code = """
import os, resource
from django.core.management import call_command
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (2048, most))
files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
call_command("runjob", "prog", "--", "echo", "hello")
"""
    assert finish(spawn_python(code)) == (0, "hello\n", "")
    assert only_run().output == "hello\n"


def test_no_thread_no_handle_and_no_process_is_left():
    def tick():
        claim = Claim(name="prog", terms=resolve({"ttl": 60}))
        job = Job(name="prog", program=("true",))
        return runner.run(job, claim, grace=1, own_process=False)

    def handles():
        return len(list(Path("/proc/self/fd").iterdir()))

    tick()
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("runlease")])
    # Not their children, which the test's PostgreSQL has more and fewer of.
    family = psutil.Process().children()
    before, handlers = handles(), [signal.getsignal(number) for number in range(1, 65)]
    for _ in range(5):
        assert tick().exit_code == 0
    wait_for(lambda: not [t for t in threading.enumerate() if t.name.startswith("runlease")])
    assert handles() == before
    assert [signal.getsignal(number) for number in range(1, 65)] == handlers
    assert set(psutil.Process().children()) <= set(family)


# -- a terminal


TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))
"""


class Terminal:
    """A command on a terminal of its own; what is typed goes to its standard input."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            [sys.executable, "-c", TERMINAL, "sh", "-c", command],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.seen = b""

    def type(self, keys):
        self.process.stdin.write(keys)
        self.process.stdin.flush()

    def wait_for(self, word):
        def shown():
            self.seen += os.read(self.process.stdout.fileno(), 4096)
            return word in self.seen

        wait_for(shown)
        self.seen = self.seen.partition(word)[2]


def on_terminal(program, after="", before=""):
    manage_py = f"{sys.executable} manage.py"
    words = shlex.join(program)
    return Terminal(f"{before} {manage_py} runjob prog -- {words}; echo exit=$?; {after}")


READ = ["sh", "-c", "echo program; read line; echo got $line"]


def test_on_a_terminal_the_program_can_read_it_and_it_is_given_back():
    terminal = on_terminal(READ, after="read line; echo shell got $line")
    with ended(terminal.process):
        terminal.wait_for(b"program")
        terminal.type(b"one\n")
        terminal.wait_for(b"got one")
        terminal.wait_for(b"exit=0")
        terminal.type(b"two\n")
        terminal.wait_for(b"shell got two")


@pytest.mark.parametrize("number", range(5))
def test_a_program_that_reads_the_terminal_at_once_is_not_stopped_for_it(number):
    terminal = on_terminal(["head", "-n1"])
    with ended(terminal.process):
        terminal.type(b"one\n")
        terminal.wait_for(b"exit=0")


# Not a shell with a command after it: dash misses a Ctrl-C that comes while it starts one.
STOPPABLE = python("signal.signal(signal.SIGINT, signal.SIG_DFL); say('program'); sleep()")


def test_one_ctrl_c_ends_the_program_and_gives_the_terminal_back():
    terminal = on_terminal(STOPPABLE, after="read line; echo shell got $line")
    with ended(terminal.process):
        terminal.wait_for(b"program")
        terminal.type(b"\x03")
        terminal.wait_for(b"exit=130")
        terminal.type(b"two\n")
        terminal.wait_for(b"shell got two")
    wait_for(is_free)


@pytest.fixture
def slow_note():
    """The lease cannot be told of the program's group before the lock that is given is free."""
    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION slow_note() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NEW; END';
            CREATE TRIGGER slow_note BEFORE UPDATE ON runlease_runlease FOR EACH ROW
            WHEN (NEW.holder_process ? 'group') EXECUTE FUNCTION slow_note()
        """)
    yield "SELECT pg_advisory_xact_lock(4711)"
    with connection.cursor() as cursor:
        cursor.execute("DROP FUNCTION slow_note CASCADE")


def test_one_ctrl_c_between_the_claim_and_the_start_of_the_program_stops_it(slow_note, tmp_path):
    terminal = on_terminal(["touch", str(tmp_path / "ran")], before="trap : INT;")
    with ended(terminal.process):
        with open_transaction(slow_note):
            wait_for(lambda: backends("wait_event = 'advisory'"))
            terminal.type(b"\x03")
            # Shown by the terminal once it has sent the signal.
            terminal.wait_for(b"^C")
        terminal.wait_for(b"stopped by SIGINT")
        terminal.wait_for(b"exit=130")
    assert (only_run().outcome, only_run().exit_code) == (Outcome.TERMINATED, 130)
    assert not (tmp_path / "ran").exists()
    assert is_free()


def is_blocked(pid, number):
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("SigBlk:")[2].split()[0], 16) >> (number - 1) & 1


@pytest.mark.parametrize("when", ["as it starts", "when it waits"])
def test_ctrl_c_that_meets_the_gate_ends_the_program_before_its_start(
    when, tmp_path, monkeypatch, capfd
):
    held = Claim(name="prog", terms=resolve({"ttl": 60})).run()

    def interrupt(group):
        if when == "when it waits":
            wait_for(lambda: not is_blocked(group, signal.SIGINT))
        os.killpg(group, signal.SIGINT)
        if when == "when it waits":
            wait_for(lambda: not is_alive(group))

    monkeypatch.setattr(held, "note_group", interrupt)
    program = Program(["touch", str(tmp_path / "ran")], held, grace=1)
    with Interrupts() as interrupts, pytest.raises(ProgramFailed, match="SIGINT") as failed:
        program.run(interrupts)
    assert failed.value.returncode == 130
    assert not (tmp_path / "ran").exists()
    assert capfd.readouterr() == ("", "")
    held.release()


def test_ctrl_z_does_not_leave_a_terminal_to_a_program_that_sleeps():
    terminal = on_terminal(READ)
    with ended(terminal.process):
        terminal.wait_for(b"program")
        terminal.type(b"\x1a")
        terminal.type(b"one\n")
        terminal.wait_for(b"got one")
        terminal.wait_for(b"exit=0")


def test_a_terminal_that_is_not_ours_to_give_is_left_alone():
    """As after setsid: standard input is a terminal, but not that of the session."""
    terminal = on_terminal(["echo", "program ran"], before="setsid -w")
    with ended(terminal.process):
        terminal.wait_for(b"program ran")
        terminal.wait_for(b"exit=0")


# -- process 1


def test_as_process_1_a_sigterm_ends_the_group_and_releases():
    program = python("say(os.getpid()); sleep()")
    words = [sys.executable, "manage.py", "runjob", "prog", "--", *program]
    outside = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *words],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert outside.stdout.readline()
    (runjob,) = psutil.Process(outside.pid).children()
    with ended(outside, [runjob.pid]):
        runjob.terminate()
        code, _, err = finish(outside)
    assert (code, err) == (143, "prog: stopped by SIGTERM\n")
    assert only_run().outcome == Outcome.TERMINATED
    assert is_free()


def test_spawned_without_an_input_it_declines_while_it_runs():
    process, _ = started("say(os.getpid()); sys.stdin.read()")
    done = spawn_manage("runjob", "prog", "--", "echo", "ran")
    assert finish(done) == (0, "", "")
    assert finish(process)[0] == 0
    assert sorted(Run.objects.values_list("outcome", flat=True)) == ["declined", "succeeded"]
