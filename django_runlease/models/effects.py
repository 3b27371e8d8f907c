"""The ledger of external actions."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from ..text import NAME_LENGTH
from .choices import EffectState


class Effect(models.Model):
    """An external action, written down before it is done and confirmed after it."""

    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH)
    kind = models.CharField(_("kind"), max_length=100)
    # As JSON, so that 1 is not "1".
    key = models.TextField(_("key"))
    idempotency_key = models.UUIDField(_("idempotency key"), unique=True)
    state = models.CharField(_("state"), max_length=20, choices=EffectState.choices)
    generation = models.PositiveBigIntegerField(_("generation"))
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    result: models.JSONField[Any] = models.JSONField(_("result"), null=True)
    reason = models.TextField(_("reason"), blank=True, default="")
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True)

    class Meta:
        verbose_name = _("external effect")
        verbose_name_plural = _("external effects")
        constraints = [
            models.UniqueConstraint(
                fields=["lease_name", "kind", "key"], name="runlease_effect_once"
            )
        ]
        indexes = [
            # What a person has to look at, among any number that are confirmed.
            models.Index(
                fields=["lease_name", "started_at"],
                name="runlease_effect_open",
                condition=Q(state="started"),
            )
        ]

    def __str__(self) -> str:
        return f"{self.lease_name} {self.kind} {self.key}"
