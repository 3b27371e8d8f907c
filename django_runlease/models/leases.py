"""The lease, its history, and what is kept to watch over it."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce
from django.utils.translation import gettext_lazy as _

from ..clock import Now
from ..text import NAME_LENGTH


class State(models.TextChoices):
    """A lease as a reader sees it now, on the database's clock."""

    FREE = "free", _("free")
    HELD = "held", _("held")
    EXPIRED = "expired", _("expired")
    PAUSED = "paused", _("paused")


class Outcome(models.TextChoices):
    """How a run ended, or that it has not."""

    RUNNING = "running", _("running")
    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    DECLINED = "declined", _("declined")
    LOST = "lost", _("lost")
    TIMED_OUT = "timed_out", _("timed out")
    STALLED = "stalled", _("stalled")
    TERMINATED = "terminated", _("terminated")
    ABANDONED = "abandoned", _("abandoned")


UNSUCCESSFUL = ("abandoned", "failed", "lost", "stalled", "terminated", "timed_out")
"""How runs end that do not succeed."""


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

    def newest_first(self) -> RunQuerySet:
        return self.order_by("-started_at", "-id")

    def with_duration(self) -> RunQuerySet:
        """Annotate each run with its ``duration``; up to now for one that is running."""
        return self.annotate(
            duration=models.ExpressionWrapper(
                Coalesce(F("finished_at"), Now()) - F("started_at"),
                output_field=models.DurationField(),
            )
        )


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
                condition=Q(
                    outcome__in=[
                        *("abandoned", "declined", "failed", "lost"),
                        *("stalled", "terminated", "timed_out"),
                    ]
                ),
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
        return f"{self.lease_name} {self.started_at:%Y-%m-%d %H:%M:%S}"


class Measure(models.TextChoices):
    """What a :class:`Tally` adds up."""

    DURATION = "duration", _("duration")
    WAITED = "waited", _("waited")
    LAG = "lag", _("lag")
    TAKEOVER = "takeover", _("takeover")
    GENERATION = "generation", _("generation")


class Tally(models.Model):
    """What Runs of one kind come to, so that counters never fall when the history is pruned, and
    nobody reads all of it to count; and the generation of a lease that was removed, so that it
    never falls either."""

    lease_name = models.CharField(_("lease"), max_length=NAME_LENGTH)
    measure = models.CharField(_("measure"), max_length=20, choices=Measure.choices)
    outcome = models.CharField(_("outcome"), max_length=20, choices=Outcome.choices, blank=True)
    reason = models.CharField(_("reason"), max_length=20, blank=True, default="")
    count = models.PositiveBigIntegerField(_("count"))
    seconds = models.DecimalField(_("seconds"), max_digits=30, decimal_places=6)
    # How many fall into each of tallies.BUCKETS, and the last beyond them; not cumulative.
    buckets: models.JSONField[Any] = models.JSONField(_("buckets"))

    class Meta:
        verbose_name = _("tally")
        verbose_name_plural = _("tallies")
        constraints = [
            models.UniqueConstraint(
                fields=["lease_name", "measure", "outcome", "reason"], name="runlease_tally_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.lease_name} {self.measure} {self.outcome} {self.reason}".rstrip()


class TallyMark(models.Model):
    """How much of the history the tallies have counted. There is one row."""

    ONLY = 1
    """Its primary key."""

    up_to = models.PositiveBigIntegerField(
        _("up to"), default=0, help_text=_("Primary key of the last run that was looked at.")
    )
    # Those up to there that had not ended, and so were not counted.
    still_open: models.JSONField[Any] = models.JSONField(_("still open"), default=list)

    class Meta:
        verbose_name = _("tally mark")
        verbose_name_plural = _("tally marks")

    def __str__(self) -> str:
        return str(self.up_to)

    def has_counted(self, run_id: int) -> bool:
        return run_id <= self.up_to and run_id not in self.still_open


class AlertKind(models.TextChoices):
    """What may be wrong with a job; ``alerts`` has the rules."""

    OVERRUN = "overrun", _("overrun")
    CONTENTION = "contention", _("contention")
    STARVED = "starved", _("starved")
    OVERDUE = "overdue", _("overdue")
    FAILING = "failing", _("failing")
    STUCK = "stuck", _("stuck")
    GHOST = "ghost", _("ghost")
    LOST = "lost", _("lost")
    UNCERTAIN = "uncertain", _("uncertain effects")


class Severity(models.TextChoices):
    """How soon somebody has to act."""

    WARNING = "warning", _("warning")
    CRITICAL = "critical", _("critical")


class AlertQuerySet(models.QuerySet["Alert"]):
    def open(self) -> AlertQuerySet:
        return self.filter(resolved_at=None)


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


class EffectState(models.TextChoices):
    """What is known of an external action."""

    STARTED = "started", _("started")
    CONFIRMED = "confirmed", _("confirmed")
    FAILED = "failed", _("failed")


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
