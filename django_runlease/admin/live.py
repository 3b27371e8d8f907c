"""The alerts of the leases on a page as they are now, whether or not a check has seen them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.db.models.expressions import RawSQL

from ..alerts import Finding, evaluate
from ..exceptions import RunLeaseError
from ..history import Row
from ..holder import can_judge
from ..models import Alert, AlertKind
from ..phrases import translated
from ..text import one_line
from . import words
from .figures import alert_rows, open_alerts, worst_first

OUT_OF_SIGHT = (AlertKind.GHOST.value, AlertKind.OVERDUE.value, AlertKind.UNCERTAIN.value)
"""The kinds that one host may find, and another cannot see."""

_Key = tuple[str, str]
"""The name of a lease, and the kind of an alert."""

# A silence goes on from the last incident to the next.
_LAST = """
    SELECT last.id
      FROM unnest(%s::text[], %s::text[]) AS found (lease_name, kind)
      JOIN LATERAL (
        SELECT alert.id FROM {alert} alert
         WHERE alert.lease_name = found.lease_name AND alert.kind = found.kind
         ORDER BY alert.opened_at DESC LIMIT 1
     ) last ON true
"""


@dataclass(frozen=True, kw_only=True)
class Live:
    alerts: dict[str, list[Row]]
    """By lease, the worst first; each as :func:`figures.open_alerts` has it, with ``opened`` None
    if no check has recorded it, and ``is_recorded`` if it is told as the last check saw it."""
    problem: str = ""
    """Why all are told as the last check saw them: a mistake in the settings or a ``jobs.py``."""


def live(alias: str, leases: Iterable[Any]) -> Live:
    """What is wrong with *leases* (as :func:`figures.with_view` has them), in at most three
    queries.

    The rules are applied to what is there now. An open incident adds since when, and its silence.

    An incident whose rule applies no longer is not shown: the next check resolves it. The rules
    judge the rows in one statement on the database's clock, so a check would find the same, but
    for what only the host of a holder can see: that its process is gone. That makes a ghost of a
    lease which has not expired, and lets a job be overdue and its effects be uncertain although
    their lease is held. So if a lease is held by a process that cannot be judged from here, its
    incidents of these kinds stay, as the last check saw them. A lease that seems to be stuck from
    here may be a ghost there: then both are shown.
    """
    shown = list(leases)
    recorded = open_alerts(alias, [lease.name for lease in shown])
    try:
        findings = evaluate(alias, [lease.name for lease in shown])
    except (ValueError, RunLeaseError) as error:
        return Live(alerts=recorded, problem=words.prose(one_line(error)))
    known = {(row["lease_name"], row["kind"]): row for rows in recorded.values() for row in rows}
    silences = _silences(alias, [found for found in findings if _key(found) not in known])
    keys = {_key(found) for found in findings}
    alerts: dict[str, list[Row]] = {lease.name: [] for lease in shown}
    now = {lease.name: lease.now for lease in shown}
    for found in findings:
        base = known.get(_key(found)) or silences.get(_key(found)) or _UNKNOWN
        alerts[found.lease_name].append(_row(found, base, now[found.lease_name]))
    hidden = {lease.name for lease in shown if _is_out_of_sight(lease)}
    for name, kind in known.keys() - keys:
        if name in hidden and kind in OUT_OF_SIGHT:
            alerts[name].append(known[name, kind])
    return Live(alerts={name: worst_first(rows) for name, rows in alerts.items()})


_UNKNOWN: Row = {"opened": None, "silent": None, "silenced": False, "silenced_by": ""}


def _row(found: Finding, base: Row, now: float) -> Row:
    return {
        **base,
        "lease_name": found.lease_name,
        "kind": found.kind.value,
        "severity": found.severity.value,
        "message": translated(found.message),
        "remedy": translated(found.remedy),
        "now": now,
        "is_recorded": False,
    }


def _key(found: Finding) -> _Key:
    return found.lease_name, found.kind.value


def _silences(alias: str, findings: Sequence[Finding]) -> dict[_Key, Row]:
    """The last incident of each of *findings*, which is over; as one that has not begun."""
    if not findings:
        return {}
    table = connections[alias].ops.quote_name(Alert._meta.db_table)
    names, kinds = zip(*map(_key, findings), strict=True)
    # Not from outside: it is the text above.
    last = RawSQL(_LAST.format(alert=table), [list(names), list(kinds)])  # noqa: S611
    rows = alert_rows(Alert.objects.using(alias).filter(pk__in=last))
    return {(row["lease_name"], row["kind"]): {**row, "opened": None} for row in rows}


def _is_out_of_sight(lease: Any) -> bool:
    held = lease.token is not None and lease.expires_epoch > lease.now
    return held and not can_judge(lease.host, lease.holder_process)
