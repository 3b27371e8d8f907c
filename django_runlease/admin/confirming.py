"""The page between the button of an action and what it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.translation import gettext as _

from ..exceptions import RunLeaseError
from ..models import AlertKind
from ..phrases import translated
from ..store import Blocked
from . import words
from .actions import BREAK, BUTTONS, SILENCE, Action, BreakForm, Order
from .base import ReadOnly
from .cells import told
from .lease import holder_facts
from .live import live

if TYPE_CHECKING:
    from .leases import RunLeaseAdmin


def urls(lease_admin: RunLeaseAdmin) -> list[URLPattern]:
    """One for each action."""

    def view(action: Action) -> Any:
        def confirm(request: HttpRequest, object_id: str, kind: str = "") -> HttpResponse:
            return _confirm(lease_admin, action, request, object_id, kind)

        wrapped = lease_admin.admin_site.admin_view(confirm)
        # The store has transactions of its own, and refuses to work within another.
        for alias in connections:
            wrapped = transaction.non_atomic_requests(alias)(wrapped)
        return wrapped

    patterns = [
        path(f"<path:object_id>/{action.key}/", view(action), name=name(action))
        for action in BUTTONS
    ]
    silence = path("<path:object_id>/silence/<str:kind>/", view(SILENCE), name=name(SILENCE))
    return [*patterns, silence]


def name(action: Action) -> str:
    return f"runlease_runlease_{action.key}"


def url(lease_admin: ReadOnly, action: Action, lease: Any, *more: str) -> str:
    return lease_admin.link(f"runlease_{action.key}", lease.pk, *more)


def buttons(lease_admin: RunLeaseAdmin, request: HttpRequest, lease: Any) -> list[dict[str, Any]]:
    """Those that make sense for *lease*, and that the reader may use."""
    return [
        {"url": url(lease_admin, action, lease), "label": action.label, "danger": action.danger}
        for action in BUTTONS
        if action.may(request) and action.applies(lease)
    ]


def _confirm(
    lease_admin: RunLeaseAdmin, action: Action, request: HttpRequest, object_id: str, kind: str
) -> HttpResponse:
    if not (action.may(request) and lease_admin.has_view_permission(request)):
        raise PermissionDenied
    lease = lease_admin.get_object(request, unquote(object_id))
    if lease is None or (kind and kind not in AlertKind.values):
        raise Http404
    back = lease_admin.link("runlease_change", lease.pk)
    if not action.applies(lease):
        messages.info(request, _("There is nothing to do any more."))
        return HttpResponseRedirect(back)
    is_post = request.method == "POST"
    form = action.form(request.POST if is_post else None, initial={"generation": lease.generation})
    if isinstance(form, BreakForm) and lease.token is None:
        form.of_nobody()
    elif isinstance(form, BreakForm) and lease.expires_epoch <= lease.now:
        form.of_expired()
    sent = is_post and form.is_valid()
    if sent and _perform(lease_admin, action, request, lease, kind, form):
        return HttpResponseRedirect(back)
    if sent and action is BREAK and _has_changed_hands(lease_admin, request, lease):
        # While it waited for the row: once more, with what is there now.
        return _confirm(lease_admin, action, request, object_id, kind)
    context = {
        **lease_admin.page_context(
            request, lease, (words.name(lease.name), back), (action.label, "")
        ),
        "title": _("%(action)s: %(lease)s") % {"action": action.label, "lease": lease.name},
        "name": lease.name,
        "action": action,
        "back": back,
        "form": form,
        "effects": action.effects(lease),
        "facts": holder_facts(lease) if action is BREAK else [],
        "alerts": _about(lease_admin.alias, lease, kind),
    }
    return TemplateResponse(request, "runlease/admin/confirm.html", context)


def _has_changed_hands(lease_admin: RunLeaseAdmin, request: HttpRequest, lease: Any) -> bool:
    now = lease_admin.get_object(request, str(lease.pk))
    return now is None or now.generation != lease.generation


def _perform(
    lease_admin: RunLeaseAdmin,
    action: Action,
    request: HttpRequest,
    lease: Any,
    kind: str,
    form: Any,
) -> bool:
    """Whether it was done; if not, the form says why."""
    by = request.user.get_username()
    order = Order(lease=lease, alias=lease_admin.alias, by=by, given=form.cleaned_data, kind=kind)
    try:
        said = action.perform(order)
    except Blocked as error:
        if not isinstance(form, BreakForm):
            form.add_error(None, words.prose(translated(error)))
        elif order.given["generation"] == lease.generation:
            form.offer_force(error)
        else:
            form.look_again(lease.generation)
        return False
    except RunLeaseError as error:
        form.add_error(None, words.prose(translated(error)))
        return False
    except ValueError as error:
        problem = format_html('<bdi lang="en">{}</bdi>', words.prose(error))
        form.add_error(
            None, format_html(_("A mistake in the settings: {problem}"), problem=problem)
        )
        return False
    lease_admin.log_change(request, lease, str(said))
    # The admin begins a text, but no markup, with a capital letter: names are to stay as they are.
    done = {"lease": words.name(lease.name), "done": words.name(said.translated())}
    messages.success(request, format_html(_("{lease}: {done}"), **done))
    return True


def _about(alias: str, lease: Any, kind: str) -> list[Any]:
    """The alert that is to be silenced."""
    alerts = live(alias, [lease]).alerts.get(lease.name, []) if kind else []
    return [told(alert) for alert in alerts if alert["kind"] == kind]
