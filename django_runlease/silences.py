"""Silences: for a while nobody is told of an alert, because somebody knows of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from . import history, log, store
from .alerts import evaluate
from .clock import Instant, Now, Seconds
from .exceptions import RunLeaseError
from .history import Row
from .incidents import open_new
from .models import ActionKind, Alert
from .phrases import gettext as _
from .text import storable


def silence(
    name: str,
    kind: str,
    alias: str,
    *,
    by: str,
    reason: str = "",
    until: datetime | None = None,
    length: timedelta | None = None,
) -> Row:
    """Let nobody be told of this alert, and no exit code tell, *until* a moment (with its UTC
    offset) or for a *length* of time; with neither, lift its silence.

    It covers the open incident and those that open later, or else those that follow the last one.
    An alert that is there now and was never recorded is recorded first. Who did it and why is
    written down in the same transaction as the silence, unless there was none to lift. Returns the
    incident. Raises ValueError if both are given, for a moment that has passed, a length that is
    not above 0, a reason of over 500 characters or a mistake in the settings of the alerts,
    RunLeaseError if there has been no such alert or an app's ``jobs.py`` cannot be imported,
    Blocked if its row stays locked.
    """
    if until is not None and length is not None:
        raise ValueError("a silence lasts until a moment or for a length of time: give one of them")
    why = store.checked_reason(reason)
    silent_until = _silent_until(alias, until, length)
    _record_first(name, kind, alias)
    alert, is_changed = _write(name, kind, alias, silent_until, by=by, reason=why)
    if alert is None:
        facts = {"lease": name, "kind": repr(kind), "command": "`manage.py runlease check`"}
        text = _("%(lease)s: there has been no alert %(kind)s; see %(command)s", **facts)
        raise RunLeaseError(text)
    if is_changed:
        _log_silence(alert, by=by, reason=reason)
    return alert


def _write(
    name: str, kind: str, alias: str, silent_until: Any, *, by: str, reason: str
) -> tuple[Row | None, bool]:
    """The last incident as it is then, if there is one, and whether there was something to do."""
    is_lifted = silent_until is None
    values = {"silenced_until": silent_until, "silenced_by": "" if is_lifted else storable(by)}

    def write() -> tuple[Row | None, bool]:
        alerts = Alert.objects.using(alias).filter(lease_name=name, kind=kind)
        newest = alerts.order_by("-opened_at", "-pk").values_list("pk", flat=True)[:1]
        keys = list(newest.select_for_update(no_key=True))
        before = next(iter(history.incidents(alias, keys)), None)
        alerts.filter(pk__in=keys).update(**values)
        after = next(iter(history.incidents(alias, keys)), None)
        if before is None or after is None or (is_lifted and not before["silenced"]):
            return after, False
        _note(after, alias, is_lifted=is_lifted, by=by, reason=reason)
        return after, True

    return store.unless_blocked(name, alias, write)


def _note(alert: Row, alias: str, *, is_lifted: bool, by: str, reason: str) -> None:
    detail = {"alert": alert["kind"]}
    if not is_lifted:
        detail["until"] = alert["silenced_until"]
    done = ActionKind.UNSILENCED if is_lifted else ActionKind.SILENCED
    store.note_action(done, alert["lease_name"], alias, by=by, reason=reason, **detail)


def _log_silence(alert: Row, *, by: str, reason: str) -> None:
    name, kind, why = alert["lease_name"], alert["kind"], log.because(reason)
    facts = {"lease": name, "kind": kind, "by": by, "reason": reason}
    if alert["silenced"]:
        facts["until"] = alert["silenced_until"]
        log.info("alert_silenced", "%s: %s: silenced by %s%s", name, kind, by, why, **facts)
    else:
        text = "%s: %s: no longer silenced, by %s%s"
        log.info("alert_unsilenced", text, name, kind, by, why, **facts)


def _record_first(name: str, kind: str, alias: str) -> None:
    if Alert.objects.using(alias).filter(lease_name=name, kind=kind).exists():
        return
    looked_at = store.database_clock(alias)
    # A host does not see all that others do, so it resolves nothing.
    found = [finding for finding in evaluate(alias, [name]) if finding.kind.value == kind]
    open_new(alias, looked_at, found)


def _silent_until(alias: str, until: datetime | None, length: timedelta | None) -> Any:
    if length is not None:
        if length <= timedelta(0):
            raise ValueError(f"{length} is no length of time: give one above 0, or none to lift it")
        return Now() + Seconds(length)
    if until is None:
        return None
    if until.utcoffset() is None:
        raise ValueError(f"{until.isoformat()} has no UTC offset: add one, as in 2030-01-31T06:00Z")
    if until.timestamp() <= store.database_clock(alias):
        raise ValueError(f"{until.isoformat()} has passed")
    return Instant(until.timestamp())
