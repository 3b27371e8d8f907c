"""All jobs at a glance: the open alerts, and one lane for each lease."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from ..history import Row
from ..models import Outcome, Run, RunLease
from . import charts, pictures, words
from .base import MOST, Bounded
from .cells import told
from .events import BREAKS, DECLINES, OVERLAPS, TAKEOVERS, WRONG
from .figures import Window, loud_alerts, windows, worst_first
from .legend import legend
from .links import may_see_runs
from .live import Live, live
from .periods import PERIODS, choices, chosen

if TYPE_CHECKING:
    from .leases import RunLeaseAdmin

LANES = 50
"""How many leases are on a page."""

BARS = 300
"""How many runs, and how many declined ticks, are drawn of each at most."""

ALERTS = 50
"""How many alerts are listed."""


COUNTED = (DECLINES, TAKEOVERS, BREAKS, OVERLAPS)
"""The events of each that are counted; of its pauses the last one is its state."""


def urls(lease_admin: RunLeaseAdmin) -> list[URLPattern]:
    def view(request: HttpRequest) -> HttpResponse:
        return _overview(lease_admin, request)

    wrapped = lease_admin.admin_site.admin_view(view)
    return [path("overview/", wrapped, name="runlease_runlease_overview")]


def _overview(lease_admin: RunLeaseAdmin, request: HttpRequest) -> HttpResponse:
    if not lease_admin.has_view_permission(request):
        raise PermissionDenied
    period = chosen(request)
    length = PERIODS[period][0]
    leases = lease_admin.get_queryset(request).order_by("name")
    paginator = Bounded(leases, LANES)
    page = paginator.get_page(request.GET.get("p"))
    shown: list[Any] = list(page.object_list)
    names, reasons = [lease.name for lease in shown], may_see_runs(request)
    found = windows(lease_admin.alias, names, length, BARS, reasons=reasons)
    current = live(lease_admin.alias, shown)
    alerts = _alerts(lease_admin, shown, current)
    now = shown[0].now if shown else 0.0
    context = {
        **lease_admin.page_context(request, None, (_("Overview"), "")),
        "title": _("Overview"),
        "page": page,
        "pages": paginator.get_elided_page_range(page.number),
        "ellipsis": Paginator.ELLIPSIS,
        "is_cut": paginator.is_cut,
        "most": MOST,
        "period": period,
        "periods": choices(),
        "axis": charts.axis(words.scale(now - length.total_seconds(), now)),
        "legend": legend(),
        "counted": [label for label, _count in _counts(Window())],
        "lanes": [
            _lane(lease_admin, lease, found[lease.name], length.total_seconds()) for lease in shown
        ],
        "alerts": alerts[:ALERTS],
        "problem": current.problem,
        "more_alerts": len(alerts) > ALERTS,
    }
    return TemplateResponse(request, "runlease/admin/overview.html", context)


def _lane(lease_admin: RunLeaseAdmin, lease: Any, window: Window, seconds: float) -> dict[str, Any]:
    scale = words.scale(lease.now - seconds, lease.now)
    # One axis on top is for all of them.
    scale = replace(scale, ticks=[(at, "") for at, _label in scale.ticks])
    title = _("Timeline of %(name)s") % {"name": lease.name}
    return {
        "name": words.clear(lease.name),
        "url": lease_admin.link("runlease_change", lease.pk),
        "state": words.view(lease.view),
        "holder": words.clear(lease.holder) if lease.token is not None else "",
        "timeline": pictures.timeline(window, scale, key=f"lane-{lease.pk}", title=title),
        "counts": list(_counts(window)),
        "is_cut": window.cut,
    }


def _counts(window: Window) -> Iterator[tuple[object, int]]:
    """The numbers beside a lane, each with what it counts."""
    runs = window.runs
    yield Run._meta.verbose_name_plural, len(runs)
    yield Outcome.SUCCEEDED.label, sum(run.outcome == Outcome.SUCCEEDED for run in runs)
    yield Outcome.TERMINATED.label, sum(run.outcome == Outcome.TERMINATED for run in runs)
    yield WRONG, sum(words.tone(run.outcome) == "bad" for run in runs)
    yield from ((event.label, event.count(window)) for event in COUNTED)


def _alerts(lease_admin: RunLeaseAdmin, shown: list[Any], current: Live) -> list[Row]:
    """The open ones that are not silenced, the worst first, and one more than are listed: those of
    the leases *shown* as they are now, all others as the last check saw them."""
    alias = lease_admin.alias
    keys = {lease.name: lease.pk for lease in shown}
    others = loud_alerts(alias, ALERTS + 1, besides=list(keys))
    own = [alert for alerts in current.alerts.values() for alert in alerts if not alert["silenced"]]
    alerts = worst_first([*own, *others])[: ALERTS + 1]
    names = {alert["lease_name"] for alert in others}
    more = RunLease.objects.using(alias).filter(name__in=names)
    keys.update(more.values_list("name", "pk"))
    # A lease may have been removed.
    urls = {name: lease_admin.link("runlease_change", key) for name, key in keys.items()}
    return [{**told(alert), "url": urls.get(alert["lease_name"], "")} for alert in alerts]
