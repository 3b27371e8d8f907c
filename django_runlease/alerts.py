"""What is wrong with a lease and its job: one small rule for each kind of alert.

===========  ========  ============================================================================
kind         severity  when
===========  ========  ============================================================================
overrun      warning   the last run, or the one that goes on, is above a share of ``every``;
                       critical above all of it
contention   warning   ticks were declined as held or busy, of late
starved      critical  ticks in a row were declined as held or busy since the last start
overdue      critical  no start within ``every`` and a grace; not while it is held or paused
failing      critical  failures in a row
stuck        critical  held, and its heartbeat is late; or it expires later than its ttl allows,
                       because the database's clock was set back
ghost        warning   expired or its process is gone, and nobody has taken over
lost         critical  a run lost its lease, and none has succeeded since
uncertain    warning   external actions were begun and not confirmed, and nobody is at them
===========  ========  ============================================================================

:mod:`thresholds` has the numbers, :mod:`situation` what the rules look at, and :mod:`incidents`
what is kept of it. A job that has never started is not overdue: nothing says since when.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import jobs, store
from .conf import conf
from .models import AlertKind, Severity
from .situation import MOST_FAILURES, Situation, situations
from .terms import declaration, declared, short
from .thresholds import Thresholds, thresholds

LATE_SHARE = 2 / 3
"""Of its ttl: a lease is renewed every third, so by then one beat has failed."""

CLOCK_SLACK = 1.0
"""Seconds by which an expiry may lie further ahead than the ttl."""

GRACE_SHARE = 0.1
SHORTEST_GRACE = 60.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A rule that applies to a lease now."""

    lease_name: str
    kind: AlertKind
    severity: Severity
    message: str
    """One line with the figures."""
    remedy: str
    """One line that names a command."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    severity: Severity
    message: str
    remedy: str


Rule = Callable[[Situation, Mapping[str, Any]], _Verdict | None]
"""Judges a situation by the keys of its thresholds."""


def _warning(message: str, remedy: str) -> _Verdict:
    return _Verdict(severity=Severity.WARNING, message=message, remedy=remedy)


def _critical(message: str, remedy: str) -> _Verdict:
    return _Verdict(severity=Severity.CRITICAL, message=message, remedy=remedy)


def _length(seconds: float | None) -> str:
    # PostgreSQL knows infinity; only a hand writes it.
    return short(seconds) if seconds is not None and math.isfinite(seconds) else "?"


def _ticks(count: int) -> str:
    return "1 tick" if count == 1 else f"{count} ticks"


def _command(action: str, lease: Situation, *options: str) -> str:
    # After -- a name may begin with a dash.
    dashes = ["--"] if lease.name.startswith("-") else []
    words = [action, *options, *_using(lease), *dashes, shlex.quote(lease.name)]
    return f"`manage.py runlease {' '.join(words)}`"


def _see_schedule(lease: Situation) -> str:
    words = ["runjob", *_using(lease), shlex.quote(lease.name)]
    start = f"start it: `manage.py {' '.join(words)}`"
    # A lease may be claimed in code, or for a program that the history does not name.
    if lease.name.startswith("-") or lease.name not in jobs.all_names():
        start = f"see who ran it last: {_command('show', lease)}"
    return f"see that its schedule runs, or {start}"


def _using(lease: Situation) -> list[str]:
    return ["--using", shlex.quote(lease.using)] if lease.using else []


def overrun(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.every:
        return None
    running = (lease.started_ago or 0.0) if lease.is_held else 0.0
    last = lease.last_duration or 0.0
    length = max(running, last)
    if length <= keys["share"] * lease.every:
        return None
    share = f"{100 * length / lease.every:.0f} %" if math.isfinite(length) else "?"
    what = "has been running for" if running >= last else "took, in its last run,"
    message = f"it {what} {_length(length)}, {share} of every ({_length(lease.every)})"
    remedy = f"see {_command('show', lease)}; make the job faster, or its interval longer"
    return (_critical if length > lease.every else _warning)(message, remedy)


def contention(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.contended < keys["count"]:
        return None
    message = (
        f"{_ticks(lease.contended)} declined as held or busy in the last {short(keys['window'])}"
    )
    return _warning(message, f"see {_command('history', lease)} for what held it then")


def starved(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.starved < keys["count"]:
        return None
    since = "" if lease.started_ago is None else f" since its last start {_ago(lease.started_ago)}"
    message = f"{_ticks(lease.starved)} in a row declined as held or busy{since}"
    remedy = f"see {_command('show', lease)} for what holds it; if that hangs, "
    return _critical(message, remedy + _command("break", lease))


def overdue(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.every or lease.started_ago is None or lease.paused or lease.is_held:
        return None
    grace = keys["grace"]
    if grace is None:
        grace = max(GRACE_SHARE * lease.every, SHORTEST_GRACE)
    # A tick that a pause declined shows that the schedule works, so the time starts from there.
    waiting = lease.started_ago
    if lease.paused_tick_ago is not None:
        waiting = min(waiting, lease.paused_tick_ago)
    if waiting <= lease.every + grace:
        return None
    message = (
        f"no start for {_length(waiting)}, where one is due every {_length(lease.every)} "
        f"(and a grace of {_length(grace)})"
    )
    return _critical(message, _see_schedule(lease))


def failing(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.failures < min(keys["count"], MOST_FAILURES):
        return None
    more = " or more" if lease.failures == MOST_FAILURES else ""
    message = f"{lease.failures}{more} failures in a row, {_last_success(lease)}"
    return _critical(message, f"see {_command('history', lease)} for the errors")


def stuck(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.is_held or lease.expires_in is None or lease.ttl is None:
        return None
    if lease.expires_in > lease.ttl + CLOCK_SLACK:
        message = (
            f"it expires in {_length(lease.expires_in)} although its ttl is {_length(lease.ttl)}: "
            "the database's clock was set back"
        )
        remedy = f"if {lease.holder} is gone, {_command('break', lease)}, with --now"
        return _critical(message, remedy)
    if not lease.heartbeat or (lease.renewed_ago or 0.0) <= LATE_SHARE * lease.ttl:
        return None
    message = (
        f"held by {lease.holder}, which renewed it {_ago(lease.renewed_ago)}, with a ttl of "
        f"{_length(lease.ttl)}: it hangs, is frozen, or cannot reach the database"
    )
    remedy = f"look at that process; it expires in {_length(lease.expires_in)}, or "
    return _critical(message, remedy + _command("break", lease))


def ghost(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.expires_in is None or lease.is_held:
        return None
    if lease.left_group is not None:
        message = (
            f"the lease of {lease.holder} expired {_ago(-lease.expires_in)}, and its program still "
            f"runs: ticks decline while the process group {lease.left_group} lives"
        )
        return _warning(message, f"end that group, or {_command('break', lease)}")
    if lease.expires_in <= 0:
        what = f"the lease of {lease.holder} expired {_ago(-lease.expires_in)}"
    else:
        what = f"the process of its holder {lease.holder} is gone"
    remedy = f"the next tick takes over: {_see_schedule(lease)}"
    return _warning(f"{what}, and nobody has taken over", remedy)


def lost(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.lost_ago is None:
        return None
    message = f"the run begun {_ago(lease.lost_ago)} lost its lease, {_last_success(lease)}"
    remedy = f"see {_command('history', lease)} for why; work may be half done"
    return _critical(message, remedy)


def uncertain(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.uncertain:
        return None
    count = "1 external action" if lease.uncertain == 1 else f"{lease.uncertain} external actions"
    message = f"{count} begun and never confirmed: nobody knows whether done"
    remedy = f"see {_command('effects', lease, '--uncertain')}, and reconcile"
    return _warning(message, remedy)


RULES: Mapping[AlertKind, Rule] = {
    AlertKind.OVERRUN: overrun,
    AlertKind.CONTENTION: contention,
    AlertKind.STARVED: starved,
    AlertKind.OVERDUE: overdue,
    AlertKind.FAILING: failing,
    AlertKind.STUCK: stuck,
    AlertKind.GHOST: ghost,
    AlertKind.LOST: lost,
    AlertKind.UNCERTAIN: uncertain,
}


def judge(lease: Situation, limits: Thresholds) -> list[Finding]:
    """What is wrong with *lease*, by the rules that are on."""
    verdicts = {
        kind: rule(lease, limits[kind]) for kind, rule in RULES.items() if kind.value in limits
    }
    return [
        Finding(
            lease_name=lease.name,
            kind=kind,
            severity=verdict.severity,
            message=verdict.message,
            remedy=verdict.remedy,
        )
        for kind, verdict in verdicts.items()
        if verdict
    ]


def evaluate(alias: str, name: str | None = None) -> list[Finding]:
    """What is wrong with all leases, or with *name*, in one statement; nothing is written.

    Raises ValueError for a mistake in RUNLEASE["ALERTS"] or in the alerts of a job, and Django's
    database errors.
    """
    base, own = _limits()
    windows = {job: _window(limits) for job, limits in own.items()}
    found = situations(alias, name, window=_window(base), windows=windows)
    using = "" if alias == store.default_alias() else alias
    return [
        finding
        for lease in found
        for finding in judge(replace(lease, using=using), own.get(lease.name, base))
    ]


def _window(limits: Thresholds) -> float:
    # Where the rule is off, nobody looks at what is counted.
    contention = limits.get(AlertKind.CONTENTION.value)
    return float(contention["window"]) if contention else 0.0


def _limits() -> tuple[Thresholds, dict[str, Thresholds]]:
    """What holds for all jobs, and for those that have said something of their own."""
    base = ('RUNLEASE["ALERTS"]', conf.ALERTS)
    own = {}
    functions = jobs.registered()
    for name in dict.fromkeys([*conf.JOBS, *functions]):
        entry = declared(name).get("alerts")
        layers = [(f'{declaration(name)}["alerts"]', entry)] if entry is not None else []
        layers += [
            (f'@job("{name}", alerts=…)', function.alerts)
            for function in functions.get(name, [])
            if function.alerts is not None
        ]
        if layers:
            own[name] = thresholds(base, *layers)
    return thresholds(base), own


def _ago(seconds: float | None) -> str:
    return f"{_length(seconds)} ago"


def _last_success(lease: Situation) -> str:
    if lease.succeeded_ago is None:
        return "and none has ever succeeded"
    return f"the last success began {_ago(lease.succeeded_ago)}"
