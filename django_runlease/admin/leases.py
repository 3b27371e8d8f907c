"""The list of leases: one row for each job."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import RunLease
from . import overview, pictures, words
from .base import MOST, Bounded, BoundedList, ReadOnly, is_read
from .cells import (
    against_interval,
    alert_lines,
    cell,
    process_line,
    progress,
    state_lines,
    success,
)
from .confirming import buttons, urls
from .figures import recent, with_view
from .filters import AlertsFilter, HostFilter, LastOutcomeFilter, ViewFilter
from .lease import lease_context
from .live import live
from .refreshing import of_refresh
from .steps import steps


class Leases(BoundedList):
    """The leases of one page, each with its newest runs and what is wrong with it now."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        leases = list(self.result_list)
        alias = self.root_queryset.db
        found, now = recent(alias, [lease.name for lease in leases]), live(alias, leases)
        for lease in leases:
            lease.recent, lease.alerts = found[lease.name], now.alerts.get(lease.name, ())
        self.problem = now.problem
        self.result_list = leases


class RunLeaseAdmin(ReadOnly):
    list_display = ["name_", "state", "holder_", "last", "runs"]
    list_display_links = ["name_"]
    list_filter = [ViewFilter, LastOutcomeFilter, HostFilter, AlertsFilter]
    search_fields = ["name", "holder"]
    search_help_text = gettext_lazy("Part of a name or of a holder, such as a host")
    ordering = ["name"]
    paginator = Bounded
    list_per_page = 50
    list_max_show_all = 50
    # They would count the whole table once for each choice.
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "runlease/admin/leases.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[RunLease]:
        return with_view(super().get_queryset(request))

    def get_urls(self) -> list[URLPattern]:
        return [*overview.urls(self), *urls(self), *super().get_urls()]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Leases

    @admin.display(description=gettext_lazy("lease"), ordering="name")
    def name_(self, lease: Any) -> SafeString:
        return words.clear(lease.name)

    @admin.display(description=gettext_lazy("state"))
    def state(self, lease: Any) -> SafeString:
        alerts = [alert_lines(alert) for alert in lease.alerts]
        return cell("", [words.view(lease.view), *state_lines(lease), *alerts])

    @admin.display(description=gettext_lazy("holder"), ordering="holder")
    def holder_(self, lease: Any) -> SafeString:
        if lease.token is None:
            return words.nothing()
        lines: list[object] = [words.clear(lease.holder), *process_line(lease)]
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
        lines: list[object] = [pictures.sparkline(found), *success(found)]
        if found.p95 is not None:
            lines += against_interval(found.p95, lease.every_seconds)
        return cell(gettext_lazy("Recent runs"), lines)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {
            "title": capfirst(self.opts.verbose_name_plural),
            **of_refresh(request),
            "most": MOST,
            **(extra_context or {}),
        }
        return super().changelist_view(request, context)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one lease."""
        if not is_read(request) or not self.has_view_permission(request):
            raise PermissionDenied
        lease = self.get_object(request, unquote(object_id))
        if lease is None:
            raise Http404
        now = live(self.alias, [lease])
        alerts = now.alerts.get(lease.name, [])
        alerts = [{**alert, "steps": list(steps(self, request, lease, alert))} for alert in alerts]
        page = lease_context(self, request, lease, alerts)
        page["problem"] = now.problem
        page["actions"] = buttons(self, request, lease)
        context = {
            **self.page_context(request, lease, (words.name(lease.name), "")),
            "title": lease.name,
            **page,
        }
        return TemplateResponse(request, "runlease/admin/lease.html", context)
