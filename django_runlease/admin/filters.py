"""The filters beside the lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin import SimpleListFilter
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Greatest
from django.db.models.lookups import GreaterThanOrEqual
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import UNSUCCESSFUL, Alert, Outcome, Run, State
from ..search import last_ended
from ..text import storable
from .figures import ENDED
from .words import VIEWS

HOSTS = 50
"""How many hosts are offered."""

HOLDERS = 5_000
"""Of how many leases that are held."""

FAILURES = 5_000
"""Among how many of the newest runs of an outcome the last ones of their leases are looked for."""

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
    """By how the last run ended: from the newest runs that ended so, or, for the many that
    succeeded, lease by lease and outcome by outcome, each in an index, so that no burst of declined
    ticks has to be read."""

    title = _("last outcome")
    parameter_name = "outcome"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        return [choice for choice in Outcome.choices if choice[0] in ENDED]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        outcome = self.value()
        if outcome not in ENDED:
            return queryset
        if outcome in UNSUCCESSFUL:
            return queryset.filter(name__in=last_ended(outcome, queryset.db, FAILURES))
        # Greatest() passes over what is null. Nothing is later than it; but of an equality the
        # planner would expect few, and judge all leases before it sorts them.
        newest = Greatest(*map(_newest, ENDED))
        return queryset.filter(GreaterThanOrEqual(_newest(outcome), newest))


def _newest(outcome: str) -> Subquery:
    runs = Run.objects.filter(lease_name=OuterRef("name"), outcome=outcome)
    return Subquery(runs.exclude(trigger="bypass").order_by("-started_at").values("started_at")[:1])


class HostFilter(SimpleListFilter):
    """By the host of the holder, among those that hold a lease now."""

    title = _("host")
    parameter_name = "host"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Iterable[tuple[str, Any]]:
        taken = model_admin.get_queryset(request).filter(token__isnull=False)
        # In the order of the only index that knows which are held, and at random in it.
        some = taken.exclude(host="").order_by("token").values_list("host", flat=True)[:HOLDERS]
        return [(host, host) for host in sorted(set(some))[:HOSTS]]

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
