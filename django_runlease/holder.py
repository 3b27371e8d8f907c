"""Who am I, and is that holder dead? The identity that a claim writes into its lease."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from .text import storable

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process, named so that a person can find it and a contender on its kernel can judge it."""

    name: str
    """What people are shown: ``host:pid``."""
    host: str
    process: dict[str, Any]
    """pid, start (clock ticks after boot), boot_id and pid_namespace; the last three are null where
    the system does not tell. Together they name one process of one kernel, whatever pids are
    reused and whichever way the wall clock is set."""


def this_process() -> Holder:
    """The calling process. Looked up afresh after a fork."""
    return _identify(os.getpid())


@lru_cache(maxsize=1)
def _identify(pid: int) -> Holder:
    host = storable(socket.gethostname())[:255]
    process = {
        "pid": pid,
        "start": start_ticks(_read("self/stat")),
        "boot_id": _read("sys/kernel/random/boot_id"),
        "pid_namespace": _pid_namespace(),
    }
    return Holder(name=f"{host}:{pid}", host=host, process=process)


def start_ticks(stat: str | None) -> int | None:
    """When a process started, in clock ticks after boot, from its ``/proc/…/stat``."""
    # The command name (field 2) may hold spaces and parentheses; what follows its last ")" cannot.
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def _pid_namespace() -> str | None:
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return (PROC / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def is_dead(host: str, process: Any) -> bool:
    """Whether the process that a claim wrote down, and its program's process group, are gone.

    Judged only on the kernel, pid namespace and host where it ran, and only by what does not
    depend on the wall clock; whatever cannot be read there counts as alive.
    """
    own = this_process()
    if not isinstance(process, dict) or host != own.host or not _sees_own_processes():
        return False
    if any(not process.get(key) or process[key] != own.process[key] for key in _KERNEL):
        return False
    pid, group = process.get("pid"), process.get("group")
    if not isinstance(pid, int) or not _is_gone(pid, process.get("start")):
        return False
    return not isinstance(group, int) or is_empty(group)


_KERNEL = ("boot_id", "pid_namespace")


def _sees_own_processes() -> bool:
    # A /proc that was mounted from elsewhere shows other processes under our numbers.
    try:
        return str((PROC / "self").readlink()) == str(os.getpid())
    except OSError:
        return False


def _is_gone(pid: int, start: object) -> bool:
    if _no_process(os.kill, pid):
        return True
    stat = _read(f"{pid}/stat")
    if stat is None:
        return False
    if isinstance(start, int) and start_ticks(stat) != start:
        return True
    return _is_zombie(stat)


def _is_zombie(stat: str) -> bool:
    fields = stat.rpartition(")")[2].split()
    state, threads = fields[0], int(fields[17])
    # While other threads of it run, only its first thread is a zombie.
    return state == "Z" and threads == 1


def is_empty(group: int) -> bool:
    """Whether no process of the process group lives. Zombies do not count: an orphan stays one
    until process 1 collects it, and in a container that may be never."""
    if _no_process(os.killpg, group):
        return True
    # Where process 1 cannot be read, others are hidden from us too.
    if _read("1/stat") is None:
        return False
    stats = [stat for entry in PROC.glob("[0-9]*") if (stat := _read(f"{entry.name}/stat"))]
    members = [stat for stat in stats if int(stat.rpartition(")")[2].split()[2]) == group]
    return bool(members) and all(_is_zombie(stat) for stat in members)


def _no_process(send: Callable[[int, int], None], number: int) -> bool:
    if number <= 0:
        return False
    try:
        send(number, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False
