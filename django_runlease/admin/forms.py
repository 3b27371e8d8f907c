"""What the pages of the actions ask."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import store
from ..history import Row
from ..holder import is_dead, what_runs
from ..phrases import translated
from . import words


class ReasonForm(forms.Form):
    reason = forms.CharField(
        label=gettext_lazy("Why"),
        max_length=store.REASON_LENGTH,
        help_text=gettext_lazy("Others will read it."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )

    def suit(self, lease: Any, alert: Row | None) -> None:
        """Ask only what there is to ask."""

    def tell(self, error: store.Blocked) -> None:
        """Say why it could not be done."""
        self.add_error(None, words.prose(translated(error)))


class OptionalReasonForm(ReasonForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["reason"].required = False


class ResumeForm(OptionalReasonForm):
    pause = forms.JSONField(widget=forms.HiddenInput)
    """By whom and why it was paused, as the page has shown."""

    def clean_pause(self) -> tuple[object, ...]:
        pause = self.cleaned_data["pause"]
        return tuple(pause) if isinstance(pause, list) else ()


class BreakForm(ReasonForm):
    wait = forms.ChoiceField(
        label=gettext_lazy("The next run"), initial="wait", widget=forms.RadioSelect
    )
    force = forms.BooleanField(
        label=gettext_lazy(
            "End the database connections that keep it locked. What they have not committed is"
            " undone"
        ),
        required=False,
        widget=forms.HiddenInput,
    )
    generation = forms.IntegerField(widget=forms.HiddenInput)
    is_held = forms.BooleanField(required=False, widget=forms.HiddenInput)

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or {}
        # There is nothing to choose for what nobody holds.
        given["at_once"] = given.pop("wait", "now") == "now"
        is_held = given.pop("is_held")
        if "generation" in given:
            given["seen"] = store.Seen(generation=given.pop("generation"), is_held=is_held)
        return given

    def suit(self, lease: Any, alert: Row | None) -> None:
        wait = self.fields["wait"]
        wait.choices = _waits(lease)  # type: ignore[attr-defined]  # it is a ChoiceField
        if lease.token is None:
            # There is no holder to wait for, but one that was broken before: not to wait for that
            # is all that a break can do.
            del self.fields["wait"]
        elif lease.expires_epoch <= lease.now or is_dead(lease.host, lease.holder_process):
            # There is nobody to wait for.
            wait.widget = forms.HiddenInput()
        if self.data.get("force"):
            self.fields["force"].widget = forms.CheckboxInput()

    def tell(self, error: store.Blocked) -> None:
        """The row stayed locked: say by whom, and ask whether to end that."""
        who = words.name(error.blockers.translated()) if error.blockers else ""
        told = words.prose(translated(error))
        text = _("Nothing was broken: its row is locked by {who}.")
        self.add_error(None, format_html(text, who=who) if who else told)
        self.fields["force"].widget = forms.CheckboxInput()


def _waits(lease: Any) -> list[tuple[str, str]]:
    if what_runs(lease.holder_process):
        wait = _("waits until the lease would have expired; by then runjob has stopped its job")
    else:
        wait = _("waits until the lease would have expired; code that never asks may go on then")
    now = _("may start at once, even if the holder is still at work: two at once")
    return [("wait", wait), ("now", now)]


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

    def suit(self, lease: Any, alert: Row | None) -> None:
        if alert is not None and not alert["silenced"]:
            length = self.fields["length"]
            length.choices = length.choices[:-1]  # type: ignore[attr-defined]  # as above
