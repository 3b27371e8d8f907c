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
from ..history import Row
from ..models import AlertKind
from ..phrases import translated
from ..store import Blocked, Changed
from . import words
from .actions import BREAK, BUTTONS, SILENCE, Action, Order
from .base import ReadOnly
from .cells import told
from .forms import ReasonForm
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
    lease = _lease(lease_admin, request, object_id)
    if kind and kind not in AlertKind.values:
        raise Http404
    back = lease_admin.link("runlease_change", lease.pk)
    sent = request.POST if request.method == "POST" else None
    alert = _alert(lease_admin.alias, lease, kind)
    form = _form(action, lease, alert, sent)
    problem = ""
    if sent is not None and action.applies(lease) and form.is_valid():
        try:
            if _perform(lease_admin, action, request, lease, kind, form):
                return HttpResponseRedirect(back)
        except Changed:
            lease = _lease(lease_admin, request, object_id)
            form = _form(action, lease, alert, reason=form.cleaned_data["reason"])
            problem = _(
                "It has changed meanwhile, so nothing was done. Above is what would happen now."
            )
    if not action.applies(lease):
        messages.info(request, _("There is nothing to do any more."))
        return HttpResponseRedirect(back)
    context = {
        **lease_admin.page_context(
            request, lease, (words.name(lease.name), back), (action.label, "")
        ),
        "title": _("%(action)s: %(lease)s") % {"action": action.label, "lease": lease.name},
        "name": lease.name,
        "action": action,
        "back": back,
        "form": form,
        "problem": problem,
        "alert": alert and told(alert),
        "effects": list(action.effects(lease, alert)),
        "facts": holder_facts(lease) if action is BREAK else [],
    }
    return TemplateResponse(request, "runlease/admin/confirm.html", context)


def _lease(lease_admin: RunLeaseAdmin, request: HttpRequest, object_id: str) -> Any:
    lease = lease_admin.get_object(request, unquote(object_id))
    if lease is None:
        raise Http404
    return lease


def _form(
    action: Action, lease: Any, alert: Row | None, sent: Any = None, *, reason: str = ""
) -> ReasonForm:
    form = action.form(sent, initial={"reason": reason, **action.seen(lease)})
    form.suit(lease, alert)
    return form


def _perform(
    lease_admin: RunLeaseAdmin,
    action: Action,
    request: HttpRequest,
    lease: Any,
    kind: str,
    form: ReasonForm,
) -> bool:
    """Whether it is done, be it by somebody else; if not, the form says why. Raises Changed."""
    by = request.user.get_username()
    order = Order(lease=lease, alias=lease_admin.alias, by=by, given=form.cleaned_data, kind=kind)
    try:
        said = action.perform(order)
    except Changed:
        raise
    except Blocked as error:
        form.tell(error)
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
    if said is None:
        messages.info(request, _("There is nothing to do any more."))
        return True
    lease_admin.log_change(request, lease, str(said))
    # The admin begins a text, but no markup, with a capital letter: names are to stay as they are.
    done = {"lease": words.name(lease.name), "done": words.name(said.translated())}
    messages.success(request, format_html(_("{lease}: {done}"), **done))
    return True


def _alert(alias: str, lease: Any, kind: str) -> Row | None:
    """The alert that is to be silenced, if it is there now."""
    alerts = live(alias, [lease]).alerts.get(lease.name, []) if kind else []
    return next((alert for alert in alerts if alert["kind"] == kind), None)
