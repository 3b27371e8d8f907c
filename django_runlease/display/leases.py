"""Leases: the list of them, and all that is known of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..history import Row
from ..holder import group_of, has_ended, pid_of, what_runs
from ..models import Severity, State
from ..terms import short
from ..text import printable
from .actions import action_table
from .figures import summary
from .page import Block, Card, Cell, Column, Page, Table
from .runs import decline_table, run_table
from .text import cut_middle
from .times import age, moment

_ROLES = {State.HELD: "SUCCESS", State.EXPIRED: "ERROR", State.PAUSED: "WARNING"}


def lease_table(leases: Iterable[Row]) -> Page:
    """One line for each lease: its name, state with ages, holder and generation."""
    columns = [
        Column(title="NAME", cut=cut_middle),
        Column(title="STATE"),
        Column(title="HOLDER", cut=cut_middle),
        Column(title="GENERATION", right=True),
    ]
    rows = [
        [
            Cell(printable(lease["name"])),
            _state(lease),
            Cell(printable(lease["holder"])),
            Cell(str(lease["generation"])),
        ]
        for lease in leases
    ]
    return [Table(columns, rows)]


def lease_page(lease: Row) -> Page:
    """All that ``card.card`` tells of one lease, labelled, its last runs and declines, and what
    operators did last."""
    page: list[Block] = [Card(list(_labelled(lease)))]
    if lease["runs"]:
        page += run_table(lease["runs"], named=False, heading="Last runs")
    else:
        page.append(Cell("No run yet."))
    if lease["declines"]:
        page += decline_table(lease["declines"], heading="Last declines")
    if lease["actions"]:
        page += action_table(lease["actions"], named=False, heading="What operators did")
    return page


def _labelled(lease: Row) -> Iterator[tuple[str, Cell]]:
    yield "Name", Cell(printable(lease["name"]))
    yield "State", _state(lease)
    for alert in lease["alerts"]:
        yield "Alert", _alert(alert)
    yield "Paused by", Cell(printable(lease["paused_by"]))
    yield "Reason", Cell(printable(lease["paused_reason"]))
    yield from _holder(lease)
    yield from _progress(lease)
    yield "Generation", Cell(str(lease["generation"]))
    for label, key in (("TTL", "ttl"), ("Every", "every")):
        yield label, Cell("" if lease[key] is None else short(lease[key]))
    for key in ("claimed_at", "expires_at", "not_before", "last_tick"):
        yield key.removesuffix("_at").replace("_", " ").capitalize(), Cell(moment(lease[key]))
    if lease["declines_since_start"]:
        yield "Declined", Cell(f"{lease['declines_since_start']} in a row since the last start")
    yield from summary(lease["statistics"])
    if lease["uncertain_effects"]:
        remedy = "see `manage.py runlease effects --uncertain`"
        yield "Effects", Cell(f"{lease['uncertain_effects']} uncertain: {remedy}", "ERROR")


def _holder(lease: Row) -> Iterator[tuple[str, Cell]]:
    yield "Holder", Cell(printable(lease["holder"]))
    yield "Host", Cell(printable(lease["host"]))
    yield "Process", _process(lease)
    runs = what_runs(lease["holder_process"])
    if runs:
        yield "Runs", Cell(printable(runs))
    group = group_of(lease["holder_process"])
    if group is not None:
        yield "Program", Cell(f"process group {group}")
    if lease["renewed_ago"] is not None:
        by = "" if lease["heartbeat"] else ", by hand: it has no heartbeat"
        yield "Heartbeat", Cell(f"renewed {age(lease['renewed_ago'])} ago{by}")


def _process(lease: Row) -> Cell:
    pid = pid_of(lease["holder_process"])
    if pid is None:
        return Cell("")
    if lease["process_gone"]:
        return Cell(f"{pid}, which is gone", "ERROR")
    if has_ended(lease["host"], lease["holder_process"]):
        return Cell(f"{pid}, which is gone; its program goes on", "ERROR")
    started = lease["process_age"]
    since = "" if started is None else f", started {age(started)} ago"
    return Cell(f"{pid}{since}")


def _progress(lease: Row) -> Iterator[tuple[str, Cell]]:
    progress, share = lease["progress"], lease["progress_share"]
    if not isinstance(progress, Mapping):
        return
    words = []
    if share is not None:
        # Not 100% before it is done.
        words.append(f"{int(share * 100)}%")
    numbers = [_number(progress[key]) for key in ("done", "total") if progress.get(key) is not None]
    if numbers:
        words.append(" of ".join(numbers))
    if lease["estimated_left"] is not None:
        words.append(f"about {age(lease['estimated_left'])} left")
    yield "Progress", Cell(printable(", ".join(words)), share=share)
    yield "Message", Cell(printable(str(progress.get("message") or "")))


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _alert(alert: Row) -> Cell:
    about = f"{alert['kind']}, {alert['severity']}, since {moment(alert['opened_at'])}"
    if alert["silenced"]:
        about += f", silenced until {moment(alert['silenced_until'])}"
    role = "ERROR" if alert["severity"] == Severity.CRITICAL else "WARNING"
    text = f"{about}: {alert['message']}"
    if alert["remedy"]:
        text += f" ({alert['remedy']})"
    return Cell(printable(text), "" if alert["silenced"] else role)


def _state(lease: Row) -> Cell:
    state, expires_in = lease["state"], lease["expires_in"]
    if state == State.EXPIRED:
        words = [f"expired {age(expires_in)} ago"]
    elif state == State.HELD:
        words = [held_for(lease), f"expires in {age(expires_in)}"]
    else:
        words = [state]
        if expires_in is not None:
            words.append(held_for(lease) if expires_in > 0 else "expired")
    if lease["due_in"] is not None and expires_in is None:
        words.append(f"due in {age(lease['due_in'])}")
    return Cell(", ".join(words), _ROLES.get(state, ""))


def held_for(lease: Row) -> str:
    """``held 2m 10s``."""
    return "held" if lease["held_for"] is None else f"held {age(lease['held_for'])}"
