"""``check`` and ``silence``: what is wrong, and who is told."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.core.management.base import CommandError
from django.core.management.color import Style

from ... import display, incidents, silences, store
from ...history import Row
from ...models import Severity
from ...terms import named_duration
from ...text import printable
from .console import Console, Verdict, check_known, operator

NOBODY = (
    "--notify tells nobody: set ADMINS, or connect a receiver to the signal alert_opened, or give "
    "the logger django_runlease a handler"
)

EXIT_CODES = {"ok": 0, "warning": 1, "critical": 2}

_ROLES = {Severity.CRITICAL.value: "ERROR", Severity.WARNING.value: "WARNING"}


def check(console: Console, alias: str, name: str | None, notify: bool, **options: Any) -> None:
    if name is not None:
        check_known(name, alias)
    # Also while all is well, for then there is time to mend it.
    if notify and not incidents.has_audience():
        console.warn(NOBODY)
        notify = False
    report = incidents.check(alias, name)
    try:
        if notify:
            report = incidents.notified(report, alias, name)
    finally:
        # Whatever a mail backend raises, what was found is shown.
        console.write(report.as_row(), lambda: _lines(report.alerts, console.style))
    # For the metrics; last, since it may take a while.
    store.count_runs(alias)
    code = EXIT_CODES[report.status]
    if report.untold:
        raise CommandError(printable(report.untold), returncode=max(code, 1))
    if code:
        raise Verdict(f"the worst alert is {report.status}", returncode=code)


def silence(
    console: Console,
    alias: str,
    name: str,
    kind: str,
    length: str | None,
    until: str | None,
    reason: str,
    **_: Any,
) -> None:
    alert = silences.silence(
        name,
        kind,
        alias,
        by=operator(),
        reason=reason,
        until=None if until is None else _moment(until),
        length=None if length is None else named_duration("--for", length),
    )
    console.write(alert, lambda: _silence_line(alert))


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--until: {text!r} is not ISO 8601: write it as 2030-01-31T06:00:00+00:00"
        ) from None


def _lines(alerts: list[Row], style: Style) -> str:
    return "\n".join(_line(alert, style) for alert in alerts) or "All is well: no alert."


def _line(alert: Row, style: Style) -> str:
    paint = getattr(style, _ROLES[alert["severity"]])
    head = f"{alert['lease_name']}: {alert['kind']}: {alert['message']}"
    line = f"{paint(alert['severity'].upper())} {printable(head)} — {printable(alert['remedy'])}"
    return f"{line} ({_silent(alert)})" if alert["silenced"] else line


def _silent(alert: Row) -> str:
    by = f" by {printable(alert['silenced_by'])}" if alert["silenced_by"] else ""
    return f"silenced until {display.moment(alert['silenced_until'])}{by}"


def _silence_line(alert: Row) -> str:
    said = _silent(alert) if alert["silenced"] else "not silenced"
    return f"{printable(alert['lease_name'])}: {alert['kind']}: {said}."
