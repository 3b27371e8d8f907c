"""The leases and their history in the Django admin, read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.options import ModelAdmin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..models import Run, RunLease, State


class ReadOnly(ModelAdmin):  # type: ignore[type-arg]
    """Nobody adds, edits or deletes these rows by hand. Tokens are never shown."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(RunLease)
class RunLeaseAdmin(ReadOnly):
    list_display = [
        "name",
        "state",
        "holder",
        "claimed_at",
        "renewed_at",
        "expires_at",
        "generation",
    ]
    list_filter = ["paused"]
    search_fields = ["name", "holder"]
    ordering = ["name"]
    exclude = ["token"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[RunLease]:
        return RunLease.objects.with_state()

    @admin.display(description=_("state"))
    def state(self, lease: Any) -> str:
        return str(State(lease.state).label)


@admin.register(Run)
class RunAdmin(ReadOnly):
    list_display = [
        "lease_name",
        "outcome",
        "reason",
        "started_at",
        "finished_at",
        "holder",
        "host",
    ]
    list_filter = ["outcome"]
    search_fields = ["lease_name__startswith"]
    ordering = ["-id"]
    exclude = ["token"]
    show_full_result_count = False
