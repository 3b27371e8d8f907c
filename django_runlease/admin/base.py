"""What the pages of the admin have in common."""

from __future__ import annotations

from typing import Any

from django import VERSION
from django.contrib.admin.options import ModelAdmin
from django.contrib.admin.utils import quote
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.forms import Script
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.functional import cached_property
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from .. import store
from .refreshing import of_refresh

MOST = 1_000
"""How many rows are paged through, and counted, at most."""


class Bounded(Paginator):  # type: ignore[type-arg]  # generic for the checker only
    """Pages of the first ``MOST`` rows: to count millions takes seconds. Their keys are read once,
    so that filters and order are worked out once."""

    object_list: QuerySet[Any]

    @cached_property
    def _found(self) -> list[Any]:
        # One more, to know whether there are others.
        return list(self.object_list.values_list("pk", flat=True)[: MOST + 1])

    @cached_property
    def count(self) -> int:
        return min(len(self._found), MOST)

    @property
    def is_cut(self) -> bool:
        """Whether there are rows after those that are paged through."""
        return len(self._found) > MOST

    def page(self, number: int | str) -> Page[Any]:
        number = self.validate_number(number)
        first = (number - 1) * self.per_page
        keys = self._found[first : min(first + self.per_page, MOST)]
        rows = self.object_list.filter(pk__in=keys)
        return Page(rows, number, self)


class BoundedList(ChangeList):
    """A list that takes a single page from its paginator as well, and so reads the rows once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        number = self.page_num if self.multi_page else 1
        self.result_list = self.paginator.page(number).object_list


def is_read(request: HttpRequest) -> bool:
    return request.method in ("GET", "HEAD")


class ReadOnly(ModelAdmin):  # type: ignore[type-arg]  # generic for the checker only
    """Nobody adds, edits or deletes these rows by hand. Tokens are never shown."""

    show_full_result_count = False
    object_history_template = "runlease/admin/history.html"

    class Media:
        css = {"all": ["runlease/admin.css"]}
        js = [Script("runlease/admin.js", defer=True)]

    @property
    def alias(self) -> str:
        """The database that decides."""
        return store.write_alias()

    def link(self, view: str, *args: Any) -> str:
        """The address of a page of this site, which need not be the only admin there is."""
        args = tuple(map(quote, args))
        return reverse(f"admin:runlease_{view}", args=args, current_app=self.admin_site.name)

    def page_context(
        self, request: HttpRequest, original: Any, *crumbs: tuple[object, str]
    ) -> dict[str, Any]:
        """What the admin's own templates take for a page about *original*; *crumbs* lead to it from
        the list: labels with their addresses, the last without one."""
        return {
            **self.admin_site.each_context(request),
            **self.way(*crumbs),
            **of_refresh(request),
            "opts": self.opts,
            "original": original,
            "media": self.media,
            "change": True,
            "is_popup": False,
            "has_view_permission": True,
        }

    def way(self, *crumbs: tuple[object, str]) -> dict[str, Any]:
        """The breadcrumbs from the index to the list, and on along *crumbs*."""
        here, label = self.admin_site.name, self.opts.app_label
        first = [
            (_("Home"), reverse("admin:index", current_app=here)),
            (
                self.opts.app_config.verbose_name,
                reverse("admin:app_list", args=[label], current_app=here),
            ),
            (
                capfirst(self.opts.verbose_name_plural),
                self.link(f"{self.opts.model_name}_changelist"),
            ),
        ]
        # Since 6.1 they are a list, which the style sheets of the admin separate.
        return {"crumbs": [*first, *crumbs], "crumbs_are_listed": VERSION >= (6, 1)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """From the database that decides, not from a replica."""
        rows: QuerySet[Any] = self.model._default_manager.using(self.alias)
        return rows

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """None but those of the filters: another would find a token digit by digit, or read the
        whole history."""
        return lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        context = {"media": self.media, **(extra_context or {})}
        return super().history_view(request, object_id, context)
