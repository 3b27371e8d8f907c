"""From one page to another."""

from __future__ import annotations

from django.http import HttpRequest
from django.utils.http import urlencode

from ..models import RunLease
from .base import ReadOnly


def runs_of(site: ReadOnly, name: str) -> str:
    return f"{site.link('run_changelist')}?{urlencode({'lease': name})}"


def lease_url(site: ReadOnly, request: HttpRequest, name: str) -> str:
    """The page of the lease; nothing if it was removed, or the reader may not look at it."""
    if not request.user.has_perm("runlease.view_runlease"):
        return ""
    keys = RunLease.objects.using(site.alias).filter(name=name).values_list("pk", flat=True)
    return "".join(site.link("runlease_change", key) for key in keys)
