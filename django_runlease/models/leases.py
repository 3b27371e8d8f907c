"""The lease, its history, and the marks of its fences in other databases."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Case, Q, Value, When
from django.utils.translation import gettext_lazy as _

from ..clock import Now
from ..text import NAME_LENGTH
from .choices import UNSUCCESSFUL, Outcome, State


class RunLeaseQuerySet(models.QuerySet["RunLease"]):
    def with_state(self) -> RunLeaseQuerySet:
        """Annotate each lease with its ``state``. A paused lease is ``paused``, held or not."""
        return self.annotate(
            state=Case(
                When(paused=True, then=Value(State.PAUSED.value)),
                When(token__isnull=True, then=Value(State.FREE.value)),
                When(expires_at__gt=Now(), then=Value(State.HELD.value)),
                default=Value(State.EXPIRED.value),
                output_field=models.CharField(),
            )
        )


class RunLease(models.Model):
    """One job's lease. Kept when it is released, so that its generation never falls."""

    name = models.CharField(_("name"), max_length=NAME_LENGTH, unique=True)
    # Unique without a condition: changing a column of a plain unique index takes the row lock
    # that a fence's FOR KEY SHARE keeps out, so no claim, break or release passes an open fence.
    token = models.UUIDField(_("token"), null=True, unique=True, editable=False)
    generation = models.PositiveBigIntegerField(_("generation"), default=0)
    # No index: each renewal would then write one, instead of the heap page alone (HOT).
    expires_at = models.DateTimeField(_("expires at"), null=True)
    ttl = models.DurationField(_("ttl"), null=True)
    every = models.DurationField(_("every"), null=True)
    holder = models.TextField(_("holder"), blank=True, default="")
    host = models.TextField(_("host"), blank=True, default="")
    holder_process: models.JSONField[Any] = models.JSONField(_("holder's process"), null=True)
    claimed_at = models.DateTimeField(_("claimed at"), null=True)
    renewed_at = models.DateTimeField(_("renewed at"), null=True)
    heartbeat = models.BooleanField(
        _("heartbeat"),
        default=True,
        db_default=True,
        help_text=_("Whether its holder renews it in the background."),
    )
    not_before = models.DateTimeField(_("not before"), null=True)
    last_tick = models.DateTimeField(_("last tick"), null=True)
    paused = models.BooleanField(_("paused"), default=False)
    paused_by = models.TextField(_("paused by"), blank=True, default="")
    paused_reason = models.TextField(_("reason for the pause"), blank=True, default="")
    progress: models.JSONField[Any] = models.JSONField(_("progress"), null=True)

    objects: ClassVar[models.Manager[RunLease]] = RunLeaseQuerySet.as_manager()

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        permissions = [
            ("pause_runlease", _("Can pause a lease")),
            ("resume_runlease", _("Can resume a lease")),
            ("break_runlease", _("Can break a lease")),
        ]
        constraints = [
            models.CheckConstraint(
                name="runlease_free_has_no_expiry",
                condition=Q(token__isnull=True, expires_at__isnull=True)
                | Q(token__isnull=False, expires_at__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.name


class RunQuerySet(models.QuerySet["Run"]):
    def running(self) -> RunQuerySet:
        return self.filter(outcome=Outcome.RUNNING)


class Run(models.Model):
    """One execution of a job, or one declined tick.

    No foreign key to the lease: inserting one would lock the lease's row, and a claim that skips
    locked rows would then decline a free lease.
    """

    Outcome = Outcome

    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH)
    token = models.UUIDField(_("token"), null=True, editable=False)
    generation = models.PositiveBigIntegerField(_("generation"), null=True)
    holder = models.TextField(
        _("holder"), blank=True, help_text=_("Who ran it; for a declined tick, who held the lease.")
    )
    host = models.TextField(_("host"), blank=True, help_text=_("Where the tick came."))
    trigger = models.CharField(_("trigger"), max_length=50, blank=True)
    took_over_from = models.TextField(
        _("took over from"),
        blank=True,
        default="",
        db_default="",
        help_text=_("The holder that had never released."),
    )
    tick = models.DateTimeField(_("tick"), null=True)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"), null=True)
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome.choices)
    reason = models.TextField(_("reason"), blank=True, default="")
    waited = models.DurationField(_("waited"), null=True)
    lag = models.DurationField(_("lag"), null=True)
    exit_code = models.SmallIntegerField(_("exit code"), null=True)
    error = models.TextField(_("error"), blank=True, default="")
    output = models.TextField(_("output"), blank=True, default="")

    objects: ClassVar[models.Manager[Run]] = RunQuerySet.as_manager()

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        indexes = [
            models.Index(fields=["lease_name", "started_at"], name="runlease_run_history"),
            # Releases find their run by primary key; what has to be found is whatever else of
            # this name is still open, among as many rows as there are jobs running.
            models.Index(
                fields=["lease_name", "token"],
                name="runlease_run_open",
                condition=Q(outcome="running"),
            ),
            # The last success, however many failures have come since.
            models.Index(
                fields=["lease_name", "started_at"],
                name="runlease_run_succeeded",
                condition=Q(outcome="succeeded"),
            ),
            # One that is rare among millions: the last failure of a job that succeeds, and the
            # last decline, or among a burst of declines the last failure. Successes write none.
            models.Index(
                fields=["lease_name", "outcome", "started_at"],
                name="runlease_run_others",
                condition=Q(outcome__in=sorted(["declined", *UNSUCCESSFUL])),
            ),
            # What did not succeed of late, whichever job it was. Successes and declined ticks write
            # none. For one lease the planner would take it, too, and walk through all failures;
            # so it is for those only who ask for id > 0.
            models.Index(
                fields=["outcome", "started_at"],
                name="runlease_run_unsuccessful",
                condition=Q(outcome__in=UNSUCCESSFUL, id__gt=0),
            ),
        ]

    def __str__(self) -> str:
        if "started_at" in self.get_deferred_fields():
            # It would be read from a replica, or may be what Python has no value for.
            return self.lease_name
        return f"{self.lease_name} {self.started_at:%Y-%m-%d %H:%M:%S}"


class FenceMark(models.Model):
    """In a database that is not the lease's: the newest claim that has fenced there."""

    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH, unique=True)
    generation = models.PositiveBigIntegerField(_("generation"))
    token = models.UUIDField(_("token"), editable=False)

    class Meta:
        verbose_name = _("fence mark")
        verbose_name_plural = _("fence marks")

    def __str__(self) -> str:
        return f"{self.lease_name} {self.generation}"
