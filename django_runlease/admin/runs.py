"""The history."""

from __future__ import annotations

from .base import ReadOnly


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
