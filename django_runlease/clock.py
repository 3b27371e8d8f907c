"""Time: the database's clock as SQL expressions, and the local clock that counts suspend.

The database's clock decides. Instants leave the database as epoch seconds and go back as epoch
seconds, so that neither USE_TZ nor a time zone nor a night of changing clocks can shift a lease.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import overload

from django.db.models import DateTimeField, DurationField, F, FloatField, Func, Value

# CLOCK_MONOTONIC stands still while a Linux machine is suspended; a lease does not.
_LOCAL_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def local() -> float:
    """Seconds on a local clock that never jumps and counts suspend where the system can."""
    return time.clock_gettime(_LOCAL_CLOCK)


class Now(Func):
    """The database's clock at the moment of evaluation.

    Django's ``functions.Now`` is the time the *statement* began, which lies before a lock wait.
    """

    function = "clock_timestamp"
    output_field = DateTimeField()


class Instant(Func):
    """Epoch seconds as a database instant."""

    function = "to_timestamp"
    output_field = DateTimeField()

    def __init__(self, epoch: float) -> None:
        super().__init__(Value(epoch, output_field=FloatField()))


class Seconds(Func):
    """A length of time as an interval of seconds only.

    An interval with a day part added to an instant is 23 or 25 hours long on some nights.
    """

    function = "make_interval"
    template = "%(function)s(secs => %(expressions)s)"
    output_field = DurationField()

    def __init__(self, length: timedelta) -> None:
        super().__init__(Value(length.total_seconds(), output_field=FloatField()))


class Epoch(Func):
    """An instant as epoch seconds, or NULL."""

    template = "EXTRACT(EPOCH FROM %(expressions)s)::double precision"
    output_field = FloatField()

    def __init__(self, instant: str | Func) -> None:
        super().__init__(F(instant) if isinstance(instant, str) else instant)


_EARLIEST = datetime.min.replace(tzinfo=UTC).timestamp()
_LATEST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


@overload
def utc(epoch: float) -> datetime: ...
@overload
def utc(epoch: None) -> None: ...
def utc(epoch: float | None) -> datetime | None:
    """Epoch seconds (or None) as an aware datetime in UTC; what lies beyond its years (such as
    PostgreSQL's infinity, written by hand) as the last or first of them."""
    if epoch is None:
        return None
    if not _EARLIEST <= epoch <= _LATEST:
        return datetime.max.replace(tzinfo=UTC) if epoch > 0 else datetime.min.replace(tzinfo=UTC)
    return datetime.fromtimestamp(epoch, tz=UTC)
