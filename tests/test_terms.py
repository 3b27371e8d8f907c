"""Durations, and terms that check themselves."""

import math
import re
import time
from datetime import timedelta

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from django_runlease.terms import (
    LONGEST,
    TERM_NAMES,
    Terms,
    declared,
    duration,
    given,
    resolve,
    short,
)

FIVE = "\N{ARABIC-INDIC DIGIT FIVE}"
LENGTHS = st.timedeltas(min_value=timedelta(microseconds=1), max_value=LONGEST)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (timedelta(minutes=5), 300),
        (90, 90),
        (0.25, 0.25),
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5_400),
        (" 1h 30m ", 5_400),
        ("1.5h", 5_400),
        ("250ms", 0.25),
        ("1m250ms", 60.25),
        ("2w1d", 15 * 86_400),
        ("366d", 366 * 86_400),
        ("PT5M", 300),
        ("P1DT1H", 90_000),
        ("PT0.5S", 0.5),
        ("P2W", 14 * 86_400),
    ],
)
def test_a_duration_has_several_forms(value, seconds):
    assert duration(value) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [
        "", " ", "soon", "5 minutes", "5x", "30m1h", "1h30", "1h,30m", "5M", "-5m", "+5m", "1e3",
        "1_000", "0x10", f"{FIVE}m", FIVE, f"PT{FIVE}M", "5m\0", "nan", "inf",
        "00:05:00", "5 00:00:00",
        "P1Y", "P1M", "pt5m", "-PT5M", "P-1D", "PT-5M", "P1W1D",
        math.nan, None, True, False, b"5m", [], {}, 5j,
    ],
)  # fmt: skip
def test_anything_else_is_no_duration_and_the_message_says_what_to_write(value):
    with pytest.raises(ValueError, match=r'is not a duration: write seconds .* or "PT5M"$'):
        duration(value)


@pytest.mark.parametrize(
    "value",
    [0, 0.0, -1, -math.inf, "0", "0s", "0h0m", "0.0", timedelta(0), timedelta(-1), timedelta.min,
     "P", "PT", "PT0S", "P0W", 1e-9, -(10**400)],
)  # fmt: skip
def test_a_duration_is_positive(value):
    with pytest.raises(ValueError, match="is not a positive duration"):
        duration(value)


@pytest.mark.parametrize(
    "value",
    [math.inf, 1e300, 10**400, "9" * 400, "9" * 400 + "d", "367d", "366d1ms", timedelta.max,
     f"P{'9' * 400}D", f"P{'9' * 400}W", "P999999999D", LONGEST + timedelta(microseconds=1)],
)  # fmt: skip
def test_a_duration_is_at_most_366_days(value):
    with pytest.raises(ValueError, match="is longer than 366 days"):
        duration(value)


@hypothesis_given(st.text() | st.text("0123456789.wdhms PT", max_size=30))
def test_any_text_is_a_duration_within_bounds_or_a_value_error(text):
    try:
        length = duration(text)
    except ValueError:
        return
    assert timedelta(0) < length <= LONGEST


@hypothesis_given(st.floats() | st.integers())
def test_any_number_is_a_duration_within_bounds_or_a_value_error(number):
    try:
        length = duration(number)
    except ValueError:
        assert not 1e-6 <= number <= LONGEST.total_seconds()
    else:
        assert length == timedelta(seconds=number)


@hypothesis_given(LENGTHS)
def test_a_length_means_the_same_in_every_form(length):
    seconds = length.total_seconds()
    assert duration(length) == length
    assert duration(seconds) == length
    assert duration(f"{seconds:.6f}") == length
    assert duration(f"{seconds:.6f}s") == length
    assert duration(f"PT{seconds:.6f}S") == length


@hypothesis_given(
    st.integers(0, 51),
    st.integers(0, 6),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(1, 59),
)
def test_units_add_up(weeks, days, hours, minutes, seconds):
    expected = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    assert duration(f"{weeks}w{days}d{hours}h{minutes}m{seconds}s") == expected
    assert duration(f"{weeks}w {days}d  {hours}h {minutes}m {seconds}s") == expected


def test_a_long_senseless_text_is_refused_in_linear_time():
    """With a run of spaces that several parts of the pattern can share, this takes minutes."""
    began = time.process_time()
    with pytest.raises(ValueError, match="is not a duration"):
        duration("1w" + " " * 300 + "x")
    assert time.process_time() - began < 10


# -- short


@pytest.mark.parametrize(
    ("length", "shown"),
    [
        (0, "0s"),
        (0.0004, "0.4ms"),
        (0.45, "450ms"),
        (timedelta(milliseconds=450), "450ms"),
        (0.9996, "1s"),
        (1, "1s"),
        (9.5, "9.5s"),
        (9.96, "10s"),
        (12.7, "12s"),
        (60, "1m"),
        (130, "2m 10s"),
        (5_400, "1h 30m"),
        (3_600, "1h"),
        (3_605, "1h"),
        (timedelta(days=3, hours=4, minutes=5), "3d 4h"),
        (timedelta(days=400), "400d"),
        (-130, "-2m 10s"),
        (-0.45, "-450ms"),
    ],
)
def test_a_length_is_shown_in_its_two_largest_units(length, shown):
    assert short(length) == shown


@hypothesis_given(LENGTHS)
def test_what_is_shown_reads_back_as_nearly_the_same_length(length):
    assert math.isclose(
        duration(short(length)).total_seconds(), length.total_seconds(), rel_tol=0.1, abs_tol=1e-6
    )


# -- terms


def minutes(**terms):
    return {name: timedelta(minutes=value) for name, value in terms.items()}


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (minutes(ttl=5, every=5, at_least=5), r"at_least \(5m\) must be shorter than every \(5m\)"),
        (minutes(ttl=5, every=5, at_least=6), r"at_least \(6m\) must be shorter than every \(5m\)"),
        (
            minutes(ttl=5, timeout=4, stall_after=4),
            r"stall_after \(4m\) must be shorter than timeout \(4m\)",
        ),
    ],
)
def test_terms_that_contradict_each_other_are_refused(terms, message):
    with pytest.raises(ValueError, match=message):
        Terms(**terms)


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"ttl": timedelta(milliseconds=900)}, "300ms between two renewals and 90ms of margin"),
        (minutes(ttl=5, every=4), r"ttl \(5m\) is longer than every \(4m\)"),
        (minutes(ttl=5, every=5, timeout=6), r"timeout \(6m\) is longer than every \(5m\)"),
        (minutes(ttl=5, at_least=6), r"at_least \(6m\) is longer than ttl \(5m\)"),
    ],
)
def test_terms_that_seldom_work_as_meant_are_risks(terms, message):
    (risk,) = Terms(**terms).risks()
    assert re.search(message, risk)


def test_sound_terms_bear_no_risk():
    sound = Terms(**minutes(ttl=5, every=5, at_least=4, timeout=5, stall_after=4))
    assert list(sound.risks()) == []
    assert list(Terms(ttl=timedelta(seconds=1)).risks()) == []


def test_the_margin_is_a_tenth_of_the_ttl():
    assert Terms(ttl=timedelta(minutes=5)).margin == timedelta(seconds=30)


# -- resolve


def test_the_strongest_layer_that_gives_a_term_decides(settings):
    settings.RUNLEASE = {"TTL": "7m"}
    terms = resolve(
        {"ttl": None, "every": "1h"}, {"ttl": "1m", "every": "2h"}, {"ttl": 5, "timeout": "PT30M"}
    )
    assert terms == Terms(**minutes(ttl=1, every=60, timeout=30))


def test_without_a_ttl_anywhere_the_setting_decides_and_then_five_minutes(settings):
    settings.RUNLEASE = {"TTL": "7m"}
    assert resolve({}, {"ttl": None}).ttl == timedelta(minutes=7)
    settings.RUNLEASE = {}
    assert resolve().ttl == timedelta(minutes=5)


@pytest.mark.parametrize("value", [None, "soon", 0, []])
def test_a_bad_default_is_named_and_matters_only_where_it_is_used(settings, value):
    settings.RUNLEASE = {"TTL": value}
    assert resolve({"ttl": "1m"}).ttl == timedelta(minutes=1)
    with pytest.raises(ValueError, match=r'^RUNLEASE\["TTL"\]: .* duration'):
        resolve({})


@pytest.mark.parametrize("term", TERM_NAMES)
def test_a_bad_term_is_named(term):
    with pytest.raises(ValueError, match=f"^{term}: 'soon' is not a duration"):
        resolve({term: "soon"})


def test_a_ttl_too_short_to_be_renewed_is_for_leases_without_heartbeat():
    with pytest.raises(ValueError, match=r"^ttl: 99ms is too short .* 100ms or more"):
        resolve({"ttl": "99ms"})
    assert resolve({"ttl": "100ms"}).ttl == timedelta(milliseconds=100)
    assert resolve({"ttl": "1ms"}, renewed=False).ttl == timedelta(milliseconds=1)


def test_only_terms_that_are_set_count_as_given():
    assert given({"ttl": "5m", "every": None, "wait": "soon", "command": "x"}) == minutes(ttl=5)


# -- declared


def test_an_entry_is_given_with_its_terms_as_lengths(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"ttl": "5m", "command": "clearsessions"}}}
    assert declared("x") == {"ttl": timedelta(minutes=5), "command": "clearsessions"}
    assert declared("y") == {}


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "is a dict of terms, not None"),
        ("clearsessions", "is a dict of terms, not 'clearsessions'"),
        (["5m"], "is a dict of terms, not ['5m']"),
        ({"tll": "5m"}, ": unknown key 'tll': did you mean \"ttl\"?"),
        ({7: "5m"}, ": unknown key 7: write one of ttl, every, at_least, timeout, stall_after, "),
        ({"ttl": "soon"}, ": ttl: 'soon' is not a duration"),
        ({"every": ""}, ": every: '' is not a duration"),
    ],
)
def test_an_ill_typed_entry_is_refused_with_its_place(settings, entry, message):
    settings.RUNLEASE = {"JOBS": {"x": entry}}
    with pytest.raises(ValueError, match=r'^RUNLEASE\["JOBS"\]\["x"\]') as refusal:
        declared("x")
    assert message in str(refusal.value)
