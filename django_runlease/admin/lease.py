"""What the page of one lease shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from .. import card, history
from ..clock import utc
from ..history import Row
from ..holder import group_of, has_ended, pid_of, what_runs
from ..statistics import statistics_of_newest
from . import breaks, pictures, words
from .base import ReadOnly
from .cells import expiry, progress, told
from .figures import newest, resolved_alerts, windows
from .headline import headline
from .legend import legend
from .links import may_see_runs, run_links, runs_of, sees_runs
from .operators import actions
from .periods import PERIODS, choices, chosen
from .tables import oddities, outcomes, rows, rows_of

DRAWN = 1_000
"""How many runs, and how many declined ticks, are drawn at most."""

NEWEST = 10
"""How many runs are listed, however long ago they were."""

TABLE = 200
"""How many of them stand in the table beside a picture."""

RESOLVED = 50
"""How many alerts that are over are listed."""

COUNTED = 10_000
"""How many runs and declined ticks the figures are told from at most."""

DECLINES = 1_000
"""How many declined ticks since the last start are counted at most."""

EFFECTS = 20
"""How many uncertain effects are listed."""


def lease_context(
    site: ReadOnly, request: HttpRequest, lease: Any, alerts: list[Row]
) -> dict[str, Any]:
    """All that the template takes, besides what the admin gives to each."""
    alias = lease._state.db
    period = chosen(request)
    length = PERIODS[period][0]
    now = lease.now
    since = utc(now - length.total_seconds())
    link = run_links(site, request)
    reasons = may_see_runs(request)
    window = windows(alias, [lease.name], length, DRAWN, reasons=reasons)[lease.name]
    found = statistics_of_newest(alias, lease.name, COUNTED, since=since)
    last = newest(alias, lease.name, NEWEST, reasons=reasons)
    scale = words.scale(now - length.total_seconds(), now)
    return {
        "headline": headline(lease, next((run for run in last if not run.goes_on), None)),
        "alerts": [told(alert) for alert in alerts],
        **_resolved(lease, length),
        "facts": list(_holder(lease)),
        "job": list(_job(lease)),
        "period": period,
        "periods": choices(),
        "timeline": pictures.timeline(
            window, scale, key="timeline", title=_("What happened, from left to right")
        ),
        "legend": legend(),
        "trend": pictures.trend(window, scale, found, key="trend") if window.ended else "",
        "figures": list(_figures(found)),
        "outcomes": outcomes(found),
        "oddities": oddities(found, window),
        "counted": COUNTED if found["runs"] + found["declined"] >= COUNTED else 0,
        "rows": rows_of(link, window, TABLE),
        "newest": rows(link, last),
        "window": window,
        "most": DRAWN,
        "table_length": TABLE,
        **_uncertain(lease.name, alias),
        **actions(lease.name, alias),
        "runs_url": runs_of(site, lease.name) if sees_runs(site, request) else "",
    }


def holder_facts(lease: Any) -> list[tuple[str, object]]:
    """What is known of who holds the lease, by label, on a page that is not read again; nothing if
    nobody does."""
    facts = list(_holder(lease, runs_down=False))
    return [*facts, (_("As of"), words.at(lease.now))] if facts else []


def _known(lease: Any) -> Row:
    """Of the same instant as *lease* itself."""
    held, renewed = lease.claimed_epoch, lease.renewed_epoch
    return card.with_holder(
        {
            "host": lease.host,
            "holder_process": lease.holder_process,
            "progress": lease.progress,
            "held_for": None if held is None else max(lease.now - held, 0),
            "renewed_ago": None if renewed is None else max(lease.now - renewed, 0),
            "expires_in": lease.expires_epoch - lease.now,
        }
    )


def _holder(lease: Any, *, runs_down: bool = True) -> Iterator[tuple[str, object]]:
    if lease.token is None:
        return
    known = _known(lease)
    yield _("Holder"), words.name(lease.holder)
    yield _("Host"), words.name(lease.host)
    yield from _process(known)
    yield _("Generation"), lease.generation
    if lease.claimed_epoch is not None:
        yield _("Since"), _both(lease.claimed_epoch, lease.now)
    yield _("Expiry"), expiry(lease, runs_down=runs_down)
    if lease.renewed_epoch is not None:
        renewed = words.when(lease.renewed_epoch, lease.now)
        by_hand = _("{}, by the job itself: it has no heartbeat")
        yield _("Renewed"), renewed if lease.heartbeat else format_html(by_hand, renewed)
    lines = list(progress(lease.progress))
    if lines:
        left = known["estimated_left"]
        if left is not None:
            lines.append(format_html(_("about {} left"), words.age(left)))
        yield _("Progress"), words.lines(lines)


def _process(known: Row) -> Iterator[tuple[str, object]]:
    pid, group = pid_of(known["holder_process"]), group_of(known["holder_process"])
    if pid is None:
        return
    text = str(pid)
    if known["process_gone"]:
        yield _("Process"), words.badge("lost", _("%(pid)s, which is gone") % {"pid": text})
        return
    if has_ended(known["host"], known["holder_process"]):
        text = _("%(pid)s, which is gone; its program goes on") % {"pid": text}
    elif known["process_age"] is not None:
        facts = {"pid": text, "length": words.age(known["process_age"])}
        text = _("%(pid)s, started %(length)s ago") % facts
    yield _("Process"), text
    runs = what_runs(known["holder_process"])
    what = words.name(runs) if runs else _("a function or command")
    if group is None:
        yield _("Runs"), format_html(_("{what}, in that process"), what=what)
    else:
        what = words.name(runs) if runs else _("a program")
        yield _("Runs"), format_html(_("{what}, process group {group}"), what=what, group=group)


def _job(lease: Any) -> Iterator[tuple[str, object]]:
    if lease.paused:
        yield _("Paused by"), words.name(lease.paused_by)
        if lease.paused_reason:
            yield _("Why"), words.name(lease.paused_reason)
    if lease.token is None:
        yield _("Generation"), lease.generation
    for label, seconds in (
        (_("Interval"), lease.every_seconds),
        (_("Expires without renewal after"), lease.ttl_seconds),
    ):
        yield label, words.length(seconds) if seconds is not None else words.nothing()
    if lease.due is not None and lease.due > lease.now:
        why = breaks.why_not_yet(lease)
        yield _("Not before"), words.lines([_both(lease.due, lease.now), *([why] if why else [])])
    if lease.token is None and lease.claimed_epoch is not None:
        yield _("Last start"), _both(lease.claimed_epoch, lease.now)
    if lease.last_tick_epoch is not None:
        yield _("Last tick"), _both(lease.last_tick_epoch, lease.now)
    since = history.iso(lease.claimed_epoch)
    declined = history.declines_since(lease._state.db, lease.name, since, DECLINES)
    if declined:
        count = words.at_least(declined, cut=declined == DECLINES)
        yield _("Declined since the last start"), count


def _both(epoch: float, now: float) -> object:
    return words.lines([words.at(epoch), words.ago(now - epoch)])


def _figures(found: Row) -> Iterator[tuple[str, list[str]]]:
    """The rows of the table of lengths: least, half, 95 of 100, and most."""
    for label, key in (
        (_("Duration"), "duration"),
        (_("Wait for the lease"), "waited"),
        (_("Start after the tick"), "lag"),
    ):
        values = [found[key][name] for name in ("min", "median", "p95", "max")]
        if any(value is not None for value in values):
            yield label, [words.length(value) for value in values]
    if found["every"]:
        shares = [found["share"][name] for name in ("min", "median", "p95", "max")]
        if any(share is not None for share in shares):
            yield _("Share of the interval"), [words.percent(share) for share in shares]


def _resolved(lease: Any, length: timedelta) -> dict[str, Any]:
    """The alerts that were resolved in the period."""
    found = resolved_alerts(lease._state.db, lease.name, length, RESOLVED + 1)
    rows = [
        {
            "badge": words.alert(alert["severity"], words.kind(alert["kind"])),
            "opened_at": words.at(alert["opened"]),
            "resolved_at": words.at(alert["resolved"]),
            "lasted": words.length(alert["resolved"] - alert["opened"]),
        }
        for alert in found[:RESOLVED]
    ]
    cut = len(found) > RESOLVED
    return {"resolved": rows, "resolved_cut": cut, "resolved_most": RESOLVED}


def _uncertain(name: str, alias: str) -> dict[str, Any]:
    found = history.effects(alias, name, uncertain=True, limit=EFFECTS)
    cut = len(found) == EFFECTS
    return {
        "uncertain": [{**row, "key": ", ".join(map(str, row["key"]))} for row in found],
        "uncertain_count": history.uncertain_effects(alias, name) if cut else len(found),
        "uncertain_most": EFFECTS,
    }
