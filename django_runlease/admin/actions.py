"""What an operator may do from the admin: pause, resume, break, and silence an alert.

Each has a permission of its own, and a page that says what will happen; only its form, sent by
POST, does it. Who did it and why is kept in the history, and in the admin's log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import phrases, silences, store
from ..history import Row
from ..models import AlertKind
from ..phrases import Phrase
from ..terms import spoken
from ..text import printable
from . import breaks, words
from .forms import BreakForm, ReasonForm, ResumeForm, SilenceForm


@dataclass(frozen=True, kw_only=True)
class Order:
    """A confirmed action."""

    lease: Any
    alias: str
    by: str
    """The operator's user name."""
    given: Mapping[str, Any]
    """What the form was sent with, cleaned."""
    kind: str = ""
    """Of the alert, for a silence."""


class Action(ABC):
    """What its button says, who may press it, what its page asks, and what it does."""

    key: ClassVar[str]
    label: ClassVar[Any]
    form: ClassVar[type[ReasonForm]]
    of: ClassVar[str] = "runlease"
    """The model that has the permission."""
    danger: ClassVar[bool] = False

    def may(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"runlease.{self.key}_{self.of}"))

    @abstractmethod
    def applies(self, lease: Any) -> bool:
        """Whether it makes sense for this lease."""

    @abstractmethod
    def effects(self, lease: Any, alert: Row | None) -> Iterator[object]:
        """What will happen, in sentences; *alert* is the one that is to be silenced, if it is
        there now."""

    def seen(self, lease: Any) -> dict[str, Any]:
        """What the page shows that must still hold when it is done, for its hidden fields."""
        return {}

    @abstractmethod
    def perform(self, order: Order) -> Phrase | None:
        """Do it, and say so; None if there was nothing to do. Raises Changed if it is not any more
        what the page has shown, RunLeaseError and ValueError for what cannot be done."""


class Pause(Action):
    key = "pause"
    label = gettext_lazy("Pause")
    form = ReasonForm

    def applies(self, lease: Any) -> bool:
        return not lease.paused

    def effects(self, lease: Any, alert: Row | None) -> Iterator[object]:
        yield _("No run starts until it is resumed: each tick declines as paused.")
        if lease.token is not None and lease.expires_epoch > lease.now:
            yield format_html(_("{} goes on until its run ends."), words.name(lease.holder))

    def perform(self, order: Order) -> Phrase | None:
        if not store.pause(order.lease.name, order.alias, by=order.by, **order.given):
            return None
        return phrases.gettext("Paused: %(reason)s", **order.given)


class Resume(Action):
    key = "resume"
    label = gettext_lazy("Resume")
    form = ResumeForm

    def applies(self, lease: Any) -> bool:
        return bool(lease.paused)

    def effects(self, lease: Any, alert: Row | None) -> Iterator[object]:
        if lease.paused_by:
            paused = (
                _("It was paused by {who}, because: {reason}")
                if lease.paused_reason
                else _("It was paused by {who}.")
            )
            facts = {"who": words.name(lease.paused_by), "reason": words.name(lease.paused_reason)}
            yield format_html(paused, **facts)
        if why := breaks.why_not_yet(lease):
            text = _("No run starts before {when}: {why}.")
            yield format_html(text, when=words.exact(lease.due), why=why)
        else:
            yield _("The next tick may run again.")
        yield _("Ticks that were declined do not come back.")

    def seen(self, lease: Any) -> dict[str, Any]:
        return {"pause": [lease.paused_by, lease.paused_reason]}

    def perform(self, order: Order) -> Phrase | None:
        if not store.resume(order.lease.name, order.alias, by=order.by, **order.given):
            return None
        return _with_reason(phrases.gettext("Resumed."), order.given["reason"])


class Break(Action):
    key = "break"
    label = gettext_lazy("Break")
    form = BreakForm
    danger = True

    def applies(self, lease: Any) -> bool:
        return lease.token is not None or (lease.due is not None and lease.due > lease.now)

    def effects(self, lease: Any, alert: Row | None) -> Iterator[object]:
        yield from breaks.effects(lease)
        if lease.paused:
            yield _("It stays paused until it is resumed.")

    def seen(self, lease: Any) -> dict[str, Any]:
        return {"generation": lease.generation, "is_held": lease.token is not None}

    def perform(self, order: Order) -> Phrase:
        broken = store.break_lease(order.lease.name, order.alias, by=order.by, **order.given)
        return _broken(broken, order)


class Silence(Action):
    key = "silence"
    label = gettext_lazy("Silence")
    form = SilenceForm
    of = "alert"

    def applies(self, lease: Any) -> bool:
        return True

    def effects(self, lease: Any, alert: Row | None) -> Iterator[object]:
        if alert is None:
            yield _("It is not there now. If it comes in that time, nobody is told.")
            return
        yield _("Nobody is told of this alert for that time. It stays open, and is shown here.")
        if alert["silenced"]:
            yield _("This replaces the silence that it has.")

    def perform(self, order: Order) -> Phrase:
        # None lifts it.
        length, reason = order.given["length"] or None, order.given["reason"]
        silences.silence(
            order.lease.name, order.kind, order.alias, by=order.by, reason=reason, length=length
        )
        kind = AlertKind(order.kind).label
        if length is None:
            text = phrases.gettext("%(kind)s is told of again.", kind=kind)
        else:
            text = phrases.gettext(
                "Silenced %(kind)s for %(length)s.", kind=kind, length=spoken(length)
            )
        return _with_reason(text, reason)


def _with_reason(text: Phrase, reason: str) -> Phrase:
    return phrases.gettext("%(done)s %(reason)s", done=text, reason=reason) if reason else text


def _broken(broken: store.Broken, order: Order) -> Phrase:
    is_paused, until = order.lease.paused, broken.free_at
    waits = until is not None and until > order.lease.now
    facts = {
        "holder": printable(broken.holder),
        "reason": order.given["reason"],
        "when": words.exact(until),
    }
    if not broken.was_held and is_paused:
        return phrases.gettext("It waits no longer, and stays paused: %(reason)s", **facts)
    if not broken.was_held:
        return phrases.gettext("The next run may start at once: %(reason)s", **facts)
    if is_paused and waits:
        return phrases.gettext(
            "Taken away from %(holder)s. It stays paused, and no run starts before %(when)s:"
            " %(reason)s",
            **facts,
        )
    if is_paused:
        return phrases.gettext(
            "Taken away from %(holder)s, and it stays paused: %(reason)s", **facts
        )
    if waits:
        return phrases.gettext(
            "Taken away from %(holder)s, the next run waits until %(when)s: %(reason)s", **facts
        )
    return phrases.gettext(
        "Taken away from %(holder)s, the next run may start at once: %(reason)s", **facts
    )


PAUSE, RESUME, BREAK, SILENCE = Pause(), Resume(), Break(), Silence()
BUTTONS: tuple[Action, ...] = (PAUSE, RESUME, BREAK)
