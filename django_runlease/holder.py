"""Who am I, and is that holder dead? The identity that a claim writes into its lease."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from . import clock
from .text import storable

PROC = Path("/proc")

LONGEST = 255
"""How many characters of a host's name, and of what a process runs, are kept."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process, named so that a person can find it and a contender on its kernel can judge it."""

    name: str
    """What people are shown: ``host:pid``."""
    host: str
    process: dict[str, Any]
    """pid, start (clock ticks after boot), boot_id, pid_namespace and time_namespace; all but the
    first are null where the system does not tell. Together they name one process of one kernel,
    whatever pids are reused and whichever way the wall clock is set. A holder that runs a program
    adds what :func:`group_led_by` gives."""

    def written(self, runs: str) -> dict[str, Any]:
        """What a claim writes down of its process: with ``age``, how many seconds ago it started,
        which nobody can tell from another kernel, null where the system does not tell; and what it
        *runs*, where that is known."""
        told = {"runs": storable(runs)[:LONGEST]} if runs else {}
        return {**self.process, "age": age(self.process), **told}


def this_process() -> Holder:
    """The calling process. Looked up afresh after a fork."""
    return _identify(os.getpid())


@lru_cache(maxsize=1)
def _identify(pid: int) -> Holder:
    host = storable(socket.gethostname())[:LONGEST]
    process = {
        "pid": pid,
        "start": start_ticks(_read("self/stat")),
        "boot_id": _read("sys/kernel/random/boot_id"),
        "pid_namespace": _namespace("pid"),
        "time_namespace": _namespace("time"),
    }
    return Holder(name=f"{host}:{pid}", host=host, process=process)


def group_led_by(pid: int) -> dict[str, Any]:
    """A process group, named as its holder writes it down: ``group``, its number, and
    ``group_start``, when its leader *pid* started; null where the system does not tell."""
    stat = _read(f"{pid}/stat") if _sees_own_processes() else None
    return {"group": pid, "group_start": start_ticks(stat)}


def start_ticks(stat: str | None) -> int | None:
    """When a process started, in clock ticks after boot, from its ``/proc/…/stat``."""
    # The command name (field 2) may hold spaces and parentheses; what follows its last ")" cannot.
    return int(stat.rpartition(")")[2].split()[19]) if stat else None


def age(process: dict[str, Any]) -> float | None:
    """Seconds since a process of this kernel started; None if its start is not known."""
    start = process.get("start")
    if not isinstance(start, int):
        return None
    seconds = clock.local() - start / os.sysconf("SC_CLK_TCK")
    return round(seconds, 2) if seconds >= 0 else None


def _namespace(kind: str) -> str | None:
    try:
        return str((PROC / "self/ns" / kind).readlink())
    except OSError:
        return None


def _read(path: str) -> str | None:
    try:
        return (PROC / path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def pid_of(process: Any) -> int | None:
    """The process that a claim wrote down; None if it wrote down none."""
    return _number(process, "pid")


def group_of(process: Any) -> int | None:
    """The process group of the program that a claim wrote down; None if it is for a function."""
    return _number(process, "group")


def what_runs(process: Any) -> str:
    """The function, command or program that a claim wrote down; empty if it wrote down none."""
    runs = process.get("runs") if isinstance(process, dict) else None
    return runs if isinstance(runs, str) else ""


def _number(process: Any, key: str) -> int | None:
    number = process.get(key) if isinstance(process, dict) else None
    return number if isinstance(number, int) else None


def is_dead(host: str, process: Any) -> bool:
    """Whether the process that a claim wrote down, and its program's process group, are gone.

    Judged only on the kernel and host and in the namespaces where it ran, and only by what does
    not depend on the wall clock; whatever cannot be read there counts as alive.
    """
    return has_ended(host, process) and not _has_living_group(process)


def has_ended(host: str, process: Any) -> bool:
    """As :func:`is_dead`, of the process alone: its program may live on."""
    pid = pid_of(process)
    if pid is None or not can_judge(host, process):
        return False
    return _is_gone(pid, process.get("start"))


def can_judge(host: str, process: Any) -> bool:
    """Whether :func:`is_dead` can tell from here."""
    return _is_of_our_kernel(host, process) and _sees_own_processes()


def living_group(host: str, process: Any) -> int | None:
    """The process group of the program that a claim wrote down, if any process of it lives.

    None where there is none, and where it is not ours to judge: on another kernel or host, or in
    other namespaces. What cannot be read counts as alive.
    """
    if not _is_of_our_kernel(host, process) or not _has_living_group(process):
        return None
    return int(process["group"])


_KERNEL = ("boot_id", "pid_namespace")


def _is_of_our_kernel(host: str, process: Any) -> bool:
    own = this_process()
    if not isinstance(process, dict) or host != own.host:
        return False
    # In another time namespace the same process has another start. Old kernels have none.
    if process.get("time_namespace") != own.process["time_namespace"]:
        return False
    return all(process.get(key) and process[key] == own.process[key] for key in _KERNEL)


def _has_living_group(process: dict[str, Any]) -> bool:
    group = group_of(process)
    # First what needs no look at all the processes.
    if group is None or group <= 0 or _no_process(os.killpg, group):
        return False
    if not _sees_own_processes():
        return True
    leader = _read(f"{group}/stat")
    # Its number is given to another process only when nobody is left in the group.
    if leader is not None and _is_another(leader, process.get("group_start")):
        return False
    return not is_empty(group)


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
    return stat is not None and (_is_another(stat, start) or _is_zombie(stat))


def _is_another(stat: str, start: object) -> bool:
    return isinstance(start, int) and start_ticks(stat) != start


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
