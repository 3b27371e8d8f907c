"""Pieces of the pages that say one thing about a lease, or an alert of it, each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..card import progress_share
from ..history import Row
from ..holder import pid_of
from . import charts, words
from .figures import Recent

WARN_SHARE = 0.8
"""Of ``every``: from here on a run is nearly too long."""


def cell(heading: Any, parts: Iterable[object]) -> SafeString:
    """Its lines; and its heading, for screens that are too narrow for columns."""
    return format_html('<span class="runlease-heading">{}</span>{}', heading, words.lines(parts))


def state_lines(lease: Any) -> Iterator[object]:
    """What to add to the state in the list: why it is paused, for how long it is held, until when
    it lasts or waits."""
    if lease.paused and lease.paused_reason:
        yield words.clear(lease.paused_reason)
    if lease.token is not None:
        if lease.claimed_epoch is not None and lease.expires_epoch > lease.now:
            held = words.age(max(lease.now - lease.claimed_epoch, 0))
            yield _("held for %(length)s") % {"length": held}
        yield expiry(lease)
    elif lease.due is not None and lease.due > lease.now:
        yield _("not before %(length)s from now") % {"length": words.age(lease.due - lease.now)}


def alert_lines(alert: Row) -> SafeString:
    """Its kind and what it says, for the list."""
    said = '<bdi class="runlease-short runlease-note"{} title="{}">{}</bdi>'
    language = SafeString(' lang="en"') if alert["is_recorded"] else ""
    text = format_html(said, language, alert["message"], alert["message"])
    return words.lines([alert_badge(alert), text])


def alert_badge(alert: Mapping[str, Any]) -> SafeString:
    label: object = words.kind(alert["kind"])
    if alert["silenced"]:
        label = _("%(kind)s (silenced)") % {"kind": label}
    return words.alert(alert["severity"], label)


def alert_since(alert: Mapping[str, Any]) -> SafeString:
    """Since when an alert is open; or that no check has recorded it."""
    if alert["opened"] is None:
        return format_html("{}", _("seen just now, by no check yet"))
    opened = words.when(alert["opened"], alert["now"])
    text = _("noticed {opened}")
    if alert["is_recorded"]:
        text = _("noticed {opened}, as of the last check")
    return format_html(text, opened=opened)


def told(alert: Row) -> Row:
    """*alert* with its badge and since when it is open, and with its texts marked as what they are:
    English if a check has recorded them."""
    text = '<bdi lang="en">{}</bdi>' if alert["is_recorded"] else "<bdi>{}</bdi>"
    return {
        **alert,
        "badge": alert_badge(alert),
        "since": alert_since(alert),
        "message": format_html(text, alert["message"]),
        "silence": _silence(alert),
        "remedy": format_html(text, words.prose(capfirst(alert["remedy"]))),
    }


def _silence(alert: Row) -> str:
    if not alert["silenced"]:
        return ""
    facts = {"until": words.at(alert["silent"]), "by": words.name(alert["silenced_by"])}
    return format_html(_("silenced until {until} by {by}"), **facts)


def process_line(lease: Any) -> list[object]:
    """Which process holds it, unless its holder's name says so, as it mostly does."""
    pid = pid_of(lease.holder_process)
    if pid is None or lease.holder == f"{lease.host}:{pid}":
        return []
    facts = {"pid": pid, "host": words.clear(lease.host)}
    return [format_html(_("process {pid} on {host}"), **facts)]


def expiry(lease: Any, *, runs_down: bool = True) -> SafeString:
    """How long the lease lasts unless it is renewed, as a bar that runs down on a page that is
    read again when the lease is renewed; or since when it has expired."""
    left = lease.expires_epoch - lease.now
    if left <= 0:
        return format_html(_("expired {}"), words.when(lease.expires_epoch, lease.now))
    text = words.age(left)
    if math.isinf(left) or not runs_down:
        return format_html(_("expires in {}"), text)
    time = format_html(
        '<span data-runlease-left="{}" data-runlease-units="{}">{}</span>',
        f"{left:.2f}",
        words.units(),
        text,
    )
    of = lease.ttl_seconds or left
    bar = charts.share_bar(left / of, tone=words.tone(lease.view), of=of)
    return format_html("{}{}", format_html(_("expires in {}"), time), bar)


def progress(value: Any) -> Iterator[SafeString]:
    """What the holder has told of its progress, in lines."""
    if not isinstance(value, Mapping):
        return
    share = progress_share(value)
    numbers = [_number(value[key]) for key in ("done", "total") if value.get(key) is not None]
    if numbers:
        counted = _("%(done)s of %(total)s done") if len(numbers) == 2 else _("%(done)s done")
        text = counted % {"done": numbers[0], "total": numbers[-1]}
        if share is None:
            yield format_html("{}", text)
        else:
            text = words.listed([words.percent(share), text])
            yield format_html("{}{}", text, charts.share_bar(share, tone="active"))
    if value.get("message"):
        yield words.clear(value["message"])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def success(found: Recent) -> Iterator[str]:
    if found.success_rate is not None:
        count = len(found.decided)
        text = ngettext(
            "%(share)s of %(count)s run succeeded", "%(share)s of %(count)s runs succeeded", count
        )
        yield text % {"share": words.percent(found.success_rate), "count": count}


def against_interval(seconds: float, every: float | None) -> Iterator[object]:
    """The duration that 95 of 100 runs do not exceed, and which share of the interval it is."""
    yield _("95%% within %(length)s") % {"length": words.length(seconds)}
    if not every:
        return
    share = seconds / every
    facts = {"share": words.percent(share), "every": words.length(every)}
    text = _("%(share)s of the %(every)s interval") % facts
    tone = "bad" if share > 1 else "warn" if share >= WARN_SHARE else "good"
    yield format_html("{}{}", text, charts.share_bar(share, tone=tone, mark=WARN_SHARE))
