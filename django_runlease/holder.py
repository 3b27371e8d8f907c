"""Who am I? The identity that a claim writes into its lease."""

from __future__ import annotations

import os
import socket
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
