"""From one page to another."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest
from django.utils.http import urlencode

from ..models import Run, RunLease
from .base import ReadOnly


def runs_of(site: ReadOnly, name: str, outcome: str = "") -> str:
    """The list of the runs of the lease, or of those that ended so."""
    query = {"lease": name, **({"outcome": outcome} if outcome else {})}
    return f"{site.link('run_changelist')}?{urlencode(query)}"


def run_links(site: ReadOnly, request: HttpRequest) -> Callable[[int], str]:
    """The page of a run by its key; nothing if the reader may not look at runs."""
    if not sees_runs(site, request):
        return lambda key: ""
    return lambda key: site.link("run_change", key)


def sees_runs(site: ReadOnly, request: HttpRequest) -> bool:
    """Whether this site of the admin has pages of runs, and the reader may look at them."""
    return site.admin_site.is_registered(Run) and may_see_runs(request)


def may_see_runs(request: HttpRequest) -> bool:
    """Whether the reader may know what runs left behind, on whichever page."""
    return bool(request.user.has_perm("runlease.view_run"))


def lease_url(site: ReadOnly, request: HttpRequest, name: str) -> str:
    """The page of the lease; nothing if it was removed, or the reader may not look at it."""
    may_look = request.user.has_perm("runlease.view_runlease")
    if not (may_look and site.admin_site.is_registered(RunLease)):
        return ""
    keys = RunLease.objects.using(site.alias).filter(name=name).values_list("pk", flat=True)
    return "".join(site.link("runlease_change", key) for key in keys)
