"""The pictures of the admin: what stands where in them, and what they say in words."""

import re
from datetime import datetime, timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from django_runlease.admin import charts, figures, overview, pictures, words
from django_runlease.admin.figures import Bar, Recent, Window
from django_runlease.admin.legend import legend
from django_runlease.clock import utc
from django_runlease.models import Outcome

from .factories import RunLeaseFactory, ran
from .pages import Page, address

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


def bar(start=0.0, end=10.0, outcome="succeeded", **more):
    return Bar(start=start, end=end, outcome=outcome, **more)


SCALE = charts.Scale(since=0, until=100)


def timeline(*runs, **more):
    return pictures.timeline(Window(runs=runs, **more), SCALE, key="x", title="x")


def description(html):
    return re.search(r"<desc[^>]*>(.*?)</desc>", html)[1]


def test_a_description_says_that_there_may_be_more_where_not_all_has_been_read():
    runs = bar(0, 10), bar(20, 30), bar(40, 50, "failed", took_over_from="a")
    ticks = (bar(45, 45, "declined"),)
    assert description(timeline(*runs, ticks=ticks)) == (
        "3 runs, 2 succeeded, 1 failed, 1 declined tick, 1 takeover"
    )
    assert description(timeline(*runs, ticks=ticks, drawn_since=20.0)) == (
        "3 or more runs, 2 or more succeeded, 1 or more failed, 1 or more declined ticks,"
        " 1 or more takeovers"
    )


@pytest.mark.django_db
def test_the_lane_of_the_overview_says_so_as_the_table_beside_it_does(ops, monkeypatch):
    monkeypatch.setattr(overview, "BARS", 2)
    RunLeaseFactory(name="job")
    for n in range(3):
        ran(lease_name="job", age=3600 - 100 * n)
    html = Page(ops.get(reverse("admin:runlease_runlease_overview"))).html
    assert description(html) == "2 or more runs, 2 or more succeeded"


def test_a_sparkline_says_so_of_declined_ticks():
    runs = tuple(bar(n, n + 0.5) for n in range(30))
    count = figures.DECLINES

    def label(first):
        declines = tuple(bar(first + n / 10, outcome="declined") for n in range(count))
        html = pictures.sparkline(Recent(runs=runs, declines=declines))
        return re.search(r'aria-label="([^"]*)"', html)[1]

    assert label(1) == f"30 runs, 30 succeeded, {count} or more declined ticks"
    assert label(-0.05) == f"30 runs, 30 succeeded, {count - 1} declined ticks"


@pytest.mark.django_db
@pytest.mark.parametrize("late", ["runs", "ticks"])
def test_all_is_drawn_from_when_on_there_are_all_runs_and_all_ticks(late):
    ages = {"runs": (90, 80, 70), "ticks": (90, 80, 70), late: (30, 20, 10)}
    drawn = [ran(0.5, age=age) for age in ages["runs"]]
    ticks = [ran(0, age=age, declined=True) for age in ages["ticks"]]
    window = figures.windows("default", ["job"], timedelta(hours=1), 2)["job"]
    (runs_since, ticks_since) = (window.runs[0].start, window.ticks[0].start)
    assert (len(window.runs), len(window.ticks)) == (2, 2), (drawn, ticks)
    assert window.drawn_since == {"runs": runs_since, "ticks": ticks_since}[late]
    assert runs_since != ticks_since


def without_colours(html):
    html = re.sub(r"<(title|desc)[^>]*>.*?</\1>", "", html)
    html = re.sub(r' (title|aria-label)="[^"]*"', "", html)
    return re.sub(r" ?runlease-(good|bad|warn|active|quiet)\b", "", html)


KINDS = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TERMINATED, Outcome.RUNNING)
"""Those that are told apart at a glance; the others went wrong, too."""


def trend(*runs):
    found = {"every": None, "duration": {"median": None, "p95": None}}
    return pictures.trend(Window(runs=runs), SCALE, found, key="x")


@pytest.mark.parametrize(
    ("draw", "kinds"),
    [
        (timeline, KINDS),
        (lambda run: pictures.sparkline(Recent(runs=(bar(0, 20), run))), KINDS),
        # What still runs has no length yet.
        (lambda run: re.sub("<ul.*", "", trend(run)), KINDS[:3]),
        (trend, KINDS[:3]),
    ],
    ids=["timeline", "sparkline", "trend", "legend of the trend"],
)
def test_how_a_run_ended_is_told_by_a_shape_and_not_by_colour_alone(draw, kinds):
    drawn = {kind: without_colours(draw(bar(30, 40, kind))) for kind in kinds}
    assert len(set(drawn.values())) == len(kinds), drawn


def test_the_legend_shows_these_shapes():
    signs = [without_colours(sign) for sign, _ in legend()]
    assert len(set(signs)) == len(signs)


@pytest.mark.django_db
def test_the_list_and_the_page_of_a_lease_say_what_the_shapes_stand_for(ops):
    lease = RunLeaseFactory(name="job")
    ran(outcome="terminated")
    ran(outcome="failed", age=400)
    words_ = ["went wrong", "terminated"]
    sparks = Page(ops.get(reverse("admin:runlease_runlease_changelist"))).html
    sparks = sparks[sparks.index('<ul class="runlease-legend"') :]
    assert [word for word in [*words_, "running"] if f"</svg> {word}</li>" in sparks] == [
        *words_,
        "running",
    ]
    html = Page(ops.get(address(lease))).html
    html = html[html.index('class="runlease-trend"') :]
    assert all(f"</svg> {word}</li>" in html for word in words_)
    assert "</svg> succeeded</li>" not in html, "there is none"


def signs(html):
    """Where which sign stands, and how far beside."""
    found = re.findall(
        r'<svg class="[^"]*" x="([^"]*)"[^>]*>(?:<g [^(]*\((-?\d+)\)">)?(<\w+)', html
    )
    kinds = {"<path": "event", "<circle": "wrong"}
    return [(kinds[shape], x, shift) for x, shift, shape in found]


def test_a_run_that_went_wrong_says_so_beside_its_takeover_or_its_break():
    broken = {"outcome": "lost", "is_broken": True}
    assert signs(timeline(bar(30, 40, "failed"))) == [("wrong", "30%", "")]
    taken = timeline(bar(30, 40, "failed", took_over_from="a"))
    assert signs(taken) == [("event", "30%", ""), ("wrong", "30%", "-9")]
    assert signs(timeline(bar(30, 40, **broken))) == [("event", "40%", ""), ("wrong", "30%", "-9")]
    assert signs(timeline(bar(30, 40, took_over_from="a"))) == [("event", "30%", "")]


def test_a_break_stands_where_the_run_ended_and_a_takeover_where_it_began():
    broken = timeline(bar(30, 40, "lost", is_broken=True, took_over_from="a"))
    places = {
        sign: re.findall(rf'x="([^"]*)"[^>]*>{charts.SIGNS[sign]}', broken) for sign in charts.SIGNS
    }
    assert places["break"] == ["40%"]
    assert places["takeover"] == ["30%"]
