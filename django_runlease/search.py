"""Which runs of the history are meant, and how they are found among millions of others.

No index orders the runs of all leases but the primary key, in whose order they were inserted; one
has those that did not succeed, and one those that go on. Other runs of all leases are looked for
lease by lease and, where outcomes are asked for, outcome by outcome, each from the newest on and
each in an index that holds only these: what is rare among millions is found at once. The names are
read from the index, too, one jump for each, so that runs whose lease was removed are not missed.
With 100,000 names that takes seconds; a page looks among the newest runs instead.

A host is in no index: it is looked for in the rows, in one pass over them at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import BigIntegerField, BooleanField, QuerySet
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now as StatementNow

from .clock import Instant, Seconds
from .models import UNSUCCESSFUL, OperatorAction, Outcome, Run
from .terms import LONGEST_KEPT, duration
from .text import nearest

Moment = datetime | timedelta
"""An aware instant, or how long ago, on the database's clock."""

_NAMES = """
    (SELECT lease_name FROM runlease_run ORDER BY lease_name LIMIT 1)
    UNION ALL
    SELECT (SELECT run.lease_name FROM runlease_run AS run
             WHERE run.lease_name > names.lease_name ORDER BY run.lease_name LIMIT 1)
      FROM names WHERE names.lease_name IS NOT NULL
"""

_KEYS = """
    WITH RECURSIVE names (lease_name) AS ({names})
    SELECT found.id FROM names CROSS JOIN LATERAL ({runs}) AS found
     ORDER BY found.started_at DESC, found.id DESC LIMIT %s
"""

_KEYS_OF_EACH = """
    SELECT found.id FROM unnest(%s::text[]) AS names (lease_name) CROSS JOIN LATERAL (
        SELECT * FROM ({runs}) AS each ORDER BY each.started_at DESC, each.id DESC LIMIT %s
    ) AS found
"""

# The planner takes each name for an average one, with fewer rows than are asked for, and would sort
# all of them; of a limit that it does not know it expects a tenth, and reads the index backwards.
_RUNS = """(
    SELECT runlease_run.id, runlease_run.started_at FROM runlease_run
     WHERE {condition} AND {conditions}
     ORDER BY runlease_run.started_at DESC, runlease_run.id DESC LIMIT (SELECT %s::bigint)
)"""

# Few go on, and their index is in no order: the planner would walk through all in one that is.
_OPEN_RUNS = """(
    SELECT runlease_run.id, runlease_run.started_at FROM runlease_run
     WHERE {condition} AND {conditions} OFFSET 0
)"""

_OF_NAME = "runlease_run.lease_name = names.lease_name"
_OF_ANY = "runlease_run.id > 0"

_KEYS_OF_ALL = """
    SELECT found.id FROM ({runs}) AS found ORDER BY found.started_at DESC, found.id DESC LIMIT %s
"""

_KEYS_AMONG = """
    SELECT runlease_run.id FROM (
        SELECT * FROM runlease_run ORDER BY id DESC LIMIT %s
    ) AS runlease_run
     WHERE {conditions} ORDER BY runlease_run.id DESC LIMIT %s
"""

# In the order of the index, lest the planner reads the table.
_HOW_MANY_ENDED = """
    SELECT count(*) FROM (
        SELECT 1 FROM runlease_run WHERE runlease_run.id > 0 AND runlease_run.outcome = %s
         ORDER BY runlease_run.started_at DESC LIMIT (SELECT %s::bigint)
    ) AS newest
"""

# Whether a later run has ended otherwise is asked last, for the few that no success has followed.
_LAST_ENDED = """
    SELECT found.lease_name FROM (
        SELECT runlease_run.lease_name, max(runlease_run.started_at) AS started_at
          FROM runlease_run
         WHERE runlease_run.id > 0
           AND runlease_run.outcome = %s AND runlease_run.trigger <> 'bypass'
         GROUP BY runlease_run.lease_name
    ) AS found WHERE {conditions}
"""

_ENDED_LAST = """
    EXISTS (
        SELECT 1 FROM (
            SELECT run.lease_name, run.started_at FROM runlease_run AS run
             WHERE run.lease_name = runlease_runlease.name
               AND run.outcome = %s AND run.trigger <> 'bypass'
             ORDER BY run.started_at DESC LIMIT 1
        ) AS found WHERE {conditions}
    )
"""

_NONE_LATER = """
    coalesce((
        SELECT run.started_at FROM runlease_run AS run
         WHERE run.lease_name = found.lease_name AND run.outcome = %s AND run.trigger <> 'bypass'
         ORDER BY run.started_at DESC LIMIT 1
    ) <= found.started_at, true)
"""

_LISTED = (*UNSUCCESSFUL, Outcome.RUNNING.value)
"""The outcomes whose runs of all leases an index has together."""


@dataclass(frozen=True, kw_only=True)
class Filters:
    """Which runs. Raises ValueError for an outcome that there is none of, for an instant without
    an offset, and for a beginning after the end."""

    outcomes: tuple[str, ...] = ()
    """Any of these; empty for all."""
    since: Moment | None = None
    until: Moment | None = None
    """Started in this period, its ends included."""
    host: str = ""
    """Where the run or the declined tick came, or the host of the holder that it names."""
    bypasses: bool = True
    """Whether writes past a fence are wanted too, which are no runs of the job."""

    def __post_init__(self) -> None:
        for outcome in self.outcomes:
            if outcome not in Outcome.values:
                raise ValueError(f"outcome: {outcome!r}: {nearest(outcome, Outcome.values)}")
        check_period(self.since, self.until)


def check_period(since: Moment | None, until: Moment | None) -> None:
    """Raises ValueError for an instant without an offset, and for a beginning after the end."""
    for bound in (since, until):
        if isinstance(bound, datetime) and bound.utcoffset() is None:
            raise ValueError(_no_moment(bound.isoformat()))
    if _is_after(since, until):
        raise ValueError("since lies after until, so no run can match: exchange the two")


def moment(value: Moment | str) -> Moment:
    """An instant, or a length of time for one that long ago.

    Takes ISO 8601 with a UTC offset, and what :func:`.terms.duration` takes. Raises ValueError,
    naming the accepted forms, for anything else.
    """
    if isinstance(value, datetime):
        return value
    try:
        return duration(value, LONGEST_KEPT)
    except ValueError as error:
        if not isinstance(value, str):
            raise ValueError(_no_moment(value)) from error
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(_no_moment(value)) from None


def _no_moment(value: object) -> str:
    return (
        f"{value!r} is not a moment: write an instant with its UTC offset, such as "
        '2030-01-31T06:00:00+00:00, or how long ago, such as "90s", "2h" or "1d12h", '
        f"up to {LONGEST_KEPT.days} days"
    )


def _is_after(since: Moment | None, until: Moment | None) -> bool:
    if isinstance(since, datetime) and isinstance(until, datetime):
        return since > until
    return isinstance(since, timedelta) and isinstance(until, timedelta) and since < until


RUNS = Filters(
    outcomes=tuple(value for value in Outcome.values if value != Outcome.DECLINED), bypasses=False
)
"""The runs of jobs, which go on or have ended."""

TICKS = Filters(outcomes=(Outcome.DECLINED.value,))
"""The declined ticks."""


def newest_keys(name: str | Sequence[str] | None, filters: Filters, limit: int) -> RawSQL:
    """The primary keys of the *limit* newest runs that match, of *name*, of several or of all
    leases, as an expression for ``pk__in``. Not for a host, which would be looked for lease by
    lease."""
    if name is None and are_listed(filters):
        runs, params = _runs(filters, limit, _OF_ANY)
        return _keys(_KEYS_OF_ALL.format(runs=runs), [*params, limit])
    names = _NAMES if name is None else "SELECT unnest(%s::text[])"
    given = [] if name is None else [[name] if isinstance(name, str) else list(name)]
    runs, params = _runs(filters, limit)
    return _keys(_KEYS.format(names=names, runs=runs), [*given, *params, limit])


def newest_keys_of_each(names: Sequence[str], filters: Filters, limit: int) -> RawSQL:
    """The same for each of *names*, so *limit* times as many keys at most. Not for a host."""
    runs, params = _runs(filters, limit)
    return _keys(_KEYS_OF_EACH.format(runs=runs), [list(names), *params, limit])


def are_listed(filters: Filters) -> bool:
    """Whether an index has all that match, of all leases, together."""
    return bool(filters.outcomes) and set(filters.outcomes) <= set(_LISTED)


def newest_keys_among(most: int, filters: Filters, limit: int) -> RawSQL:
    """The primary keys of the *limit* last inserted runs that match, among the *most* last inserted
    ones of all leases."""
    conditions, params = _conditions(filters)
    if filters.outcomes:
        conditions += " AND runlease_run.outcome = ANY(%s)"
        params.append(list(filters.outcomes))
    return _keys(_KEYS_AMONG.format(conditions=conditions), [most, *params, limit])


def last_ended(outcome: str, alias: str, most: int) -> list[str] | None:
    """The leases whose last run that has ended did so with *outcome*, one of ``UNSUCCESSFUL``; None
    if more than *most* runs did, whichever their leases."""
    conditions, others = _none_later(outcome)
    with connections[alias].cursor() as cursor:
        cursor.execute(_HOW_MANY_ENDED, [outcome, most + 1])
        if cursor.fetchone()[0] > most:
            return None
        cursor.execute(_LAST_ENDED.format(conditions=conditions), [outcome, *others])
        return [name for (name,) in cursor.fetchall()]


def ended_last(outcome: str) -> RawSQL:
    """The same, as a condition of each lease, which looks for its newest runs in indexes."""
    conditions, others = _none_later(outcome)
    sql = _ENDED_LAST.format(conditions=conditions)
    # Not from outside either.
    return RawSQL(sql, [outcome, *others], output_field=BooleanField())  # noqa: S611


def _none_later(outcome: str) -> tuple[str, list[str]]:
    """That no other run has ended later; most have succeeded, which is asked first."""
    others = [each for each in (Outcome.SUCCEEDED.value, *UNSUCCESSFUL) if each != outcome]
    return " AND ".join(_NONE_LATER for _ in others), others


def read(keys: RawSQL, alias: str) -> list[int]:
    """The primary keys themselves: the planner does not know how few of them there will be."""
    with connections[alias].cursor() as cursor:
        cursor.execute(keys.sql, keys.params)
        return [key for (key,) in cursor.fetchall()]


def _runs(filters: Filters, limit: int, condition: str = _OF_NAME) -> tuple[str, list[Any]]:
    parts, params = [], []
    for outcome in filters.outcomes or (None,):
        conditions, values = _conditions(filters, outcome)
        is_open = outcome == Outcome.RUNNING
        shape = _OPEN_RUNS if is_open else _RUNS
        parts.append(shape.format(condition=condition, conditions=conditions))
        params += values if is_open else [*values, limit]
    return " UNION ALL ".join(parts), params


def _keys(sql: str, params: list[Any]) -> RawSQL:
    # Not from outside: it is made of the texts above.
    return RawSQL(sql, params, output_field=BigIntegerField())  # noqa: S611


def matching(runs: QuerySet[Run], filters: Filters) -> QuerySet[Run]:
    """Those of *runs* that match, in whatever way the database finds them."""
    if filters.outcomes:
        runs = runs.filter(outcome__in=filters.outcomes)
    # Not from outside either.
    return runs.filter(RawSQL(*_conditions(filters), output_field=BooleanField()))  # noqa: S611


def actions_within(
    actions: QuerySet[OperatorAction], since: Moment | None, until: Moment | None
) -> QuerySet[OperatorAction]:
    """Those of *actions* that were done in that period, its ends included."""
    if since is not None:
        actions = actions.filter(at__gte=_bound(since))
    if until is not None:
        actions = actions.filter(at__lte=_bound(until))
    return actions


def _bound(moment: Moment) -> Any:
    # The statement's time, so that it can be the bound of an index.
    if isinstance(moment, timedelta):
        return StatementNow() - Seconds(moment)
    return Instant(moment.timestamp())


def _conditions(filters: Filters, outcome: str | None = None) -> tuple[str, list[Any]]:
    parts = list(_parts(filters, outcome))
    return " AND ".join(text for text, _ in parts), [v for _, values in parts for v in values]


def _parts(filters: Filters, outcome: str | None) -> Iterator[tuple[str, list[Any]]]:
    yield "true", []
    if outcome is not None:
        yield "runlease_run.outcome = %s", [outcome]
    for operator, bound in ((">=", filters.since), ("<=", filters.until)):
        # No bound of an index can be what changes during a statement, as clock_timestamp() does.
        if isinstance(bound, timedelta):
            ago = "statement_timestamp() - make_interval(secs => %s)"
            yield f"runlease_run.started_at {operator} {ago}", [bound.total_seconds()]
        elif bound is not None:
            yield f"runlease_run.started_at {operator} to_timestamp(%s)", [bound.timestamp()]
    if filters.host:
        holder = "starts_with(runlease_run.holder, %s)"
        yield f"(runlease_run.host = %s OR {holder})", [filters.host, f"{filters.host}:"]
    if not filters.bypasses:
        yield "runlease_run.trigger <> 'bypass'", []
