"""What an operator may do from the admin: pause, resume, break, and silence an alert.

Each has a permission of its own, and a page that says what will happen; only its form, sent by
POST, does it. Who did it and why is kept in the history, and in the admin's log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from django import forms
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import phrases, silences, store
from ..holder import can_judge, group_of, living_group
from ..models import AlertKind
from ..phrases import Phrase, translated
from ..terms import spoken
from . import words


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Why"),
        max_length=store.REASON_LENGTH,
        help_text=gettext_lazy("Others will read it."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class OptionalReasonForm(ReasonForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = False


class BreakForm(ReasonForm):
    wait = forms.ChoiceField(
        label=gettext_lazy("The next run"),
        choices=[
            (
                "wait",
                gettext_lazy(
                    "waits until the lease would have expired; by then its holder has stopped"
                ),
            ),
            (
                "now",
                gettext_lazy("may start at once, even if the holder is still at work: two at once"),
            ),
        ],
        initial="wait",
        widget=forms.RadioSelect,
    )
    force = forms.BooleanField(
        label=gettext_lazy("End the database connections that keep it locked"),
        required=False,
        widget=forms.HiddenInput,
    )
    generation = forms.IntegerField(widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        # There is nothing to choose for what nobody holds.
        given["at_once"] = given.pop("wait", "now") == "now"
        return given

    def of_nobody(self) -> None:
        """There is no holder to wait for, but one that was broken before: not to wait for that is
        all that a break can do."""
        del self.fields["wait"]

    def of_expired(self) -> None:
        """Its time is over, so there is nothing to wait for."""
        self.fields["wait"].widget = forms.HiddenInput()

    def look_again(self, generation: int) -> None:
        """It was filled in for another holder than that of *generation*, which the page shows
        now."""
        self.add_error(
            None,
            _("It changed hands meanwhile, so nothing was broken. Above is what would happen now."),
        )
        self.data = {"reason": self.data["reason"], "wait": "wait", "generation": str(generation)}

    def offer_force(self, error: store.Blocked) -> None:
        """The row stayed locked: say by whom, and ask whether to end that."""
        who = words.name(error.blockers.translated()) if error.blockers else ""
        told = words.prose(translated(error))
        text = format_html(_("Its row is locked by {who}."), who=who) if who else told
        self.add_error(None, text)
        self.fields["force"].widget = forms.CheckboxInput()


class SilenceForm(OptionalReasonForm):
    length = forms.TypedChoiceField(
        coerce=lambda hours: timedelta(hours=int(hours)),
        label=gettext_lazy("For"),
        choices=[
            ("1", gettext_lazy("1 hour")),
            ("4", gettext_lazy("4 hours")),
            ("24", gettext_lazy("1 day")),
            ("168", gettext_lazy("7 days")),
            ("0", gettext_lazy("no time: tell of it again")),
        ],
        widget=forms.RadioSelect,
        initial="1",
    )


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
    form: ClassVar[type[forms.Form]]
    of: ClassVar[str] = "runlease"
    """The model that has the permission."""
    danger: ClassVar[bool] = False

    def may(self, request: HttpRequest) -> bool:
        return bool(request.user.has_perm(f"runlease.{self.key}_{self.of}"))

    @abstractmethod
    def applies(self, lease: Any) -> bool:
        """Whether it makes sense for this lease."""

    @abstractmethod
    def effects(self, lease: Any) -> list[object]:
        """What will happen, in sentences."""

    @abstractmethod
    def perform(self, order: Order) -> Phrase:
        """Do it, and say so. Raises RunLeaseError and ValueError for what cannot be done."""


class Pause(Action):
    key = "pause"
    label = gettext_lazy("Pause")
    form = ReasonForm

    def applies(self, lease: Any) -> bool:
        return not lease.paused

    def effects(self, lease: Any) -> list[object]:
        said: list[object] = [_("No run starts until it is resumed: each tick declines as paused.")]
        if lease.token is not None:
            said.append(format_html(_("{} goes on until its run ends."), words.name(lease.holder)))
        return said

    def perform(self, order: Order) -> Phrase:
        store.pause(order.lease.name, order.alias, by=order.by, **order.given)
        return phrases.gettext("Paused: %(reason)s", **order.given)


class Resume(Action):
    key = "resume"
    label = gettext_lazy("Resume")
    form = OptionalReasonForm

    def applies(self, lease: Any) -> bool:
        return bool(lease.paused)

    def effects(self, lease: Any) -> list[object]:
        said: list[object] = [
            _("The next tick may run again. Ticks that were declined do not come back.")
        ]
        if lease.paused_by:
            paused = (
                _("It was paused by {who}, because: {reason}")
                if lease.paused_reason
                else _("It was paused by {who}.")
            )
            facts = {"who": words.name(lease.paused_by), "reason": words.name(lease.paused_reason)}
            said.insert(0, format_html(paused, **facts))
        return said

    def perform(self, order: Order) -> Phrase:
        reason = order.given["reason"]
        if not store.resume(order.lease.name, order.alias, by=order.by, reason=reason):
            return phrases.gettext("It was not paused any more.")
        return _with_reason(phrases.gettext("Resumed."), reason)


class Break(Action):
    key = "break"
    label = gettext_lazy("Break")
    form = BreakForm
    danger = True

    def applies(self, lease: Any) -> bool:
        return lease.token is not None or (lease.due is not None and lease.due > lease.now)

    def effects(self, lease: Any) -> list[object]:
        said = _break_effects(lease) if lease.token is not None else _lift_effects(lease)
        if lease.paused:
            said.append(_("It stays paused until it is resumed."))
        return said

    def perform(self, order: Order) -> Phrase:
        reason = order.given["reason"]
        broken = store.break_lease(order.lease.name, order.alias, by=order.by, **order.given)
        if order.lease.paused:
            return _broken_while_paused(broken, reason)
        if not broken.was_held:
            return phrases.gettext("The next run may start at once: %(reason)s", reason=reason)
        if broken.free_at is None or broken.free_at <= order.lease.now:
            return phrases.gettext(
                "Taken away from %(holder)s, the next run may start at once: %(reason)s",
                holder=broken.holder,
                reason=reason,
            )
        return phrases.gettext(
            "Taken away from %(holder)s, the next run waits until %(when)s: %(reason)s",
            holder=broken.holder,
            when=words.exact(broken.free_at),
            reason=reason,
        )


class Silence(Action):
    key = "silence"
    label = gettext_lazy("Silence")
    form = SilenceForm
    of = "alert"

    def applies(self, lease: Any) -> bool:
        return True

    def effects(self, lease: Any) -> list[object]:
        return [_("Nobody is told of this alert for that time. It stays open, and is shown here.")]

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


def _broken_while_paused(broken: store.Broken, reason: str) -> Phrase:
    if not broken.was_held:
        return phrases.gettext("It waits no longer, and stays paused: %(reason)s", reason=reason)
    return phrases.gettext(
        "Taken away from %(holder)s, and it stays paused: %(reason)s",
        holder=broken.holder,
        reason=reason,
    )


def _break_effects(lease: Any) -> list[object]:
    holder = words.name(lease.holder)
    said: list[object] = []
    if lease.expires_epoch > lease.now:
        renewed = words.when(lease.renewed_epoch, lease.now)
        said.append(
            format_html(_("{who} holds it now, and renewed it {ago}."), who=holder, ago=renewed)
        )
        said.append(_("It is told that it lost the lease, and is stopped where that is possible."))
    else:
        expired = words.when(lease.expires_epoch, lease.now)
        said.append(format_html(_("{who} held it; it expired {ago}."), who=holder, ago=expired))
    facts = {"old": lease.generation, "new": lease.generation + 1}
    said.append(
        _(
            "The generation rises from %(old)s to %(new)s: what the holder writes through a"
            " fence is refused from then on. Other writes of it are not."
        )
        % facts
    )
    said.append(_("Its run is closed as lost."))
    left = lease.expires_epoch - lease.now
    if left > 0:
        said.append(_("Without a renewal it expires in %(length)s.") % {"length": words.age(left)})
    else:
        said += _expired_effects(lease)
    return said


def _expired_effects(lease: Any) -> list[object]:
    """What keeps the next run waiting, judged as far as it can be from here."""
    host, process = lease.host, lease.holder_process
    facts = {"group": group_of(process), "host": words.name(host)}
    if living_group(host, process) is not None:
        program = _("Its program still runs on {host}, as process group {group}.")
    elif facts["group"] is not None and not can_judge(host, process):
        program = _(
            "Its program, process group {group}, may still run on {host}: that cannot be seen"
            " from here."
        )
    else:
        return [_("Since it has expired, no run waits for its holder.")]
    return [
        format_html(program, **facts),
        _("Runs on that host wait until it has ended; elsewhere the next may start now."),
        _("After this it may start there too, beside that program: two at once."),
    ]


def _lift_effects(lease: Any) -> list[object]:
    if not store.is_after_break(lease.name, lease._state.db):
        return [_("Nobody holds it. The next run does not wait for its minimum hold any more.")]
    return [
        _("It was taken from its last holder, which may still be at work: the next run waits."),
        _("After this it may start at once, beside that holder: two at once."),
    ]


PAUSE, RESUME, BREAK, SILENCE = Pause(), Resume(), Break(), Silence()
BUTTONS: tuple[Action, ...] = (PAUSE, RESUME, BREAK)
