"""The database's clock in SQL, and the local clock."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection
from django.db.models import DateTimeField, F, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_runlease import clock
from django_runlease.clock import Epoch, Instant, Now, Seconds, utc
from django_runlease.models import RunLease

from .factories import RunLeaseFactory

# A night on which Berlin's clocks went forward, and one on which they went back.
FORWARD = datetime(2026, 3, 29, 0, 58, tzinfo=UTC)
BACK = datetime(2026, 10, 25, 0, 58, tzinfo=UTC)

# From 2106 on, a double of epoch seconds is coarser than half a microsecond.
INSTANTS = st.datetimes(
    min_value=datetime(1990, 1, 1),  # noqa: DTZ001  hypothesis adds the zone
    max_value=datetime(2106, 1, 1),  # noqa: DTZ001  hypothesis adds the zone
    timezones=st.just(UTC),
)

# The rows of one example are overwritten by the next, in the test's own transaction.
on_one_row = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def stored(expression):
    """What *expression*, written to a column, reads back as, in epoch seconds."""
    RunLease.objects.update(not_before=expression)
    return (
        RunLease.objects.annotate(epoch=Epoch("not_before")).values_list("epoch", flat=True).get()
    )


@pytest.fixture
def row(db):
    return RunLeaseFactory()


@given(INSTANTS)
@on_one_row
def test_an_instant_comes_back_from_the_database_to_the_microsecond(row, instant):
    assert utc(stored(Instant(instant.timestamp()))) == instant


@given(INSTANTS)
def test_an_instant_survives_epoch_seconds(instant):
    assert utc(instant.timestamp()) == instant


@given(
    st.sampled_from([FORWARD, BACK]),
    st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=366)),
)
@on_one_row
def test_a_length_added_to_an_instant_is_that_long_whichever_zone_the_session_has(
    row, instant, length
):
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL TIME ZONE 'Europe/Berlin'")
    epoch = stored(Instant(instant.timestamp()) + Seconds(length))
    assert utc(epoch) == instant + length


@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize("instant", [FORWARD, BACK, BACK + timedelta(hours=1)])
def test_neither_use_tz_nor_a_night_of_changing_clocks_shifts_an_instant(
    row, settings, use_tz, instant
):
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "Europe/Berlin"
    assert stored(Instant(instant.timestamp())) == instant.timestamp()
    assert stored(Instant(instant.timestamp()) + Seconds(timedelta(minutes=5))) == (
        instant.timestamp() + 300
    )


def test_epoch_of_nothing_is_nothing(row):
    assert stored(Value(None, output_field=DateTimeField())) is None
    assert utc(None) is None


def test_epoch_takes_a_column_or_an_expression(row):
    instant = Instant(FORWARD.timestamp())
    stored(instant)
    values = RunLease.objects.annotate(
        column=Epoch("not_before"), expression=Epoch(instant + Seconds(timedelta(seconds=1)))
    ).get()
    assert (values.column, values.expression) == (FORWARD.timestamp(), FORWARD.timestamp() + 1)


@pytest.mark.django_db
def test_now_goes_on_within_a_transaction_and_within_a_statement():
    """Both may have waited for a lock; the moment at which they began is past by then."""
    RunLeaseFactory.create_batch(1000)
    first = RunLease.objects.annotate(now=Epoch(Now())).values_list("now", flat=True)
    times = list(first) + list(first.all())
    assert times == sorted(times)
    assert times[0] < times[999] < times[1000]


@pytest.mark.django_db
def test_a_comparison_with_now_is_the_databases():
    RunLeaseFactory(not_before=Now() - Seconds(timedelta(milliseconds=1)))
    RunLeaseFactory(not_before=Now() + Seconds(timedelta(minutes=1)))
    assert RunLease.objects.filter(not_before__lte=Now()).count() == 1
    assert (
        RunLease.objects.filter(not_before__gt=F("not_before") - Seconds(timedelta(1))).count() == 2
    )


def test_the_local_clock_counts_suspend_and_never_goes_back():
    readings = [clock.local() for _ in range(1000)]
    assert readings == sorted(readings)
    # Nothing runs on it while it is off, so it starts at the boot: CLOCK_BOOTTIME says so too.
    assert abs(time.clock_gettime(time.CLOCK_BOOTTIME) - readings[-1]) < 5
