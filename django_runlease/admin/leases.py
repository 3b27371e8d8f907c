"""The list of leases: one row for each job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..card import progress_share
from ..models import Outcome, RunLease
from ..situation import FAILURES
from . import charts, words
from .base import Bounded, ReadOnly, cell
from .figures import SPARKS, Recent, recent, with_view
from .filters import AlertsFilter, HostFilter, LastOutcomeFilter, ViewFilter

WARN_SHARE = 0.8
"""Of ``every``: from here on a run is nearly too long."""


class Leases(ChangeList):
    """The leases of one page, each with its newest runs."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        leases = list(self.result_list)
        found = recent(self.root_queryset.db, [lease.name for lease in leases])
        for lease in leases:
            lease.recent = found[lease.name]
        self.result_list = leases


class RunLeaseAdmin(ReadOnly):
    list_display = ["name_", "state", "holder_", "last", "runs"]
    list_display_links = ["name_"]
    list_filter = [ViewFilter, LastOutcomeFilter, HostFilter, AlertsFilter]
    search_fields = ["name", "holder"]
    search_help_text = gettext_lazy("Part of a name or of a holder, such as a host")
    ordering = ["name"]
    exclude = ["token"]
    paginator = Bounded
    list_per_page = 50
    list_max_show_all = 50
    # They would count the whole table once for each choice.
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "runlease/admin/leases.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RunLease]:
        return with_view(super().get_queryset(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Leases

    @admin.display(description=gettext_lazy("lease"), ordering="name")
    def name_(self, lease: Any) -> SafeString:
        return words.name(lease.name)

    @admin.display(description=gettext_lazy("state"))
    def state(self, lease: Any) -> SafeString:
        alerts = [alert_line(alert) for alert in lease.recent.alerts]
        return cell("", [words.view(lease.view), *_since(lease), *alerts])

    @admin.display(description=gettext_lazy("holder"), ordering="holder")
    def holder_(self, lease: Any) -> SafeString:
        if lease.token is None:
            return words.nothing()
        lines: list[object] = [words.name(lease.holder), *_process_line(lease)]
        if lease.renewed_epoch is not None:
            renewed = words.when(lease.renewed_epoch, lease.now)
            lines.append(format_html(_("renewed {}"), renewed))
        lines.append(_("generation %(number)s") % {"number": lease.generation})
        return cell(gettext_lazy("Holder"), [*lines, *progress(lease.progress)])

    @admin.display(description=gettext_lazy("last run"))
    def last(self, lease: Any) -> SafeString:
        run = lease.recent.last
        if run is None:
            return words.nothing()
        when = words.when(run.end, lease.now)
        took = _("took %(length)s") % {"length": words.length(run.length)}
        return cell(gettext_lazy("Last run"), [words.outcome(run.outcome), when, took])

    @admin.display(description=gettext_lazy("recent runs"))
    def runs(self, lease: Any) -> SafeString:
        found = lease.recent
        if not found.runs:
            return words.nothing()
        lines: list[object] = [sparkline(found), *success(found)]
        if found.p95 is not None:
            lines.append(against_interval(found.p95, lease.every_seconds))
        return cell(gettext_lazy("Recent runs"), lines)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        return super().changelist_view(request, context)


def _since(lease: Any) -> Iterator[object]:
    if lease.paused and lease.paused_reason:
        yield words.name(lease.paused_reason)
    if lease.token is not None:
        if lease.claimed_epoch is not None and lease.expires_epoch > lease.now:
            held = words.age(max(lease.now - lease.claimed_epoch, 0))
            yield _("held for %(length)s") % {"length": held}
        yield expiry(lease)
    elif lease.due is not None and lease.due > lease.now:
        yield _("not before %(length)s from now") % {"length": words.age(lease.due - lease.now)}


def alert_line(alert: Mapping[str, Any]) -> SafeString:
    return format_html('<span title="{}">{}</span>', alert["message"], alert_badge(alert))


def alert_badge(alert: Mapping[str, Any]) -> SafeString:
    label: object = words.kind(alert["kind"])
    if alert["silenced"]:
        label = _("%(kind)s (silenced)") % {"kind": label}
    return words.badge(alert["severity"], label)


def _process_line(lease: Any) -> list[object]:
    process = lease.holder_process
    if not isinstance(process, Mapping) or not isinstance(process.get("pid"), int):
        return []
    facts = {"pid": process["pid"], "host": lease.host}
    # The name of a holder is mostly host:pid.
    if lease.holder == f"{lease.host}:{process['pid']}":
        return []
    return [_("process %(pid)s on %(host)s") % facts]


def expiry(lease: Any) -> SafeString:
    """How long the lease lasts unless it is renewed, as a bar that runs down; or since when it has
    expired."""
    left = lease.expires_epoch - lease.now
    if left <= 0:
        return format_html(_("expired {}"), words.when(lease.expires_epoch, lease.now))
    text = words.age(left)
    time = format_html('<span data-runlease-left="{}">{}</span>', f"{left:.2f}", text)
    of = lease.ttl_seconds or left
    label = _("expires in %(length)s") % {"length": text}
    bar = charts.share_bar(left / of, label=label, tone=words.tone(lease.view), of=of)
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
            text = f"{words.percent(share)}, {text}"
            yield format_html("{}{}", text, charts.share_bar(share, label=text, tone="active"))
    if value.get("message"):
        yield words.name(value["message"])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def success(found: Recent) -> Iterator[str]:
    if found.success_rate is not None:
        decided = sum(run.outcome in (Outcome.SUCCEEDED, *FAILURES) for run in found.runs)
        text = ngettext(
            "%(share)s of %(count)s run succeeded", "%(share)s of %(count)s runs succeeded", decided
        )
        yield text % {"share": words.percent(found.success_rate), "count": decided}


def against_interval(seconds: float, every: float | None) -> SafeString:
    """The duration that 95 of 100 runs do not exceed, as a share of the interval."""
    length = words.length(seconds)
    if not every:
        return format_html("{}", _("95%% within %(length)s") % {"length": length})
    facts = {"length": length, "every": words.length(every)}
    text = _("95%% within %(length)s, every %(every)s") % facts
    share = seconds / every
    tone = "bad" if share > 1 else "warn" if share >= WARN_SHARE else "good"
    return format_html(
        "{}{}", text, charts.share_bar(share, label=text, tone=tone, mark=WARN_SHARE)
    )


def sparkline(found: Recent) -> SafeString:
    """The durations of the last runs, and which of them came after declined ticks."""
    runs = found.runs[-SPARKS:]
    ticks = [tick for tick in found.declines if tick.start >= runs[0].start]
    good = sum(run.outcome == Outcome.SUCCEEDED for run in runs)
    label = ngettext("%(count)s run", "%(count)s runs", len(runs)) % {"count": len(runs)}
    label += ", " + _("%(count)s succeeded") % {"count": good}
    if ticks:
        ticked = ngettext("%(count)s declined tick", "%(count)s declined ticks", len(ticks))
        label += ", " + ticked % {"count": len(ticks)}
    return format_html(
        '<span title="{}">{}</span>',
        label,
        charts.sparkline(runs, ticks, label=label, tones=words.TONES),
    )
