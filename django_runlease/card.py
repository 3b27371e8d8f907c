"""All that is known of one lease and its holder, to look at."""

from __future__ import annotations

import math
import os
from typing import Any, TypeGuard

from . import clock, history
from .history import Row
from .holder import is_dead, this_process
from .models import Outcome, State
from .search import Filters
from .statistics import statistics

RUNS_SHOWN = 10
DECLINES_SHOWN = 5
ACTIONS_SHOWN = 5

_RUNS = Filters(
    outcomes=tuple(value for value in Outcome.values if value != Outcome.DECLINED), bypasses=False
)
_DECLINES = Filters(outcomes=(Outcome.DECLINED.value,))


def card(lease: Row, alias: str) -> Row:
    """*lease*, as ``history.lease`` gives it, with what else is known of it. In lengths of seconds:

    ``process_age``, since the holder's process started, known on the kernel where it runs;
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
        "uncertain_effects": len(
            history.effects(alias, name, uncertain=True, limit=history.LARGEST_LIMIT)
        ),
        "declines_since_start": history.declines_since(alias, name, lease["claimed_at"]),
        "statistics": statistics(alias, name),
        "runs": history.runs(alias, name, limit=RUNS_SHOWN, filters=_RUNS),
        "declines": history.runs(alias, name, limit=DECLINES_SHOWN, filters=_DECLINES),
        "actions": history.actions(alias, name, limit=ACTIONS_SHOWN),
    }


def with_holder(lease: Row) -> Row:
    """*lease* with what can be told of its holder without asking the database, as :func:`card`."""
    share = progress_share(lease["progress"])
    return {
        **lease,
        "process_age": process_age(lease["holder_process"]),
        "process_gone": is_dead(lease["host"], lease["holder_process"]),
        "progress_share": share,
        "estimated_left": _estimated_left(lease, share),
    }


def process_age(process: Any) -> float | None:
    """Seconds since the process that a claim wrote down started; None unless it is of the kernel
    that this process runs on, and its start is known."""
    if not isinstance(process, dict) or not process.get("boot_id"):
        return None
    own, start = this_process().process, process.get("start")
    if process["boot_id"] != own["boot_id"] or not isinstance(start, int):
        return None
    age = clock.local() - start / os.sysconf("SC_CLK_TCK")
    return round(age, 2) if age >= 0 else None


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
    if lease["state"] == State.EXPIRED or lease["expires_in"] <= 0:
        return None
    left = (held - old) * (1 - share) / share - old
    return round(left, 6) if left > 0 and math.isfinite(left) else None
