"""The filters beside the lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import UNSUCCESSFUL, Alert, Outcome, State
from ..search import ended_last, last_ended
from ..text import storable
from .figures import ENDED
from .words import VIEWS

HOSTS = 50
"""How many hosts are offered."""

HOLDERS = 5_000
"""Of how many leases that are held."""

FAILURES = 5_000
"""Up to how many runs of an outcome are read to find their leases; else each lease is asked."""

_PLAIN = {State.PAUSED.value: Q(paused=True), State.FREE.value: Q(paused=False, token=None)}
_TAKEN = Q(paused=False, token__isnull=False)
"""What is told of a view by columns alone, which are judged far sooner and known to the planner."""


class ViewFilter(SimpleListFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return VIEWS.items()

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        view = self.value()
        if view not in VIEWS:
            return queryset
        if view in _PLAIN:
            return queryset.filter(_PLAIN[view])
        return queryset.filter(_TAKEN, view=view)


class LastOutcomeFilter(SimpleListFilter):
    """By how the last run ended: from the runs that ended so, where these are few; else lease by
    lease and outcome by outcome, each in an index, so that no burst of failures or of declined
    ticks has to be read, and none hides a lease."""

    title = _("last outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [choice for choice in Outcome.choices if choice[0] in ENDED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        outcome = self.value()
        if outcome not in ENDED:
            return queryset
        if outcome in UNSUCCESSFUL:
            names = last_ended(outcome, queryset.db, FAILURES)
            if names is not None:
                return queryset.filter(name__in=names)
        return queryset.filter(ended_last(outcome))


class HostFilter(SimpleListFilter):
    """By the host of the holder, among those that hold a lease now; and the one that is asked for,
    as a filter without a choice is passed over."""

    title = _("host")
    parameter_name = "host"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        taken = model_admin.get_queryset(request).filter(token__isnull=False)
        # In the order of the only index that knows which are held, and at random in it.
        some = taken.exclude(host="").order_by("token").values_list("host", flat=True)[:HOLDERS]
        hosts = sorted(set(some))
        offered = hosts[:HOSTS]
        if len(hosts) > HOSTS:
            self.title = _("host, some of many: the search finds the others")
        asked = self.value()
        if asked and asked not in offered:
            offered.append(asked)
        return [(host, host) for host in offered]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.value():
            return queryset
        return queryset.filter(token__isnull=False, host=storable(str(self.value())))


class AlertsFilter(SimpleListFilter):
    """By what the last check recorded: to apply the rules to all leases would take too long."""

    title = _("alerts, as of the last check")
    parameter_name = "alerts"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [("open", _("has open alerts")), ("none", _("has none"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        has_any = Exists(Alert.objects.filter(lease_name=OuterRef("name"), resolved_at=None))
        if self.value() == "open":
            return queryset.filter(has_any)
        return queryset.filter(~has_any) if self.value() == "none" else queryset
