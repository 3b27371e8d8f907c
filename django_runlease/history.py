"""What the rows say, read-only, as plain dicts that are ready for JSON.

The keys are the models' fields without ``id`` and ``token``, in the models' order, and then what
is derived from them. Lengths of time are seconds, instants are ISO 8601 in UTC. All ages are
counted on the database's clock.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    Exists,
    Field,
    Model,
    OuterRef,
    Q,
    QuerySet,
)
from django.db.models.expressions import RawSQL

from .clock import Epoch, Now, Seconds, utc
from .holder import is_dead
from .models import Alert, Effect, EffectState, OperatorAction, Outcome, Run, RunLease
from .search import Filters, Moment, actions_within, check_period, matching, newest_keys

Row = dict[str, Any]

RUNS_SHOWN = 20
"""How many runs of the history are read where nothing else is asked for."""

NEIGHBOURS = 1_000
"""How many more runs, by order of insertion, are looked at to find the newest of all leases."""

LARGEST_LIMIT = 10**9

_HIDDEN = {"id", "token"}


def leases(alias: str) -> list[Row]:
    """All leases by name, in one query.

    Each has its fields and: ``state`` (free, held, expired or paused); ``held_for``, seconds since
    its claim, ``renewed_ago``, seconds since its last renewal, and ``expires_in``, seconds until it
    expires (negative once it has), all null when nobody holds it; ``due_in``, seconds until
    ``not_before``, null if that has passed.
    """
    return _read_leases(RunLease.objects.using(alias).order_by("name"))


def lease(name: str, alias: str) -> Row | None:
    """One lease as :func:`leases` gives it, or None if it has no row."""
    rows = _read_leases(RunLease.objects.using(alias).filter(name=name))
    return rows[0] if rows else None


def idle_leases(alias: str, unclaimed_for: timedelta) -> list[Row]:
    """The leases that nobody holds or has claimed for that long, as :func:`leases` gives them."""
    not_held = Q(token=None) | Q(expires_at__lte=Now())
    unclaimed = Q(claimed_at=None) | Q(claimed_at__lt=Now() - Seconds(unclaimed_for))
    return _read_leases(RunLease.objects.using(alias).filter(not_held, unclaimed).order_by("name"))


def runs(
    alias: str, name: str | None = None, *, limit: int = RUNS_SHOWN, filters: Filters | None = None
) -> list[Row]:
    """The *limit* newest runs, of all leases or of *name*, in two queries at most.

    The newest comes first; with *filters*, of those that match. Each has its fields and
    ``duration``, in seconds; up to now for one that is running. Raises ValueError for a limit that
    is not a positive whole number.
    """
    limit = _checked(limit)
    found: QuerySet[Run] = Run.objects.using(alias)
    if filters is not None and not filters.host:
        found = found.filter(pk__in=newest_keys(name, filters, limit))
        return _read_runs(found)
    if filters is not None:
        found = matching(found, filters)
    if name is not None:
        return _read_runs(found.filter(lease_name=name), limit)
    return _read_runs(Run.objects.using(alias).filter(pk__in=_newest_keys(found, limit)))


def _read_runs(found: QuerySet[Run], limit: int = LARGEST_LIMIT) -> list[Row]:
    rows = _read(found.order_by("-started_at", "-id")[:limit])
    return [_finish_run(row) for row in rows]


def declines_since(alias: str, name: str, instant: str | None, most: int = LARGEST_LIMIT) -> int:
    """How many ticks of *name* have declined since *instant* (as rows tell it), or ever; *most*, if
    there are more."""
    found = Run.objects.using(alias).filter(lease_name=name, outcome=Outcome.DECLINED)
    if instant is not None:
        found = found.filter(started_at__gt=RawSQL("%s::timestamptz", [instant]))
    # In the order of an index, lest the planner looks for so many in the whole table.
    return found.order_by("-started_at")[:most].count()


def actions(
    alias: str,
    name: str | None = None,
    *,
    limit: int = RUNS_SHOWN,
    since: Moment | None = None,
    until: Moment | None = None,
) -> list[Row]:
    """The *limit* newest actions of operators, on all leases or on *name*, in one query.

    The newest comes first; with *since* and *until*, of those in that period. Each has its fields;
    ``detail`` is what :class:`.OperatorAction` says. Raises ValueError for a limit that is not a
    positive whole number, and for a period that cannot be meant.
    """
    limit = _checked(limit)
    check_period(since, until)
    found = actions_within(OperatorAction.objects.using(alias), since, until)
    if name is not None:
        found = found.filter(lease_name=name)
    rows = _read(found.order_by("-at", "-pk")[:limit])
    for row in rows:
        del row["now"]
    return [_with_iso(row, OperatorAction) for row in rows]


def effects(
    alias: str, name: str | None = None, *, uncertain: bool = False, limit: int = RUNS_SHOWN
) -> list[Row]:
    """The *limit* newest external actions, of all leases or of *name*, in two queries at most.

    With *uncertain*, only what somebody has to look at: those that were begun and not confirmed,
    by a holder that does not hold the lease any more, or is seen to be dead. The one first begun
    last comes first. ``key`` is as it was given. Raises ValueError for a limit that is not a
    positive whole number.
    """
    limit = _checked(limit)
    found = _uncertain(alias, name) if uncertain else _effects(alias, name)
    return [_finish_effect(row) for row in _read(found.order_by("-pk")[:limit])]


def uncertain_effects(alias: str, name: str) -> int:
    """How many external actions of *name* somebody has to look at."""
    return _uncertain(alias, name).count()


def _effects(alias: str, name: str | None) -> QuerySet[Effect]:
    found = Effect.objects.using(alias)
    return found if name is None else found.filter(lease_name=name)


def _uncertain(alias: str, name: str | None) -> QuerySet[Effect]:
    """Those that were begun and not confirmed, and that nobody is at."""
    started = _effects(alias, name).filter(state=EffectState.STARTED)
    own = started.filter(lease_name=OuterRef("name"), generation=OuterRef("generation"))
    holders = RunLease.objects.using(alias).filter(Exists(own), expires_at__gt=Now())
    if name is not None:
        holders = holders.filter(name=name)
    at_work = [
        pk
        for pk, host, process in holders.values_list("pk", "host", "holder_process")
        if not is_dead(host, process)
    ]
    theirs = RunLease.objects.filter(
        pk__in=at_work, name=OuterRef("lease_name"), generation=OuterRef("generation")
    )
    return started.filter(~Exists(theirs))


def alerts(alias: str, name: str | None = None) -> list[Row]:
    """The incidents that are open, of all leases or of *name*, the oldest first, in one query.

    Each has its fields and ``silenced``: whether a silence lasts.
    """
    found = Alert.objects.using(alias).open()
    if name is not None:
        found = found.filter(lease_name=name)
    return _read_alerts(found.order_by("opened_at", "pk"))


def incidents(alias: str, keys: Sequence[int]) -> list[Row]:
    """The incidents with these primary keys, open or not, as :func:`alerts` gives them."""
    return _read_alerts(Alert.objects.using(alias).filter(pk__in=keys))


def unrecorded_alert() -> Row:
    """An incident that has no row, as :func:`alerts` gives one; what it is about is None."""
    fields = {field.name: None for field in _fields(Alert)}
    return {**fields, "silenced_by": "", "silenced": False}


def _read_alerts(found: QuerySet[Alert]) -> list[Row]:
    # The checker does not follow as_manager().
    rows = _read(found.with_silenced(), "silenced")  # type: ignore[attr-defined]
    for row in rows:
        del row["now"]
    return [_with_iso(row, Alert) for row in rows]


def _finish_effect(row: Row) -> Row:
    del row["now"]
    row["key"] = json.loads(row["key"])
    row["idempotency_key"] = str(row["idempotency_key"])
    return _with_iso(row, Effect)


def _checked(limit: int) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        raise ValueError(f"limit: {limit!r} is not a positive whole number, such as {RUNS_SHOWN}")
    return min(limit, LARGEST_LIMIT)


def _newest_keys(found: QuerySet[Run], limit: int) -> list[int]:
    """The primary keys of the *limit* newest runs of all leases, or of those that are *found*.

    No index orders these by their start. They are inserted in that order, but for those that
    are inserted at the same moment, so the end of the primary key is enough to look at.
    """
    last = found.order_by("-pk").annotate(started=Epoch("started_at"))
    starts = last.values_list("started", "pk")[: limit + NEIGHBOURS]
    return [pk for _, pk in sorted(starts, reverse=True)[:limit]]


def run(run_id: int | None, alias: str | None) -> Row | None:
    """One run as :func:`runs` gives it, or None if there is none."""
    if run_id is None:
        return None
    found = _read(Run.objects.using(alias).filter(pk=run_id))
    return _finish_run(found[0]) if found else None


def unrecorded(name: str, **known: Any) -> Row:
    """A run that left no row, as :func:`run` gives one; what is not *known* is None."""
    fields = {field.name: None for field in _fields(Run)}
    return {**fields, "duration": None, "lease_name": name, **known}


def to_json(data: Row | Sequence[Row] | None) -> str:
    """*data* as JSON in printable ASCII, which no terminal's encoding refuses and none obeys."""
    return json.dumps(data, indent=2)


def _read_leases(found: QuerySet[RunLease]) -> list[Row]:
    # The checker does not follow as_manager().
    return [_finish_lease(row) for row in _read(found.with_state(), "state")]  # type: ignore[attr-defined]


def _read(found: QuerySet[Any], *derived: str) -> list[Row]:
    """The rows with instants and lengths as seconds, and the database's clock as ``now``."""
    fields = _fields(found.model)
    measures = {f"{f.name}_seconds": Epoch(f.name) for f in fields if _is_time(f)}
    sources = {f.name: f"{f.name}_seconds" if _is_time(f) else f.name for f in fields}
    columns = {**sources, **{key: key for key in derived}, "now": "now"}
    values = found.annotate(now=Epoch(Now()), **measures).values(*columns.values())
    return [{key: row[source] for key, source in columns.items()} for row in values]


def _finish_lease(row: Row) -> Row:
    now = row.pop("now")
    held = row["expires_at"] is not None
    row["held_for"] = _not_negative(_between(row["claimed_at"], now)) if held else None
    row["renewed_ago"] = _not_negative(_between(row["renewed_at"], now)) if held else None
    row["expires_in"] = _between(now, row["expires_at"])
    due_in = _between(now, row["not_before"])
    row["due_in"] = due_in if due_in is not None and due_in > 0 else None
    return _with_iso(row, RunLease)


def _finish_run(row: Row) -> Row:
    now = row.pop("now")
    end = now if row["finished_at"] is None else row["finished_at"]
    row["duration"] = _not_negative(_between(row["started_at"], end))
    return _with_iso(row, Run)


def _with_iso(row: Row, model: type[Model]) -> Row:
    for field in _fields(model):
        if isinstance(field, DateTimeField):
            row[field.name] = iso(row[field.name])
    return row


def iso(epoch: float | None) -> str | None:
    """Epoch seconds as ISO 8601 in UTC."""
    instant = utc(epoch)
    if instant is None:
        return None
    return instant.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _between(start: float | None, end: float | None) -> float | None:
    if start is None or end is None or not math.isfinite(end - start):
        return None
    # Epoch seconds of today are exact to a quarter of a microsecond.
    return round(end - start, 6)


def _not_negative(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, 0.0)


def _fields(model: type[Model]) -> list[Field[Any, Any]]:
    return [field for field in model._meta.concrete_fields if field.name not in _HIDDEN]


def _is_time(field: Field[Any, Any]) -> bool:
    return isinstance(field, DateTimeField | DurationField)
