"""The pictures of the admin: where what stands in them, and what they say to who cannot see them."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_runlease.admin import words
from django_runlease.clock import utc

HOUR = 3600.0


def test_labels_of_time_stand_at_whole_hours_and_days_of_the_readers_zone():
    noon = 1_796_040_000.0  # 2026-11-30 12:00 UTC
    with timezone.override("Asia/Kolkata"):  # UTC+5:30
        labels = [label for _, label in words.scale(noon - 86_400, noon).ticks]
        assert labels == ["18:00", "00:00", "06:00", "12:00"]
        days = [label for _, label in words.scale(noon - 7 * 86_400, noon).ticks]
        assert days == ["24 Nov", "25 Nov", "26 Nov", "27 Nov", "28 Nov", "29 Nov", "30 Nov"]


def axis(zone, until, hours):
    """The labels of the *hours* up to *until*, an instant in UTC; and when they stand there."""
    end = datetime.fromisoformat(f"{until}Z").timestamp()
    with timezone.override(zone):
        ticks = words.scale(end - hours * HOUR, end).ticks
        shown = [timezone.localtime(utc(at)) for at, _ in ticks]
    return [label for _, label in ticks], [f"{at:%H:%M:%S}" for at in shown]


@pytest.mark.parametrize(
    ("zone", "until", "hours", "expected"),
    [
        ("Europe/Berlin", "2026-10-25T17:00", 24, "00:00 06:00 12:00 18:00"),
        ("Europe/Berlin", "2026-03-29T16:00", 24, "18:00 00:00 06:00 12:00 18:00"),
        # An hour that there is twice, and one that there is not.
        ("Europe/Berlin", "2026-10-25T01:35", 1, "02:40 02:50 02:00 02:10 02:20 02:30"),
        ("Europe/Berlin", "2026-03-29T01:25", 1, "01:30 01:40 01:50 03:00 03:10 03:20"),
        # Half an hour back, at 02:00.
        ("Australia/Lord_Howe", "2026-04-04T15:15", 1, "01:20 01:30 01:40 01:50 01:30 01:40"),
    ],
)
def test_hours_stand_at_whole_hours_though_the_clocks_are_changed(zone, until, hours, expected):
    labels = expected.split()
    assert axis(zone, until, hours) == (labels, [f"{label}:00" for label in labels])


@pytest.mark.parametrize(
    ("zone", "until", "odd"),
    [
        ("Europe/Berlin", "2026-10-28T12:00", None),
        ("Europe/Berlin", "2026-04-01T12:00", None),
        # There the clocks go forward at midnight, so the 24th began at 01:00.
        ("Africa/Cairo", "2026-04-26T12:00", "01:00:00"),
        # And there back to midnight, which is there twice.
        ("America/Havana", "2026-11-03T12:00", None),
    ],
)
def test_each_day_stands_once_and_where_it_begins_though_the_clocks_are_changed(zone, until, odd):
    days = [datetime.fromisoformat(until) - timedelta(days=n) for n in range(6, -1, -1)]
    labels, times = axis(zone, until, 7 * 24)
    assert labels == [f"{day.day} {day:%b}" for day in days]
    assert [time for time in times if time != "00:00:00"] == ([odd] if odd else [])
