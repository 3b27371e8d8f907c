"""What the pages show of many leases, read in as many queries for thirty as for three."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import groupby, zip_longest
from operator import itemgetter
from typing import Any

from django.db import connections
from django.db.models import Case, DateTimeField, DurationField, F, QuerySet, Value, When
from django.db.models.functions import Coalesce

from ..alerts import LATE_SHARE
from ..clock import Epoch, Now, Seconds
from ..history import Row
from ..models import ActionKind, Alert, Outcome, Run, RunLease, Severity, State
from ..search import RUNS, TICKS, newest_keys_of_each
from ..situation import FAILURES
from ..store import BROKEN

SAMPLE = 100
"""How many of the newest runs the rate of success and the durations are told from. Not those of a
period: a job that ticks each second would have half a million in a week, and a monthly one none."""

SPARKS = 30
"""How many of them are drawn."""

DECLINES = 60
"""How many of the newest declined ticks are looked at, to mark those between the runs drawn."""

PAUSES = 100
"""How many of the newest pauses and resumes of a lease are looked at."""

ENDED = tuple(value for value in Outcome.values if value not in ("declined", "running"))

_COLUMNS = (
    *("pk", "start", "end", "outcome", "holder", "host", "reason", "took_over_from"),
    *("wait", "delay"),
)

STALLED = "stalled"
"""The view of a lease that is held, and was not renewed for most of its ttl."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One run, or declined tick, as charts draw it; instants in epoch seconds."""

    start: float
    end: float
    """Now, for a run that goes on."""
    outcome: str
    pk: int = 0
    holder: str = ""
    host: str = ""
    reason: str = ""
    took_over_from: str = ""
    wait: float | None = None
    """Seconds that it waited for the lease."""
    delay: float | None = None
    """Seconds from its tick to its start."""
    is_broken: bool = False
    """Whether an operator took its lease away."""

    @property
    def length(self) -> float:
        return max(self.end - self.start, 0.0)

    @property
    def goes_on(self) -> bool:
        return self.outcome == Outcome.RUNNING

    @property
    def is_takeover(self) -> bool:
        return bool(self.took_over_from)


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A time in which claims declined, because somebody said so; instants in epoch seconds."""

    start: float
    end: float
    """Now, for one that lasts."""
    by: str = ""
    reason: str = ""
    lasts: bool = False

    @property
    def length(self) -> float:
        return max(self.end - self.start, 0.0)


@dataclass(frozen=True, kw_only=True)
class Recent:
    """The newest runs of a lease, the oldest of them first, and what they come to."""

    runs: tuple[Bar, ...] = ()
    declines: tuple[Bar, ...] = ()

    @property
    def ended(self) -> list[Bar]:
        return [run for run in self.runs if run.outcome != Outcome.RUNNING]

    @property
    def last(self) -> Bar | None:
        return self.ended[-1] if self.ended else None

    @property
    def decided(self) -> list[Bar]:
        """Those that succeeded or failed; a run that was terminated did neither."""
        return [run for run in self.runs if run.outcome in (Outcome.SUCCEEDED, *FAILURES)]

    @property
    def success_rate(self) -> float | None:
        successes = sum(run.outcome == Outcome.SUCCEEDED for run in self.decided)
        return successes / len(self.decided) if self.decided else None

    @property
    def p95(self) -> float | None:
        return percentile([run.length for run in self.ended], 0.95)


def percentile(values: Sequence[float], share: float) -> float | None:
    """As PostgreSQL's ``percentile_cont`` has it."""
    if not values:
        return None
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


def with_view(leases: QuerySet[RunLease]) -> QuerySet[RunLease]:
    """Annotate each lease with its ``view`` (a state, or ``stalled``) and with its instants as
    epoch seconds on the database's clock, as which ``now`` is read."""
    late = Epoch("renewed_at") + Epoch("ttl") * LATE_SHARE
    view = Case(
        When(state=State.HELD, heartbeat=True, late_at__lt=F("now"), then=Value(STALLED)),
        default=F("state"),
    )
    # The checker does not follow as_manager().
    stated = leases.with_state()  # type: ignore[attr-defined]
    instants = {f"{name}_epoch": Epoch(f"{name}_at") for name in ("claimed", "renewed", "expires")}
    seconds = {"ttl_seconds": Epoch("ttl"), "every_seconds": Epoch("every")}
    annotated = stated.annotate(
        now=Epoch(Now()), late_at=late, due=Epoch("not_before"), last_tick_epoch=Epoch("last_tick")
    )
    viewed: QuerySet[RunLease] = annotated.annotate(view=view, **instants, **seconds)
    return without_instants(viewed)


def without_instants(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Leave out what Python may have no value for, such as PostgreSQL's infinity, written by hand:
    pages go by epoch seconds."""
    kinds = DateTimeField, DurationField
    return rows.defer(*(x.name for x in rows.model._meta.fields if isinstance(x, kinds)))


def recent(alias: str, names: Iterable[str]) -> dict[str, Recent]:
    """The newest runs and declined ticks of each of *names*, in two queries."""
    wanted = list(names)
    runs = _bars(alias, newest_keys_of_each(wanted, RUNS, SAMPLE))
    declines = _bars(alias, newest_keys_of_each(wanted, TICKS, DECLINES))
    return {
        name: Recent(runs=tuple(runs.get(name, ())), declines=tuple(declines.get(name, ())))
        for name in wanted
    }


@dataclass(frozen=True, kw_only=True)
class Window:
    """The runs and declined ticks of a lease that began in a period or still go on, oldest first;
    of each the newest, if there are too many."""

    runs: tuple[Bar, ...] = ()
    ticks: tuple[Bar, ...] = ()
    pauses: tuple[Pause, ...] = ()
    drawn_since: float | None = None
    """From when on all of them are here, if there were too many."""

    @property
    def cut(self) -> bool:
        return self.drawn_since is not None

    @property
    def ended(self) -> list[Bar]:
        return [run for run in self.runs if run.outcome != Outcome.RUNNING]

    @property
    def takeovers(self) -> int:
        return sum(run.is_takeover for run in self.runs)

    @property
    def breaks(self) -> int:
        return sum(run.is_broken for run in self.runs)

    @property
    def overlaps(self) -> list[tuple[float, float]]:
        """When two runs went on at once, which a lease is there to prevent."""
        found, last = [], -math.inf
        for run in self.runs:
            if run.start < min(last, run.end):
                found.append((run.start, min(last, run.end)))
            last = max(last, run.end)
        return found


def windows(
    alias: str, names: Iterable[str], length: timedelta, most: int, *, reasons: bool = False
) -> dict[str, Window]:
    """What happened to each of *names* in the period of that *length* up to now, in four queries;
    at most *most* runs of each, and as many declined ticks. Why the runs ended is told only if
    *reasons* are asked for."""
    wanted = list(names)
    keys = newest_keys_of_each(wanted, replace(RUNS, since=length), most)
    runs = _bars(alias, keys, reasons=reasons)
    ticks = _bars(alias, newest_keys_of_each(wanted, replace(TICKS, since=length), most))
    open_runs = Run.objects.using(alias).filter(lease_name__in=wanted, outcome=Outcome.RUNNING)
    running = _bars(alias, open_runs.values("pk"), reasons=reasons)
    pauses = _pauses(alias, wanted, length)
    found = {}
    for name in wanted:
        own = {run.pk: run for run in [*running.get(name, ()), *runs.get(name, ())]}
        found[name] = Window(
            runs=tuple(sorted(own.values(), key=lambda run: (run.start, run.pk))),
            ticks=tuple(ticks.get(name, ())),
            pauses=pauses.get(name, ()),
            drawn_since=_cut(runs.get(name, []), ticks.get(name, []), most),
        )
    return found


_PAUSES = """
    SELECT names.name, lease.paused, found.kind, found.by, found.reason,
           extract(epoch FROM found.at)::double precision,
           extract(epoch FROM clock_timestamp())::double precision
      FROM unnest(%s::text[]) AS names (name)
      LEFT JOIN runlease_runlease AS lease ON lease.name = names.name
     CROSS JOIN LATERAL (
        SELECT * FROM runlease_operatoraction AS action
         WHERE action.lease_name = names.name AND action.kind IN ('paused', 'resumed')
         ORDER BY action.at DESC, action.id DESC LIMIT %s
     ) AS found
     ORDER BY names.name, found.at, found.id
"""


def _pauses(alias: str, names: Sequence[str], length: timedelta) -> dict[str, tuple[Pause, ...]]:
    """The pauses of each of *names* in that period, the oldest first."""
    with connections[alias].cursor() as cursor:
        cursor.execute(_PAUSES, [list(names), PAUSES])
        rows = cursor.fetchall()
    pauses = {}
    for name, group in groupby(rows, key=itemgetter(0)):
        actions = list(group)
        since = actions[0][-1] - length.total_seconds()
        pauses[name] = tuple(each for each in _spans(actions, since) if each.end >= since)
    return pauses


def _spans(actions: Sequence[Any], since: float) -> Iterator[Pause]:
    """From each pause to what followed it, or up to now if the lease is still paused."""
    if actions[0][2] == ActionKind.RESUMED:
        # What is known does not go back to its beginning.
        yield Pause(start=since, end=actions[0][5])
    for action, following in zip_longest(actions, actions[1:]):
        _name, paused, kind, by, reason, at, now = action
        if kind == ActionKind.PAUSED and (following or paused):
            end = following[5] if following else now
            yield Pause(start=at, end=end, by=by, reason=reason, lasts=following is None)


def _cut(runs: list[Bar], ticks: list[Bar], most: int) -> float | None:
    """From when on there are all of both, if there are as many as are read of one."""
    return max((bars[0].start for bars in (runs, ticks) if len(bars) >= most), default=None)


def _bars(alias: str, keys: Any, *, reasons: bool = False) -> dict[str, list[Bar]]:
    found = (
        Run.objects.using(alias)
        .filter(pk__in=keys)
        .annotate(
            start=Epoch("started_at"),
            end=Epoch(Coalesce("finished_at", Now())),
            wait=Epoch("waited"),
            delay=Epoch("lag"),
        )
        .order_by("started_at", "id")
        .values("lease_name", *_COLUMNS)
    )
    bars: dict[str, list[Bar]] = {}
    for row in found:
        broken = row["outcome"] == Outcome.LOST and row["reason"].startswith(BROKEN)
        bar = Bar(**{column: row[column] for column in _COLUMNS}, is_broken=broken)
        if not reasons and bar.outcome != Outcome.DECLINED:
            bar = replace(bar, reason="")
        bars.setdefault(row["lease_name"], []).append(bar)
    return bars


def newest(alias: str, name: str, count: int, *, reasons: bool = False) -> list[Bar]:
    """The *count* newest runs of the lease, the newest first."""
    keys = newest_keys_of_each([name], RUNS, count)
    return _bars(alias, keys, reasons=reasons).get(name, [])[::-1]


def open_alerts(alias: str, names: Sequence[str]) -> dict[str, list[Row]]:
    """The open alerts of *names* as the last check saw them, by lease, the worst first; in one
    query."""
    alerts: dict[str, list[Row]] = {}
    found = Alert.objects.using(alias).open().filter(lease_name__in=names)
    for row in worst_first(alert_rows(found)):
        alerts.setdefault(row["lease_name"], []).append(row)
    return alerts


def loud_alerts(alias: str, most: int, *, besides: Sequence[str] = ()) -> list[Row]:
    """The first *most* of the open alerts that are not silenced as the last check saw them, the
    worst first; of all leases *besides* these."""
    loud = Alert.objects.using(alias).open().exclude(silenced_until__gt=Now())
    worst = Case(When(severity=Severity.CRITICAL, then=0), default=1)
    found = loud.exclude(lease_name__in=besides).order_by(worst, "opened_at", "pk")
    return alert_rows(found[:most])


def resolved_alerts(alias: str, name: str, length: timedelta, most: int) -> list[Row]:
    """The *most* newest alerts of *name* that were resolved in the period of that *length* up to
    now."""
    found = Alert.objects.using(alias).filter(
        lease_name=name, resolved_at__gte=Now() - Seconds(length)
    )
    return alert_rows(found.order_by("-opened_at", "-pk")[:most])


def alert_rows(found: QuerySet[Alert]) -> list[Row]:
    """Their fields, with instants in epoch seconds, and whether a silence lasts now."""
    instants = {
        "opened": Epoch("opened_at"),
        "resolved": Epoch("resolved_at"),
        "silent": Epoch("silenced_until"),
    }
    fields = "lease_name", "kind", "severity", "message", "remedy", "silenced_by", "silenced"
    # The checker does not follow as_manager().
    annotated = found.with_silenced().annotate(now=Epoch(Now()), **instants)  # type: ignore[attr-defined]
    return [{**row, "is_recorded": True} for row in annotated.values(*fields, "now", *instants)]


def worst_first(alerts: Iterable[Row]) -> list[Row]:
    """*alerts* in the order in which somebody should look at them: of each severity the oldest
    first, and last what no check has seen yet."""

    def place(row: Row) -> tuple[bool, float, str]:
        opened = math.inf if row["opened"] is None else row["opened"]
        return row["severity"] != Severity.CRITICAL, opened, row["kind"]

    return sorted(alerts, key=place)
