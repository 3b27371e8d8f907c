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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import jobs, store
from .conf import conf
from .models import AlertKind, Severity
from .phrases import Phrase, ngettext
from .phrases import gettext as _
from .situation import MOST_FAILURES, Situation, situations
from .terms import declaration, declared, spoken
from .text import printable
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
    message: Phrase
    """One line with the figures."""
    remedy: Phrase
    """One line that names a command."""


@dataclass(frozen=True, kw_only=True)
class _Verdict:
    severity: Severity
    message: Phrase
    remedy: Phrase


Rule = Callable[[Situation, Mapping[str, Any]], _Verdict | None]
"""Judges a situation by the keys of its thresholds."""


def _warning(message: Phrase, remedy: Phrase) -> _Verdict:
    return _Verdict(severity=Severity.WARNING, message=message, remedy=remedy)


def _critical(message: Phrase, remedy: Phrase) -> _Verdict:
    return _Verdict(severity=Severity.CRITICAL, message=message, remedy=remedy)


def _length(seconds: float | None) -> str:
    # PostgreSQL knows infinity; only a hand writes it.
    return spoken(seconds) if seconds is not None and math.isfinite(seconds) else "?"


def _command(action: str, lease: Situation, *options: str) -> str:
    # After -- a name may begin with a dash.
    dashes = ["--"] if lease.name.startswith("-") else []
    words = [action, *options, *_using(lease), *dashes, shlex.quote(lease.name)]
    return f"`manage.py runlease {' '.join(words)}`"


def _see_schedule(lease: Situation) -> Phrase:
    # A lease may be claimed in code, or for a program that the history does not name.
    if lease.name.startswith("-") or lease.name not in jobs.all_names():
        show = _command("show", lease)
        return _("see that its schedule runs, or see who ran it last: %(command)s", command=show)
    words = ["runjob", *_using(lease), shlex.quote(lease.name)]
    start = f"`manage.py {' '.join(words)}`"
    return _("see that its schedule runs, or start it: %(command)s", command=start)


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
    share = f"{100 * length / lease.every:.0f}" if math.isfinite(length) else "?"
    facts = {"length": _length(length), "share": share, "every": _length(lease.every)}
    if running >= last:
        message = _(
            "it has been running for %(length)s, %(share)s %% of every (%(every)s)", **facts
        )
    else:
        message = _(
            "it took, in its last run, %(length)s, %(share)s %% of every (%(every)s)", **facts
        )
    remedy = _(
        "see %(command)s; make the job faster, or its interval longer",
        command=_command("show", lease),
    )
    return (_critical if length > lease.every else _warning)(message, remedy)


def contention(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.contended < keys["count"]:
        return None
    message = ngettext(
        "%(count)s tick declined as held or busy in the last %(length)s",
        "%(count)s ticks declined as held or busy in the last %(length)s",
        lease.contended,
        length=_length(keys["window"]),
    )
    history = _command("history", lease)
    return _warning(message, _("see %(command)s for what held it then", command=history))


def starved(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.starved < keys["count"]:
        return None
    if lease.started_ago is None:
        message = ngettext(
            "%(count)s tick in a row declined as held or busy",
            "%(count)s ticks in a row declined as held or busy",
            lease.starved,
        )
    else:
        message = ngettext(
            "%(count)s tick in a row declined as held or busy since its last start %(ago)s",
            "%(count)s ticks in a row declined as held or busy since its last start %(ago)s",
            lease.starved,
            ago=_ago(lease.started_ago),
        )
    remedy = _(
        "see %(show)s for what holds it; if that hangs, %(break)s",
        **{"show": _command("show", lease), "break": _command("break", lease)},
    )
    return _critical(message, remedy)


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
    message = _(
        "no start for %(length)s, where one is due every %(every)s (and a grace of %(grace)s)",
        length=_length(waiting),
        every=_length(lease.every),
        grace=_length(grace),
    )
    return _critical(message, _see_schedule(lease))


def failing(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.failures < min(keys["count"], MOST_FAILURES):
        return None
    facts = {"success": _last_success(lease)}
    if lease.failures == MOST_FAILURES:
        message = _(
            "%(count)s or more failures in a row, %(success)s", count=MOST_FAILURES, **facts
        )
    else:
        message = ngettext(
            "%(count)s failure in a row, %(success)s",
            "%(count)s failures in a row, %(success)s",
            lease.failures,
            **facts,
        )
    return _critical(
        message, _("see %(command)s for the errors", command=_command("history", lease))
    )


def stuck(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.is_held or lease.expires_in is None or lease.ttl is None:
        return None
    facts = {
        "expiry": _length(lease.expires_in),
        "ttl": _length(lease.ttl),
        "holder": printable(lease.holder),
        "break": _command("break", lease),
    }
    if lease.expires_in > lease.ttl + CLOCK_SLACK:
        return _critical(
            _(
                "it expires in %(expiry)s, and would %(ttl)s after a renewal: the database's clock"
                " was set back",
                **facts,
            ),
            _("if %(holder)s is gone, %(break)s, with --now", **facts),
        )
    if not lease.heartbeat or (lease.renewed_ago or 0.0) <= LATE_SHARE * lease.ttl:
        return None
    return _critical(
        _(
            "held by %(holder)s, which renewed it %(ago)s: it hangs, is frozen, or cannot reach"
            " the database",
            ago=_ago(lease.renewed_ago),
            **facts,
        ),
        _("look at that process; it expires in %(expiry)s, or %(break)s", **facts),
    )


def ghost(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.expires_in is None or lease.is_held:
        return None
    facts = {"holder": printable(lease.holder), "ago": _ago(-lease.expires_in)}
    if lease.left_group is not None:
        return _warning(
            _(
                "the lease of %(holder)s expired %(ago)s, and its program still runs: ticks decline"
                " while the process group %(group)s lives",
                group=lease.left_group,
                **facts,
            ),
            _("end that group, or %(command)s", command=_command("break", lease)),
        )
    if lease.expires_in <= 0:
        message = _(
            "the lease of %(holder)s expired %(ago)s, and nobody has taken over",
            **facts,
        )
    else:
        message = _(
            "the process of its holder %(holder)s is gone, and nobody has taken over", **facts
        )
    return _warning(message, _("the next tick takes over: %(see)s", see=_see_schedule(lease)))


def lost(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if lease.lost_ago is None:
        return None
    message = _(
        "the run begun %(ago)s lost its lease, %(success)s",
        ago=_ago(lease.lost_ago),
        success=_last_success(lease),
    )
    history = _command("history", lease)
    return _critical(message, _("see %(command)s for why; work may be half done", command=history))


def uncertain(lease: Situation, keys: Mapping[str, Any]) -> _Verdict | None:
    if not lease.uncertain:
        return None
    message = ngettext(
        "%(count)s external action begun and never confirmed: nobody knows whether done",
        "%(count)s external actions begun and never confirmed: nobody knows whether done",
        lease.uncertain,
    )
    effects = _command("effects", lease, "--uncertain")
    return _warning(message, _("see %(command)s, and reconcile", command=effects))


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


def evaluate(alias: str, names: Collection[str] | None = None) -> list[Finding]:
    """What is wrong with all leases, or with those of *names*, in one statement; nothing is
    written.

    Raises ValueError for a mistake in RUNLEASE["ALERTS"] or in the alerts of a job, RunLeaseError
    where an app's ``jobs.py`` cannot be imported, and Django's database errors.
    """
    base, own = _limits()
    windows = {job: _window(limits) for job, limits in own.items()}
    found = situations(alias, names, window=_window(base), windows=windows)
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


def _ago(seconds: float | None) -> Phrase:
    return _("%(length)s ago", length=_length(seconds))


def _last_success(lease: Situation) -> Phrase:
    if lease.succeeded_ago is None:
        return _("and none has ever succeeded")
    return _("the last success began %(ago)s", ago=_ago(lease.succeeded_ago))
