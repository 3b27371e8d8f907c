"""Metrics for Prometheus, read from the tables whenever somebody asks.

Jobs that last a second cannot be scraped, so the tables are. Register a :class:`Collector` in a
registry of ``prometheus_client``, mount ``views.metrics``, or let ``manage.py runlease metrics``
write a file for the node exporter. All that do so see the same figures: of several, scrape one.

Counters and histograms count each run one time, pruned or not; they never fall. A run counts when
it has ended, its wait and its lag when it starts. A declined tick is no run: it has a counter of
its own, and counts among the waits only if it waited, in vain. Bypasses are not counted. Runs that
were lost or abandoned have no duration, since nobody saw their end; one that was abandoned, and
whose holder then wakes, counts as lost too.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, get_args

from django.db.models import Case, FloatField, OuterRef, Q, Value, When
from django.db.models.functions import Coalesce, Greatest

from .clock import Epoch, Now
from .exceptions import DeclineReason, RunLeaseError
from .models import Alert, Measure, Outcome, Run, RunLease
from .store import write_alias
from .tallies import BUCKETS, TIMED, Key, Total, Totals, totals

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

ENDED = tuple(each for each in Outcome if each not in (Outcome.RUNNING, Outcome.DECLINED))
REASONS: tuple[str, ...] = get_args(DeclineReason)

BOUNDS = (*(str(float(bound)) for bound in BUCKETS), "+Inf")

COUNTERS = {
    "runlease_runs_total": ("Runs that have ended.", ("lease", "outcome")),
    "runlease_declined_total": ("Ticks that were declined.", ("lease", "reason")),
    "runlease_takeovers_total": ("Claims of a lease that was never released.", ("lease",)),
    "runlease_lost_total": ("Runs whose lease was lost.", ("lease",)),
}
HISTOGRAMS = {
    "runlease_run_duration_seconds": ("From the start of a run to its end.", ("lease", "outcome")),
    "runlease_wait_seconds": (
        "What runs, and the declined ticks that did, waited for the lease.",
        ("lease",),
    ),
    "runlease_start_lag_seconds": ("From the scheduled moment to the start.", ("lease",)),
}
GAUGES = {
    "runlease_held": ("Whether somebody holds the lease.", ("lease",)),
    "runlease_held_since_timestamp_seconds": ("When its holder claimed the lease.", ("lease",)),
    "runlease_expires_timestamp_seconds": (
        "When the lease expires, or has expired without a release.",
        ("lease",),
    ),
    "runlease_last_success_timestamp_seconds": ("When the last success ended.", ("lease",)),
    "runlease_interval_seconds": ("The declared interval between two ticks.", ("lease",)),
    "runlease_duration_interval_ratio": (
        "The last run's share of the interval; while it runs, the last success's if that is more.",
        ("lease",),
    ),
    "runlease_alerts": ("Open incidents that are not silenced.", ("lease", "kind")),
}


class Collector:
    """A collector for ``prometheus_client``, of the leases in the database *using*.

    A scrape takes four queries, and reads the Runs that no check and no prune has counted yet.
    Raises RunLeaseError if ``prometheus_client`` is missing or *using* is no PostgreSQL database,
    and Django's database errors.
    """

    def __init__(self, using: str | None = None) -> None:
        _families()
        self._using = using

    def describe(self) -> list[Metric]:
        """The metrics without samples, so that a registry knows their names without a query."""
        return list(_families().values())

    def collect(self) -> Iterator[Metric]:
        alias = write_alias(self._using)
        found = _families()
        leases = _leases(alias)
        counted = _by_lease(totals(alias))
        for lease in leases:
            _add_gauges(found, lease)
            _add_counts(found, lease["name"], counted.get(lease["name"], {}))
        for name, kind in _alerts(alias):
            found["runlease_alerts"].add_metric([name, kind], 1)
        yield from found.values()


def registry(using: str | None = None) -> CollectorRegistry:
    """A registry of ``prometheus_client`` with these metrics alone; raises as the collector."""
    collector = Collector(using)
    from prometheus_client import CollectorRegistry

    alone = CollectorRegistry()
    alone.register(collector)
    return alone


def text(using: str | None = None) -> str:
    """The metrics in Prometheus's text format; raises as the collector."""
    own = registry(using)
    from prometheus_client import generate_latest

    return generate_latest(own).decode()


def as_json(using: str | None = None) -> list[dict[str, Any]]:
    """Each metric with name, type, help and samples; raises as the collector."""
    return [
        {
            "name": metric.name,
            "type": metric.type,
            "help": metric.documentation,
            "samples": [
                {"name": sample.name, "labels": sample.labels, "value": _finite(sample.value)}
                for sample in metric.samples
            ],
        }
        for metric in registry(using).collect()
    ]


def _families() -> dict[str, Any]:
    try:
        from prometheus_client import core
    except ImportError as error:
        raise RunLeaseError(
            "metrics need prometheus_client, which is not installed: "
            "`pip install 'django-runlease[prometheus]'`"
        ) from error
    kinds = (
        (core.CounterMetricFamily, COUNTERS),
        (core.HistogramMetricFamily, HISTOGRAMS),
        (core.GaugeMetricFamily, GAUGES),
    )
    return {
        name: kind(name, told, labels=labels)
        for kind, metrics in kinds
        for name, (told, labels) in metrics.items()
    }


def _finite(value: float) -> float | None:
    # JSON has no infinity, which only an instant that was written by hand is.
    return value if abs(value) != float("inf") else None


# -- gauges


def _leases(alias: str) -> list[dict[str, Any]]:
    runs = Run.objects.filter(lease_name=OuterRef("name")).exclude(trigger="bypass")
    success = runs.filter(outcome=Outcome.SUCCEEDED).order_by("-started_at", "-pk")
    # Not by its token, which a release takes away. The claim and its run began at one moment.
    last = runs.exclude(outcome=Outcome.DECLINED).filter(started_at=OuterRef("claimed_at"))
    took = Greatest(Coalesce(Epoch("finished_at"), Epoch(Now())) - Epoch("started_at"), 0.0)
    held = When(token__isnull=False, expires_at__gt=Now(), then=Value(1.0))
    found = RunLease.objects.using(alias).annotate(
        held=Case(held, default=Value(0.0), output_field=FloatField()),
        held_since=Case(When(held=1.0, then=Epoch("claimed_at"))),
        expires=Epoch("expires_at"),
        interval=Epoch("every"),
        succeeded=success.annotate(end=Epoch("finished_at")).values("end")[:1],
        success_took=success.annotate(took=took).values("took")[:1],
        last_outcome=last.values("outcome")[:1],
        last_took=last.annotate(took=took).values("took")[:1],
    )
    return list(found.order_by("name").values("name", *_SHOWN, *_MEASURED))


_SHOWN = {
    "held": "runlease_held",
    "held_since": "runlease_held_since_timestamp_seconds",
    "expires": "runlease_expires_timestamp_seconds",
    "succeeded": "runlease_last_success_timestamp_seconds",
    "interval": "runlease_interval_seconds",
}
_MEASURED = ("success_took", "last_outcome", "last_took")


def _add_gauges(found: dict[str, Any], lease: dict[str, Any]) -> None:
    labels = [lease["name"]]
    for column, metric in _SHOWN.items():
        if lease[column] is not None:
            found[metric].add_metric(labels, lease[column])
    if lease["interval"] and lease["last_took"] is not None:
        took = lease["last_took"]
        if lease["last_outcome"] == Outcome.RUNNING:
            took = max(took, lease["success_took"] or 0.0)
        found["runlease_duration_interval_ratio"].add_metric(labels, took / lease["interval"])


def _alerts(alias: str) -> list[tuple[str, str]]:
    heard = Q(silenced_until=None) | Q(silenced_until__lte=Now())
    found = Alert.objects.using(alias).filter(heard, resolved_at=None)
    return list(found.order_by("lease_name", "kind").values_list("lease_name", "kind"))


# -- counters and histograms


def _by_lease(counted: Totals) -> dict[str, Totals]:
    found: dict[str, Totals] = {}
    for key, total in counted.items():
        found.setdefault(key.lease_name, {})[key] = total
    return found


def _add_counts(found: dict[str, Any], name: str, counted: Totals) -> None:
    """Counters start at zero: the first event of a series that begins with it is no increase."""

    def count(measure: Measure, outcome: str, reason: str = "") -> int:
        total = counted.get(Key(name, measure, outcome, reason))
        return total.count if total else 0

    for outcome in ENDED:
        found["runlease_runs_total"].add_metric(
            [name, outcome.value], count(Measure.DURATION, outcome)
        )
    known = [key.reason for key in counted if key.outcome == Outcome.DECLINED]
    for reason in dict.fromkeys([*REASONS, *known]):
        declined = count(Measure.DURATION, Outcome.DECLINED, reason)
        found["runlease_declined_total"].add_metric([name, reason], declined)
    takeovers = _merged(counted, Measure.TAKEOVER).count
    found["runlease_takeovers_total"].add_metric([name], takeovers)
    lost = count(Measure.DURATION, Outcome.LOST)
    found["runlease_lost_total"].add_metric([name], lost)
    for timed in TIMED:
        took = counted.get(Key(name, Measure.DURATION, timed))
        _add_histogram(found["runlease_run_duration_seconds"], [name, timed.value], took)
    waited, lag = _merged(counted, Measure.WAITED), _merged(counted, Measure.LAG)
    _add_histogram(found["runlease_wait_seconds"], [name], waited)
    _add_histogram(found["runlease_start_lag_seconds"], [name], lag)


def _merged(counted: Totals, measure: Measure) -> Total:
    merged = Total()
    for key, total in counted.items():
        if key.measure == measure:
            merged.add(total)
    return merged


def _add_histogram(metric: Any, labels: list[str], total: Total | None) -> None:
    if total is not None and total.count:
        cumulative = zip(BOUNDS, accumulate(total.buckets), strict=True)
        metric.add_metric(labels, list(cumulative), sum_value=float(total.seconds))
