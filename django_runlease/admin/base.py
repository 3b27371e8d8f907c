"""What the pages of the admin have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin.options import ModelAdmin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.forms import Script
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .. import store

MOST = 1_000
"""How many rows are paged through, and counted, at most."""


class Bounded(Paginator):  # type: ignore[type-arg]
    """Pages of the first ``MOST`` rows: to count millions takes seconds."""

    @cached_property
    def count(self) -> int:
        rows: QuerySet[Any] = self.object_list  # type: ignore[assignment]
        return rows[:MOST].count()


class ReadOnly(ModelAdmin):  # type: ignore[type-arg]
    """Nobody adds, edits or deletes these rows by hand. Tokens are never shown."""

    show_full_result_count = False

    class Media:
        css = {"all": ["runlease/admin.css"]}
        js = [Script("runlease/admin.js", defer=True)]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """From the database that decides, not from a replica."""
        rows: QuerySet[Any] = self.model._default_manager.using(store.write_alias())
        return rows

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def cell(heading: Any, lines: Iterable[object]) -> SafeString:
    """Its lines; and its heading, for screens that are too narrow for columns."""
    parts = format_html_join("", '<span class="runlease-line">{}</span>', ((x,) for x in lines))
    return format_html('<span class="runlease-heading">{}</span>{}', heading, parts)
