"""The identity that a process writes into its lease."""

import json
import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_runlease import holder
from django_runlease.holder import this_process

from .support import DEADLINE, spawn_python

TELL = """
import json
from django_runlease.holder import this_process
print(json.dumps(this_process().process))
"""


@pytest.fixture(autouse=True)
def _fresh():
    holder._identify.cache_clear()
    yield
    holder._identify.cache_clear()


def test_a_holder_is_named_by_host_and_pid():
    this = this_process()
    assert this.name == f"{socket.gethostname()}:{os.getpid()}"
    assert this.host == socket.gethostname()
    assert this.process["pid"] == os.getpid()


def test_a_process_is_told_by_its_start_boot_and_namespace():
    process = this_process().process
    stat = Path(f"/proc/{os.getpid()}/stat").read_text(encoding="utf-8")
    assert stat.split(") ")[-1].split()[19] == str(process["start"])
    assert process["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    assert process["pid_namespace"] == str(Path("/proc/self/ns/pid").readlink())
    assert process["time_namespace"] == str(Path("/proc/self/ns/time").readlink())
    assert json.loads(json.dumps(process)) == process


def test_another_process_of_this_kernel_differs_in_pid_and_start():
    child = spawn_python(TELL)
    out, err = child.communicate(timeout=DEADLINE)
    assert not err
    told, own = json.loads(out), this_process().process
    assert told["pid"] == child.pid != own["pid"]
    assert told["start"] > own["start"]
    assert told["boot_id"] == own["boot_id"]
    assert told["pid_namespace"] == own["pid_namespace"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_an_identity_of_its_own():
    this_process()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(writer, json.dumps(this_process().process).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        told = json.load(pipe)
    os.waitpid(child, 0)
    assert told["pid"] == child
    assert told["start"] >= this_process().process["start"]


@given(st.text(max_size=15).filter(lambda text: "\0" not in text))
def test_the_command_of_a_process_cannot_falsify_its_start(command):
    """A process may call itself anything, also ``x) S 1 2 3``."""
    after = "S " + " ".join(map(str, range(4, 53)))
    assert holder.start_ticks(f"1 ({command}) {after}") == 22


def test_what_the_system_does_not_tell_is_null(monkeypatch):
    monkeypatch.setattr(holder, "PROC", Path("/nonexistent"))
    assert this_process().process == {
        "pid": os.getpid(),
        "start": None,
        "boot_id": None,
        "pid_namespace": None,
        "time_namespace": None,
    }


def test_a_hosts_name_that_the_database_cannot_store_is_mended(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "h\udcffst\0" + "x" * 300)
    host = this_process().host
    assert host.startswith("h\N{REPLACEMENT CHARACTER}st\N{REPLACEMENT CHARACTER}x")
    assert len(host) == 255
