"""The history: lists that are found by an index, however long it is, and each run in full."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.utils import flatten_fieldsets
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import search
from ..clock import Epoch, Now
from ..models import Outcome, Run
from ..search import Filters, names_with, newest_keys
from . import words
from .base import MOST, Bounded, ReadOnly
from .cells import cell
from .periods import PERIODS

NAMES = 50
"""How many leases a search looks into."""


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
        return [(key, label) for key, (_length, label) in PERIODS.items()]


class LeaseFilter(Choice):
    """Links come with a name; there is no list of them, which could be endless."""

    title = gettext_lazy("lease")
    parameter_name = "lease"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        name = request.GET.get("lease")
        return [(name, name)] if name else []


CHOICES = (LeaseFilter, OutcomeFilter, PeriodFilter)


class Runs(ChangeList):
    """The newest runs that match. No index orders the rows of all leases but the primary key, in
    whose order they were inserted; what is asked for is looked up lease by lease."""

    def get_queryset(self, request: HttpRequest, *args: Any) -> QuerySet[Any]:
        runs = super().get_queryset(request, *args).defer("error", "output")
        chosen = {spec.parameter_name: spec.value() for spec in self.filter_specs}  # type: ignore[attr-defined]
        name, outcome, within = (chosen.get(key) for key in ("lease", "outcome", "within"))
        period = PERIODS[within][0] if within in PERIODS else None
        outcomes = (outcome,) if outcome in Outcome.values else ()
        if not (name or outcomes or period or self.query):
            return runs.order_by("-pk")
        filters = Filters(outcomes=outcomes, since=period)
        names = name if name or not self.query else names_with(self.query, runs.db, NAMES)
        keys = search.read(newest_keys(names, filters, MOST), runs.db)
        return runs.filter(pk__in=keys).order_by("-started_at", "-pk")


class RunAdmin(ReadOnly):
    list_display = ["lease", "outcome_", "started", "duration", "who"]
    list_filter = CHOICES
    # The search is that of Runs; any field makes the box appear.
    search_fields = ["lease_name"]
    search_help_text = gettext_lazy("Part of the name of a lease")
    sortable_by = ()
    paginator = Bounded
    list_per_page = 50
    list_max_show_all = 50
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "runlease/admin/runs.html"
    fieldsets = [
        (None, {"fields": [("lease", "outcome_", "exit_code"), "traceback", "said"]}),
        (
            gettext_lazy("Times"),
            {"fields": [("started", "finished", "duration"), ("scheduled", "lag_", "waited_")]},
        ),
        (
            gettext_lazy("Who"),
            {"fields": [("holder", "host", "trigger"), ("generation", "took_over_from")]},
        ),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        runs: QuerySet[Run] = super().get_queryset(request)
        return runs.annotate(
            now=Epoch(Now()),
            start=Epoch("started_at"),
            end=Epoch("finished_at"),
            until=Epoch(Coalesce("finished_at", Now())),
            tick_epoch=Epoch("tick"),
            waited_seconds=Epoch("waited"),
            lag_seconds=Epoch("lag"),
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return Runs

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        return queryset, False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """None but those of the filters: another would read the whole history."""
        return lookup in {choice.parameter_name for choice in CHOICES}

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        context = {"title": capfirst(self.opts.verbose_name_plural), "most": MOST}
        return super().changelist_view(request, {**context, **(extra_context or {})})

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, run: Any) -> SafeString:
        return words.name(run.lease_name)

    @admin.display(description=gettext_lazy("outcome"))
    def outcome_(self, run: Any) -> SafeString:
        reason = [words.name(words.reason(run.reason, run.outcome))] if run.reason else []
        return cell("", [words.outcome(run.outcome), *reason])

    @admin.display(description=gettext_lazy("started"))
    def started(self, run: Any) -> SafeString:
        ago = words.ago(run.now - run.start)
        return cell(gettext_lazy("Started"), [words.at(run.start), ago])

    @admin.display(description=gettext_lazy("finished"))
    def finished(self, run: Any) -> SafeString:
        return words.at(run.end) if run.end is not None else words.nothing()

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
            lines.append(format_html(_("tick on {}"), words.name(run.host)))
            if run.holder:
                lines.append(format_html(_("held by {}"), words.name(run.holder)))
        elif run.holder:
            lines.append(words.name(run.holder))
        if run.took_over_from:
            lines.append(format_html(_("took over from {}"), words.name(run.took_over_from)))
        return cell(gettext_lazy("Who"), [*lines, run.trigger])

    @admin.display(description=gettext_lazy("scheduled for"))
    def scheduled(self, run: Any) -> SafeString:
        return words.at(run.tick_epoch) if run.tick_epoch is not None else words.nothing()

    @admin.display(description=gettext_lazy("waited"))
    def waited_(self, run: Any) -> str:
        return words.length(run.waited_seconds) or words.nothing()

    @admin.display(description=gettext_lazy("started after its tick"))
    def lag_(self, run: Any) -> str:
        return words.length(run.lag_seconds) or words.nothing()

    @admin.display(description=gettext_lazy("error"))
    def traceback(self, run: Any) -> SafeString:
        return folded(run.error, _("Show the traceback"))

    @admin.display(description=gettext_lazy("output"))
    def said(self, run: Any) -> SafeString:
        return folded(run.output, _("Show the end of the output"))


def folded(text: str, summary: str) -> SafeString:
    """Many lines behind one that opens them; the last of them is seen at once."""
    if not text:
        return words.nothing()
    lines = text.rstrip().splitlines() or [text]
    return format_html(
        '<div class="runlease-folded"><bdi class="runlease-name">{}</bdi><details>'
        '<summary>{}</summary><pre class="runlease-output" tabindex="0">{}</pre></details></div>',
        lines[-1][:500],
        summary,
        text,
    )
