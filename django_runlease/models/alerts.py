"""What is wrong with a job, from its first finding to its end."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Case, Q, Value, When
from django.utils.translation import gettext_lazy as _

from ..clock import Now
from ..text import NAME_LENGTH
from .choices import AlertKind, Severity


class AlertQuerySet(models.QuerySet["Alert"]):
    def open(self) -> AlertQuerySet:
        return self.filter(resolved_at=None)

    def with_silenced(self) -> AlertQuerySet:
        """Annotate each alert with ``silenced``: whether a silence lasts now."""
        return self.annotate(
            silenced=Case(
                When(silenced_until__gt=Now(), then=Value(True)),
                default=Value(False),
                output_field=models.BooleanField(),
            )
        )


class Alert(models.Model):
    """One incident: opened when its rule first applied, resolved when it no longer did."""

    kind = models.CharField(_("kind"), max_length=20, choices=AlertKind.choices)
    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH)
    severity = models.CharField(_("severity"), max_length=20, choices=Severity.choices)
    message = models.TextField(_("message"))
    remedy = models.TextField(_("remedy"))
    opened_at = models.DateTimeField(_("opened at"))
    resolved_at = models.DateTimeField(_("resolved at"), null=True)
    silenced_until = models.DateTimeField(_("silenced until"), null=True)
    silenced_by = models.TextField(_("silenced by"), blank=True, default="", db_default="")
    notified_at = models.DateTimeField(_("notified at"), null=True)
    recovery_notified_at = models.DateTimeField(_("recovery notified at"), null=True)

    objects: ClassVar[models.Manager[Alert]] = AlertQuerySet.as_manager()

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        permissions = [("silence_alert", _("Can silence an alert"))]
        constraints = [
            # Of two checks at once, one opens the incident.
            models.UniqueConstraint(
                fields=["lease_name", "kind"],
                name="runlease_alert_open_once",
                condition=Q(resolved_at__isnull=True),
            )
        ]
        indexes = [
            models.Index(fields=["lease_name", "opened_at"], name="runlease_alert_history"),
            # The recoveries that nobody was told of yet, among any number of incidents.
            models.Index(
                fields=["lease_name", "resolved_at"],
                name="runlease_alert_untold",
                condition=Q(
                    resolved_at__isnull=False,
                    notified_at__isnull=False,
                    recovery_notified_at__isnull=True,
                ),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.lease_name} {self.kind}"
