"""What the history came to, of runs that may be pruned."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..text import NAME_LENGTH
from .choices import Measure, Outcome


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
