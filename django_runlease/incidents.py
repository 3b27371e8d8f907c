"""What is kept of the alerts: one row for each incident, from its first finding to its end.

A check looks first and writes then, so two of them may come to different findings. Each says when
it began to look: it opens nothing that was resolved since then, and resolves nothing that was
opened since then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from smtplib import SMTPException
from typing import Any

from django.conf import settings
from django.core.mail import mail_admins
from django.db import connections
from django.db.models import Q, QuerySet

from . import history, log, signals, store
from .alerts import Finding, evaluate
from .clock import Epoch, Now, utc
from .history import Row
from .models import Alert, Severity
from .terms import short
from .text import printable, summary

_SEVERITIES = (Severity.CRITICAL.value, Severity.WARNING.value)

_FOUND = """
    found AS MATERIALIZED (
        SELECT * FROM unnest(%(names)s::text[], %(kinds)s::text[], %(severities)s::text[],
                             %(messages)s::text[], %(remedies)s::text[])
            AS found (lease_name, kind, severity, message, remedy)
    )
"""

# A silence goes on from one incident to the next. In order, so that two checks wait for each
# other's rows in the same one.
_OPEN = """
    WITH {found}
    INSERT INTO {alert} (lease_name, kind, severity, message, remedy, opened_at,
                         silenced_until, silenced_by)
    SELECT found.*, clock_timestamp(), last.silenced_until, coalesce(last.silenced_by, '')
      FROM found
      LEFT JOIN LATERAL (
        SELECT alert.resolved_at, alert.silenced_until, alert.silenced_by
          FROM {alert} alert
         WHERE alert.lease_name = found.lease_name AND alert.kind = found.kind
         ORDER BY alert.opened_at DESC LIMIT 1
     ) last ON true
     WHERE last.resolved_at IS NULL OR last.resolved_at <= to_timestamp(%(looked_at)s)
     ORDER BY found.lease_name, found.kind
        ON CONFLICT (lease_name, kind) WHERE resolved_at IS NULL DO NOTHING
"""

# Without waiting: whoever notifies keeps the row locked while the mail is sent.
_UPDATE = """
    WITH {found}, changed AS MATERIALIZED (
        SELECT alert.id, found.severity, found.message, found.remedy
          FROM {alert} alert JOIN found USING (lease_name, kind)
         WHERE alert.resolved_at IS NULL
           AND (alert.severity, alert.message, alert.remedy)
               IS DISTINCT FROM (found.severity, found.message, found.remedy)
           FOR UPDATE OF alert SKIP LOCKED
    )
    UPDATE {alert} alert
       SET severity = changed.severity, message = changed.message, remedy = changed.remedy
      FROM changed
     WHERE alert.id = changed.id
"""

_RESOLVE = """
    WITH {found}, over AS MATERIALIZED (
        SELECT alert.id
          FROM {alert} alert LEFT JOIN found USING (lease_name, kind)
         WHERE alert.resolved_at IS NULL AND found.kind IS NULL
           AND (%(name)s::text IS NULL OR alert.lease_name = %(name)s)
           AND alert.opened_at <= to_timestamp(%(looked_at)s)
           FOR UPDATE OF alert SKIP LOCKED
    )
    UPDATE {alert} alert SET resolved_at = clock_timestamp() FROM over WHERE alert.id = over.id
"""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found."""

    looked_at: float
    """When it began to look, in epoch seconds on the database's clock."""
    alerts: list[Row]
    """As :func:`history.alerts` gives them, the worst first; ``opened_at`` is None for what is
    not recorded."""
    untold: str = ""
    """Why the admins could not be told; the next check that notifies tries again."""

    @property
    def status(self) -> str:
        """The worst severity among the alerts that are not silenced, or ``ok``."""
        loud = {alert["severity"] for alert in self.alerts if not alert["silenced"]}
        return next((severity for severity in _SEVERITIES if severity in loud), "ok")

    def as_row(self) -> Row:
        """The report, ready for JSON."""
        checked_at = history.iso(self.looked_at)
        return {"status": self.status, "checked_at": checked_at, "alerts": self.alerts}


def look(alias: str, name: str | None = None) -> Report:
    """What is wrong with all leases, or with *name*. Nothing is written.

    Raises ValueError for mistakes in the settings of the alerts, RunLeaseError where an app's
    ``jobs.py`` cannot be imported, and Django's database errors.
    """
    looked_at = store.database_clock(alias)
    return _report(alias, looked_at, evaluate(alias, _names(name)), name)


def check(alias: str, name: str | None = None, *, notify: bool = False) -> Report:
    """Close the Runs of dead holders, see what is wrong, open, update and resolve incidents, and
    tell of them if asked to *notify*.

    Raises RunLeaseError within an open transaction or where an app's ``jobs.py`` cannot be
    imported, ValueError for mistakes in the settings of the alerts, and Django's database errors.
    """
    store.close_dead_runs(alias, name)
    looked_at = store.database_clock(alias)
    findings = evaluate(alias, _names(name))
    record(alias, looked_at, findings, name)
    report = _report(alias, looked_at, findings, name)
    return notified(report, alias, name) if notify else report


def _names(name: str | None) -> list[str] | None:
    return None if name is None else [name]


def record(
    alias: str, looked_at: float, findings: Sequence[Finding], name: str | None = None
) -> None:
    """Open an incident for each new one of *findings*, update the open ones, and resolve those (of
    all leases, or of *name*) that are no longer found."""
    _write(alias, (_OPEN, _UPDATE, _RESOLVE), looked_at, findings, name)


def open_new(alias: str, looked_at: float, findings: Sequence[Finding]) -> None:
    """Open an incident for each new one of *findings*, and leave all others as they are."""
    _write(alias, (_OPEN,), looked_at, findings, None)


def _write(
    alias: str,
    statements: Sequence[str],
    looked_at: float,
    findings: Sequence[Finding],
    name: str | None,
) -> None:
    params: dict[str, Any] = {
        "names": [finding.lease_name for finding in findings],
        "kinds": [finding.kind.value for finding in findings],
        "severities": [finding.severity.value for finding in findings],
        "messages": [str(finding.message) for finding in findings],
        "remedies": [str(finding.remedy) for finding in findings],
        "looked_at": looked_at,
        "name": name,
    }
    table = connections[alias].ops.quote_name(Alert._meta.db_table)

    def write() -> None:
        with connections[alias].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement.format(alert=table, found=_FOUND), params)

    store.in_transaction(alias, write)


def _report(alias: str, looked_at: float, findings: Sequence[Finding], name: str | None) -> Report:
    recorded = _recorded(alias, name)
    alerts = []
    for finding in findings:
        known = recorded.get((finding.lease_name, finding.kind.value)) or history.unrecorded_alert()
        found = {
            "kind": finding.kind.value,
            "lease_name": finding.lease_name,
            "severity": finding.severity.value,
            "message": str(finding.message),
            "remedy": str(finding.remedy),
        }
        alerts.append({**known, **found})
    alerts.sort(key=lambda row: (_SEVERITIES.index(row["severity"]), row["lease_name"]))
    return Report(looked_at=looked_at, alerts=alerts)


def _recorded(alias: str, name: str | None) -> dict[tuple[str, str], Row]:
    return {_key(row): row for row in history.alerts(alias, name)}


def _key(alert: Row) -> tuple[str, str]:
    return alert["lease_name"], alert["kind"]


# -- telling


def has_audience() -> bool:
    """Whether anybody is told of an incident: the admins, a receiver of ``alert_opened``, or the
    log, if LOGGING has a handler for it."""
    return bool(
        settings.ADMINS or not log.listens_alone(signals.alert_opened, Alert) or log.is_kept()
    )


def notified(report: Report, alias: str, name: str | None = None) -> Report:
    """Tell of the incidents, as :func:`tell` does; the *report* of them as it is then.

    Raises what a mail backend raises, but for what :func:`tell` takes as not sent.
    """
    untold = tell(alias, name)
    recorded = _recorded(alias, name)
    alerts = [
        {**alert, "notified_at": recorded.get(_key(alert), alert)["notified_at"]}
        for alert in report.alerts
    ]
    return replace(report, alerts=alerts, untold=untold)


def tell(alias: str, name: str | None = None) -> str:
    """Tell of each incident once, and once of its end: a mail to the admins, and signals.

    What is silenced waits until the silence ends; what began and ended untold is not told. Of two
    that tell at once, one does. After a crash between the mail and its commit it is told again.
    Returns why the mail could not be sent, else nothing: then no signal was sent either, and the
    next call tells of all of it.
    """
    try:
        opened, ended = store.in_transaction(alias, lambda: _tell(alias, name))
    except (OSError, SMTPException) as error:
        return f"the mail to the admins was not sent ({summary(error)}); the next check tries again"
    for alert in opened:
        del alert["resolved_at"]
        signals.send(signals.alert_opened, Alert, using=alias, **alert)
    for alert in ended:
        signals.send(signals.alert_resolved, Alert, using=alias, **alert)
    return ""


Facts = dict[str, Any]
"""What the signals tell of an alert."""


def _tell(alias: str, name: str | None) -> tuple[list[Facts], list[Facts]]:
    alerts = Alert.objects.using(alias).filter(
        Q(silenced_until__isnull=True) | Q(silenced_until__lte=Now())
    )
    if name is not None:
        alerts = alerts.filter(lease_name=name)
    untold = alerts.filter(resolved_at=None, notified_at=None)
    ended = alerts.filter(
        resolved_at__isnull=False, notified_at__isnull=False, recovery_notified_at=None
    )
    openings, recoveries = _locked(untold), _locked(ended)
    news = _facts(openings), _facts(recoveries)
    if any(news):
        _mail(*news)
        openings.update(notified_at=Now())
        recoveries.update(recovery_notified_at=Now())
    return news


def _locked(alerts: QuerySet[Alert]) -> QuerySet[Alert]:
    """Those of *alerts* that nobody else is telling of just now."""
    lock = alerts.select_for_update(skip_locked=True)
    return Alert.objects.using(alerts.db).filter(pk__in=list(lock.values_list("pk", flat=True)))


def _facts(alerts: QuerySet[Alert]) -> list[Facts]:
    moments = {"opened": Epoch("opened_at"), "resolved": Epoch("resolved_at")}
    rows = alerts.annotate(**moments).order_by("lease_name", "kind", "pk")
    return [
        {
            "lease": row["lease_name"],
            "kind": row["kind"],
            "severity": row["severity"],
            "message": row["message"],
            "remedy": row["remedy"],
            "opened_at": utc(row["opened"]),
            "resolved_at": utc(row["resolved"]),
        }
        for row in rows.values("lease_name", "kind", "severity", "message", "remedy", *moments)
    ]


def _mail(opened: list[Facts], ended: list[Facts]) -> None:
    subjects = [f"{alert['lease']}: {alert['kind']}, {alert['severity']}" for alert in opened]
    subjects += [f"{alert['lease']}: {alert['kind']} is over" for alert in ended]
    if len(subjects) == 1:
        subject = printable(subjects[0])
    else:
        subject = f"runlease: {len(opened)} alerts opened, {len(ended)} resolved"
    body = "\n\n".join([*map(_opening, opened), *map(_recovery, ended)])
    mail_admins(subject, body)


def _opening(alert: Facts) -> str:
    since = _moment(alert["opened_at"])
    head = f"{alert['lease']}: {alert['kind']}, {alert['severity']}, since {since}"
    return "\n".join(map(printable, [head, alert["message"], alert["remedy"]]))


def _recovery(alert: Facts) -> str:
    lasted = short(alert["resolved_at"] - alert["opened_at"])
    head = f"{alert['lease']}: {alert['kind']} is over since {_moment(alert['resolved_at'])}"
    return "\n".join(map(printable, [f"{head}, after {lasted}", f"It was: {alert['message']}"]))


def _moment(instant: datetime) -> str:
    return f"{instant:%Y-%m-%d %H:%M:%S} UTC"
