"""What operators did."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..text import NAME_LENGTH
from .choices import ActionKind


class OperatorAction(models.Model):
    """One thing that an operator did, written in the transaction that did it.

    ``detail`` has what else there is to know, by kind::

        broken      was_held, holder, generation (of that claim), at_once, free_at (when the next
                    claim could come, ISO 8601, null for at once), connections_ended, tick_forgotten
        silenced    alert, until (ISO 8601)
        unsilenced  alert
        removed     generation

    No foreign key to the lease, for the same reason as of a ``Run``; and it outlives the lease.
    """

    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH)
    kind = models.CharField(_("kind"), max_length=20, choices=ActionKind.choices)
    by = models.TextField(_("by"))
    reason = models.TextField(_("reason"), blank=True, default="")
    at = models.DateTimeField(_("at"))
    detail: models.JSONField[Any] = models.JSONField(_("detail"), blank=True, default=dict)

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        indexes = [
            models.Index(fields=["lease_name", "at"], name="runlease_action_history"),
            # Those of all leases, and what is old.
            models.Index(fields=["at"], name="runlease_action_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.lease_name} {self.kind}"
