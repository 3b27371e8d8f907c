"""All that is known of one lease and its holder, to look at."""

from __future__ import annotations

import math
from typing import Any, TypeGuard

from . import history
from .history import Row
from .holder import age, has_ended, is_dead, this_process
from .search import RUNS, TICKS
from .statistics import statistics

RUNS_SHOWN = 10
DECLINES_SHOWN = 5
ACTIONS_SHOWN = 5


def card(lease: Row, alias: str) -> Row:
    """*lease*, as ``history.lease`` gives it, with what else is known of it. In lengths of seconds:

    ``process_age``, since the holder's process started;
    ``process_gone``, whether that process and its program's group are seen to be gone, which is
    judged on its own host only; ``progress_share``, from 0 to 1; ``estimated_left``, until all is
    done if it goes on as it did on average; open ``alerts``; ``uncertain_effects``, how many;
    ``declines_since_start``, how many since the last claim that was granted; ``statistics`` of the
    last seven days; the last ``runs``, without declined ticks and bypasses; the last ``declines``;
    and the last ``actions`` of operators. Null is what cannot be told.
    """
    name = lease["name"]
    return {
        **with_holder(lease),
        "alerts": history.alerts(alias, name),
        "uncertain_effects": history.uncertain_effects(alias, name),
        "declines_since_start": history.declines_since(alias, name, lease["claimed_at"]),
        "statistics": statistics(alias, name),
        "runs": history.runs(alias, name, limit=RUNS_SHOWN, filters=RUNS),
        "declines": history.runs(alias, name, limit=DECLINES_SHOWN, filters=TICKS),
        "actions": history.actions(alias, name, limit=ACTIONS_SHOWN),
    }


def with_holder(lease: Row) -> Row:
    """*lease* with what can be told of its holder without asking the database, as :func:`card`."""
    share = progress_share(lease["progress"])
    return {
        **lease,
        "process_age": process_age(lease),
        "process_gone": is_dead(lease["host"], lease["holder_process"]),
        "progress_share": share,
        "estimated_left": _estimated_left(lease, share),
    }


def process_age(lease: Row) -> float | None:
    """Seconds since the process that holds *lease* started: seen on the kernel where it runs, else
    reckoned from what its claim wrote down; None where neither can be, or where it has ended."""
    process, held = lease["holder_process"], lease["held_for"]
    if not isinstance(process, dict) or has_ended(lease["host"], process):
        return None
    boot_id = process.get("boot_id")
    if boot_id and boot_id == this_process().process["boot_id"]:
        return age(process)
    at_claim = process.get("age")
    return round(at_claim + held, 2) if _is_number(at_claim) and held is not None else None


def progress_share(progress: Any) -> float | None:
    """Which part is done, from 0 to 1; None where no total is told, or the two make no sense."""
    if not isinstance(progress, dict):
        return None
    done, total = progress.get("done"), progress.get("total")
    if not _is_number(done) or not _is_number(total) or not 0 <= done <= total or total == 0:
        return None
    try:
        return float(done / total)
    except OverflowError:
        return None


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _estimated_left(lease: Row, share: float | None) -> float | None:
    # What is written down of the progress is as old as the last renewal.
    held, old = lease["held_for"], lease["renewed_ago"]
    if not share or share == 1 or held is None or old is None or not lease["expires_in"]:
        return None
    if lease["expires_in"] <= 0:
        return None
    left = (held - old) * (1 - share) / share - old
    return round(left, 6) if left > 0 and math.isfinite(left) else None
