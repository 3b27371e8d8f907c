"""Views to mount in a project's URLs. None asks for a login: see to who can reach them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from . import history, incidents, jobs, store
from .models import Severity
from .text import check_name

View = TypeVar("View", bound=Callable[..., HttpResponse])


def _outside_transactions(view: View) -> View:
    """With ATOMIC_REQUESTS too, the view is called when a database is down."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


@_outside_transactions
@require_safe
def health(request: HttpRequest) -> HttpResponse:
    """Answer 200 while nothing is critical, and 503 when something is or the database cannot be
    asked, with the JSON of ``runlease check`` (then ``status`` is ``unknown``).

    ``?lease=NAME`` asks about one lease; 404 if there is none. Nothing is written: incidents are
    opened and resolved by ``check`` alone. It asks for no login, and tells names of leases, holders
    and hosts, so mount it where those who may know them can reach it.
    """
    name = request.GET.get("lease")
    try:
        alias = store.write_alias()
        if name is not None and not _is_known(name, alias):
            return _answer({"status": "unknown", "error": "there is no such lease"}, 404)
        report = incidents.look(alias, name)
    except (DatabaseError, InterfaceError):
        # Not the server's words, which name users and hosts.
        return _answer({"status": "unknown", "error": "the lease database cannot be asked"}, 503)
    return _answer(report.as_row(), 503 if report.status == Severity.CRITICAL else 200)


def _is_known(name: str, alias: str) -> bool:
    try:
        check_name(name)
    except ValueError:
        return False
    return history.lease(name, alias) is not None or jobs.is_known(name)


def _answer(data: history.Row, status: int) -> HttpResponse:
    return JsonResponse(data, status=status, headers={"Cache-Control": "no-store"})


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """The metrics for Prometheus, in the format that the request accepts.

    Raises RunLeaseError without ``prometheus_client``, and Django's database errors.
    """
    from .metrics import registry

    own = registry()
    from prometheus_client.exposition import choose_encoder

    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return HttpResponse(encode(own), content_type=content_type)
