"""The words that columns hold, and what people call them."""

from django.db import models
from django.utils.translation import gettext_lazy as _


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


class EffectState(models.TextChoices):
    """What is known of an external action."""

    STARTED = "started", _("started")
    CONFIRMED = "confirmed", _("confirmed")
    FAILED = "failed", _("failed")


class ActionKind(models.TextChoices):
    """What an operator can do to a lease or to its alerts."""

    PAUSED = "paused", _("paused")
    RESUMED = "resumed", _("resumed")
    BROKEN = "broken", _("broken")
    SILENCED = "silenced", _("silenced")
    UNSILENCED = "unsilenced", _("no longer silenced")
    REMOVED = "removed", _("removed")


class Measure(models.TextChoices):
    """What a :class:`Tally` adds up."""

    DURATION = "duration", _("duration")
    WAITED = "waited", _("waited")
    LAG = "lag", _("lag")
    TAKEOVER = "takeover", _("takeover")
    GENERATION = "generation", _("generation")
