"""The history: lists that are found by an index, however long it is, and each run in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import search
from ..clock import Epoch, Now
from ..models import Outcome, Run, RunLease
from ..search import Filters
from ..text import storable
from . import words
from .base import MOST, Bounded, BoundedList, ReadOnly, is_read
from .cells import cell
from .figures import without_instants
from .links import lease_url, runs_of
from .periods import PERIODS, choices
from .reasons import reason
from .run import run_context

NAMES = 50
"""How many leases a search looks into."""

AMONG = 20_000
"""Among how many of the newest runs those are looked for that no index has."""


class Choice(SimpleListFilter):
    """Told to :class:`Runs`, which finds the rows for all of them together."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class OutcomeFilter(Choice):
    title = gettext_lazy("outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return Outcome.choices


class PeriodFilter(Choice):
    title = gettext_lazy("start within the last")
    parameter_name = "within"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return choices()


class LeaseFilter(Choice):
    """Links come with a name; there is no list of them, which could be endless."""

    title = gettext_lazy("lease")
    parameter_name = "lease"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        name = request.GET.get("lease")
        return [(name, name)] if name else []


CHOICES = (LeaseFilter, OutcomeFilter, PeriodFilter)


class Runs(BoundedList):
    """The newest runs that match. No index orders the rows of all leases but the primary key, in
    whose order they were inserted; so those of a lease are looked for in its own, those that did
    not succeed or go on in theirs, and others among the newest."""

    among = False
    """Whether only the newest were looked through."""
    cut = False
    """Whether more leases match the search than were looked into."""

    def get_queryset(self, request: HttpRequest, *args: Any) -> QuerySet[Any]:
        runs = super().get_queryset(request, *args).defer("error", "output")
        # Those of CHOICES, which all have a parameter.
        chosen = {spec.parameter_name: spec.value() for spec in self.filter_specs}  # type: ignore[attr-defined]
        outcome, within = chosen.get("outcome"), chosen.get("within")
        name = storable(chosen.get("lease") or "") or None
        period = PERIODS[within][0] if within in PERIODS else None
        outcomes = (outcome,) if outcome in Outcome.values else ()
        if not (name or outcomes or period or self.query):
            return runs.order_by("-pk")
        filters = Filters(outcomes=outcomes, since=period)
        names = [name] if name else self.names(runs.db) if self.query else None
        if names is None and not search.are_listed(filters):
            self.among = True
            keys = search.newest_keys_among(AMONG, filters, MOST)
        else:
            keys = search.newest_keys(names, filters, MOST)
        return runs.filter(pk__in=search.read(keys, runs.db)).order_by("-started_at", "-pk")

    def names(self, alias: str) -> list[str]:
        """The leases that the search means; and what is searched for itself, as the name of one
        that was removed."""
        found = RunLease.objects.using(alias).filter(name__icontains=self.query).order_by("name")
        names = list(found.values_list("name", flat=True)[: NAMES + 1])
        self.cut = len(names) > NAMES
        return list(dict.fromkeys([*names[:NAMES], self.query]))


class RunAdmin(ReadOnly):
    list_display = ["lease", "outcome_", "started", "duration", "who"]
    list_filter = CHOICES
    # The search is that of Runs; any field makes the box appear.
    search_fields = ["lease_name"]
    search_help_text = gettext_lazy("Part of the name of a lease, or all of one that was removed")
    sortable_by = ()
    paginator = Bounded
    list_per_page = 50
    list_max_show_all = 50
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "runlease/admin/runs.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        runs: QuerySet[Run] = super().get_queryset(request)
        annotated: QuerySet[Run] = without_instants(runs).annotate(
            now=Epoch(Now()),
            start=Epoch("started_at"),
            end=Epoch("finished_at"),
            until=Epoch(Coalesce("finished_at", Now())),
            tick_epoch=Epoch("tick"),
            waited_seconds=Epoch("waited"),
            lag_seconds=Epoch("lag"),
        )
        return annotated

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Runs

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        title = capfirst(self.opts.verbose_name_plural)
        name = storable(request.GET.get("lease", ""))
        context = {"title": title, "most": MOST, "among": AMONG, "names": NAMES}
        if name:
            context["title"] = _("Runs of %(name)s") % {"name": name}
            context.update(self.way((words.name(name), "")))
            context["lease_url"] = lease_url(self, request, name)
        return super().changelist_view(request, {**context, **(extra_context or {})})

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """The page of one run."""
        if not is_read(request) or not self.has_view_permission(request):
            raise PermissionDenied
        run: Any = self.get_object(request, unquote(object_id))
        if run is None:
            raise Http404
        runs_url = runs_of(self, run.lease_name)
        crumbs = (words.name(run.lease_name), runs_url), (words.exact(run.start), "")
        context = {
            **self.page_context(request, run, *crumbs),
            "title": _("Run of %(name)s") % {"name": run.lease_name},
            "runs_url": runs_url,
            "lease_url": lease_url(self, request, run.lease_name),
            **run_context(run),
        }
        return TemplateResponse(request, "runlease/admin/run.html", context)

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, run: Any) -> SafeString:
        return words.clear(run.lease_name)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome_(self, run: Any) -> SafeString:
        why = [words.clear(text) for text in [reason(run.reason, run.outcome)] if text]
        return cell("", [words.outcome(run.outcome), *why])

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Any) -> SafeString:
        ago = words.ago(run.now - run.start)
        return cell(gettext_lazy("Started"), [words.at(run.start), ago])

    @admin.display(description=gettext_lazy("duration"))
    def duration(self, run: Any) -> SafeString:
        if run.outcome == Outcome.DECLINED:
            return words.nothing()
        lines = [words.length(run.until - run.start)]
        for text, seconds in (
            (_("waited %(length)s"), run.waited_seconds),
            (_("%(length)s after its tick"), run.lag_seconds),
        ):
            if seconds is not None and seconds >= 1:
                lines.append(text % {"length": words.length(seconds)})
        return cell(gettext_lazy("Duration"), lines)

    @admin.display(description=gettext_lazy("who"))
    def who(self, run: Any) -> SafeString:
        lines: list[object] = []
        if run.outcome == Outcome.DECLINED:
            lines.append(format_html(_("tick on {}"), words.clear(run.host)))
            if run.holder:
                lines.append(format_html(_("held by {}"), words.clear(run.holder)))
        elif run.holder:
            lines.append(words.clear(run.holder))
        if run.took_over_from:
            lines.append(format_html(_("took over from {}"), words.clear(run.took_over_from)))
        if run.trigger:
            lines.append(format_html(_("by {}"), words.trigger(run.trigger)))
        return cell(gettext_lazy("Who"), lines)
