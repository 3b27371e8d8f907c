"""Tables and sentences for people, made from rows as the history gives them."""

import re
from typing import Any

import pytest
from django.core.management.color import color_style, no_style
from hypothesis import given, settings
from hypothesis import strategies as st

from django_runlease import display
from django_runlease.store import Broken

PLAIN = no_style()
COLOUR = color_style(force_color=True)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "a\x1b[2Jb\x07c\x9bd\u202ee\x7ff\x00g"


def lease(**values: Any) -> dict[str, Any]:
    """A free lease as the history gives it."""
    return {
        "name": "billing",
        "generation": 7,
        "expires_at": None,
        "ttl": 300.0,
        "every": None,
        "holder": "",
        "host": "",
        "holder_process": None,
        "claimed_at": None,
        "renewed_at": None,
        "not_before": None,
        "last_tick": None,
        "paused": False,
        "paused_by": "",
        "paused_reason": "",
        "progress": None,
        "state": "free",
        "held_for": None,
        "expires_in": None,
        "due_in": None,
        "runs": [],
    } | values


def held(**values: Any) -> dict[str, Any]:
    return lease(
        **{
            "state": "held",
            "holder": "web1:4711",
            "claimed_at": "2026-11-30T15:14:59.108044Z",
            "held_for": 130.0,
            "expires_in": 170.0,
        }
        | values
    )


def run(**values: Any) -> dict[str, Any]:
    return {
        "lease_name": "billing",
        "generation": 7,
        "holder": "web1:4711",
        "host": "web1",
        "trigger": "runjob",
        "tick": None,
        "started_at": "2026-11-30T15:14:59.108044Z",
        "finished_at": "2026-11-30T15:17:09.108044Z",
        "outcome": "succeeded",
        "reason": "",
        "waited": 0.0,
        "lag": None,
        "exit_code": None,
        "error": "",
        "output": "",
        "duration": 130.0,
    } | values


# -- text


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("abc", 3),
        ("é", 1),
        ("e\u0301", 1),
        ("日本", 4),
        ("🎉", 2),
        ("\uff57", 2),
        ("…", 1),
        ("", 0),
    ],
)
def test_width_counts_columns_of_a_terminal(text, columns):
    assert display.width(text) == columns


def test_printable_replaces_all_that_could_steer_a_terminal_and_keeps_the_rest():
    assert display.printable(HOSTILE) == "a�[2Jb�c�d�e�f�g"
    assert display.printable("one\ntwo\tthree\N{NO-BREAK SPACE}four") == "one two three four"
    assert display.printable("naïve 日本 🎉") == "naïve 日本 🎉"


@settings(deadline=None)
@given(st.text())
def test_printable_text_is_printable_whatever_it_was(text):
    assert display.printable(text).isprintable()


@pytest.mark.parametrize(
    ("cut", "expected"), [(display.cut_end, "abcdef…"), (display.cut_middle, "abc…hij")]
)
def test_long_text_is_cut_with_an_ellipsis(cut, expected):
    assert cut("abcdefghij", 7) == expected
    assert cut("abcdefg", 7) == "abcdefg"


def test_a_mark_whose_letter_is_cut_off_goes_with_it():
    assert display.cut_middle("aaaaaaaaae\u0301bb", 6) == "aaa…bb"
    assert display.cut_end("aae\u0301bbbbbb", 4) == "aae\u0301…"


@settings(deadline=None)
@given(
    text=st.text().map(display.printable),
    room=st.integers(3, 20),
    cut=st.sampled_from([display.cut_end, display.cut_middle]),
)
def test_cut_text_fits_whatever_it_was(text, room, cut):
    assert display.width(cut(text, room)) <= room


# -- tables


def starts(line: str, *words: str) -> list[int]:
    """The terminal columns at which *words* begin."""
    return [display.width(line[: line.index(word)]) for word in words]


def test_wide_and_combined_characters_keep_the_columns_in_line():
    rows = [lease(name=name, generation=123) for name in ("ascii", "日本の請求", "🎉🎉", "e\u0301")]
    lines = display.lease_table(rows, PLAIN).splitlines()
    expected = starts(lines[0], "STATE")
    assert [starts(line, "free") for line in lines[1:]] == [expected] * 4
    assert {display.width(line) for line in lines} == {display.width(lines[0])}


@pytest.mark.parametrize("character", ["x", "日", "🎉", "e\u0301", "\x1b", "\n"])
def test_no_table_is_wider_than_80_columns_whatever_the_rows_hold(character):
    long = (character * 200)[:200]
    leases = [
        held(name=long, holder=long, generation=2**63 - 1, held_for=8e6, expires_in=8e6),
        held(name=long, state="paused", holder=long, due_in=8e6),
    ]
    runs = [
        run(
            lease_name=long, holder=long, host=long, reason=long, outcome="timed_out", duration=8e6
        ),
        run(lease_name=long, holder=long, host=long, reason="held", outcome="declined"),
    ]
    tables = [
        display.lease_table(leases, PLAIN),
        display.run_table(runs, PLAIN),
        display.lease_page(held(name=long, holder=long, paused_reason=long, runs=runs), PLAIN),
    ]
    for line in "\n".join(tables).splitlines():
        assert display.width(line) <= 80
        assert line.isprintable()


def test_a_wide_terminal_shows_long_names_in_full():
    name = "a-rather-long-name-of-a-job-that-does-not-fit-into-eighty-columns"
    row = held(name=name)
    assert name not in display.lease_table([row], PLAIN)
    assert name in display.lease_table([row], PLAIN, 140)


def test_a_terminal_too_narrow_for_anything_gets_its_rows_all_the_same():
    assert "held 2m 10s" in display.lease_table([held()], PLAIN, 10)
    assert "Generation" in display.lease_page(held(), PLAIN, 10)


# -- leases


@pytest.mark.parametrize(
    ("row", "state"),
    [
        (lease(), "free"),
        (lease(due_in=45.0), "free, due in 45s"),
        (held(), "held 2m 10s, expires in 2m 50s"),
        (held(state="expired", expires_in=-62.0), "expired 1m 2s ago"),
        (lease(state="paused"), "paused"),
        (held(state="paused"), "paused, held 2m 10s"),
        (held(state="paused", expires_in=-1.0), "paused, expired"),
        (held(held_for=0.0042, expires_in=0.95), "held 0s, expires in 0s"),
    ],
)
def test_the_state_of_a_lease_comes_with_its_ages(row, state):
    line = display.lease_table([row], PLAIN).splitlines()[1]
    assert re.fullmatch(rf"billing  {state}  +(web1:4711)? +7", line)


@pytest.mark.parametrize(
    ("row", "painted"),
    [
        (held(), COLOUR.SUCCESS("held 2m 10s, expires in 2m 50s")),
        (held(state="expired", expires_in=-62.0), COLOUR.ERROR("expired 1m 2s ago")),
        (lease(state="paused"), COLOUR.WARNING("paused")),
        (lease(), "billing  free"),
    ],
)
def test_a_lease_is_coloured_by_its_state_and_nothing_moves(row, painted):
    table = display.lease_table([row], COLOUR)
    assert painted in table
    assert ESCAPES.sub("", table) == display.lease_table([row], PLAIN)
    assert ESCAPES.sub("", display.lease_page(row, COLOUR)) == display.lease_page(row, PLAIN)


def test_the_page_of_a_lease_labels_what_is_known_and_leaves_out_the_rest():
    page = display.lease_page(
        held(
            every=3600.0,
            progress={"done": 3, "total": 10, "message": "invoices"},
            paused_by="alice@web1",
            paused_reason="disk full",
            runs=[run(), run(outcome="failed", reason="ValueError: no")],
        ),
        PLAIN,
    )
    assert page.splitlines() == [
        "Name        billing",
        "State       held 2m 10s, expires in 2m 50s",
        "Holder      web1:4711",
        "Generation  7",
        "TTL         5m",
        "Every       1h",
        "Claimed     2026-11-30 15:14:59 UTC",
        "Progress    3 of 10: invoices",
        "Paused by   alice@web1",
        "Reason      disk full",
        "",
        "WHEN (UTC)      OUTCOME    DURATION  BY         REASON",
        "11-30 15:14:59  succeeded    2m 10s  web1:4711",
        "11-30 15:14:59  failed       2m 10s  web1:4711  ValueError: no",
    ]


def test_the_page_of_a_lease_that_never_ran_says_so():
    assert display.lease_page(lease(), PLAIN).endswith("\n\nNo run yet.")


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({"done": 3, "total": None, "message": ""}, "3"),
        ({"done": HOSTILE, "total": 1, "message": HOSTILE}, "�"),
        ("odd", None),
        ([1], None),
    ],
)
def test_progress_of_any_shape_is_shown_or_left_out(progress, shown):
    page = display.lease_page(lease(progress=progress), PLAIN)
    assert ("Progress" in page) == (shown is not None)
    assert shown is None or shown in page
    assert page.replace("\n", "").isprintable()


# -- runs


def cells(row: dict[str, Any]) -> list[str]:
    line = display.run_table([row], PLAIN, 140).splitlines()[1]
    return re.split(r"  +", line)


@pytest.mark.parametrize(
    ("values", "rest"),
    [
        ({}, ["succeeded", "2m 10s", "web1:4711"]),
        ({"outcome": "timed_out"}, ["timed out", "2m 10s", "web1:4711"]),
        ({"outcome": "failed", "reason": "no"}, ["failed", "2m 10s", "web1:4711", "no"]),
        ({"outcome": "failed", "exit_code": 3}, ["failed", "2m 10s", "web1:4711", "exit code 3"]),
        (
            {"outcome": "declined", "reason": "held", "host": "web2"},
            ["declined", "web2", "held by web1:4711"],
        ),
        (
            {"outcome": "declined", "reason": "same_tick", "host": "web2", "holder": ""},
            ["declined", "web2", "same_tick"],
        ),
    ],
)
def test_a_run_tells_when_how_how_long_by_whom_and_why(values, rest):
    assert cells(run(**values)) == ["11-30 15:14:59", "billing", *rest]


@pytest.mark.parametrize(
    ("outcome", "role"),
    [("running", "MIGRATE_HEADING"), ("succeeded", "SUCCESS"), ("lost", "ERROR")],
)
def test_a_run_is_coloured_by_its_outcome(outcome, role):
    painted = display.run_table([run(outcome=outcome)], COLOUR)
    assert getattr(COLOUR, role)(outcome) in painted
    assert ESCAPES.sub("", painted) == display.run_table([run(outcome=outcome)], PLAIN)


# -- sentences


def test_before_a_break_the_live_holder_is_named_and_that_it_may_go_on():
    assert display.before_break(held(), at_once=False) == (
        "billing is held by web1:4711 since 2026-11-30 15:14:59 UTC (held 2m 10s).\n"
        "Its holder may still be running. "
        "The next claim may come in 2m 50s, when the lease would have expired."
    )


def test_before_a_break_now_warns_that_exclusion_is_given_up():
    assert "gives up exclusion" in display.before_break(held(), at_once=True)
    assert "gives up exclusion" not in display.before_break(held(), at_once=False)


def test_before_a_break_an_expired_holder_is_named_too():
    text = display.before_break(held(state="expired", expires_in=-62.0), at_once=False)
    assert "billing was held by web1:4711" in text
    assert "expired 1m 2s ago" in text
    assert "may still be running. The next claim may come at once" in text


def test_before_a_break_an_expired_holders_program_is_named_that_claims_wait_for():
    row = held(state="expired", expires_in=-62.0, holder_process={"pid": 1, "group": 4711})
    text = display.before_break(row, at_once=False)
    assert "Without a break, claims on its host wait for process group 4711 to end." in text


def test_before_a_break_of_a_free_lease_only_its_minimum_hold_is_at_stake():
    text = display.before_break(lease(), at_once=False)
    assert text == "billing is free. A break only lifts its minimum hold."


def broken(row: dict[str, Any], holder: str = "web1:4711", **how: bool) -> str:
    how = {"at_once": False, "tick_forgotten": False} | how
    found = Broken(was_held=holder != "", holder=holder, free_at=None)
    return display.after_break(row, found, **how)


def test_after_a_break_the_next_claim_has_its_time():
    free = lease(due_in=170.0, not_before="2026-11-30T15:20:00.000000Z")
    text = broken(free)
    assert "It was held by web1:4711, which may still be running." in text
    assert text.endswith("The next claim may come in 2m 50s, at 2026-11-30 15:20:00 UTC.")
    assert "at once, since the lease had expired." in broken(lease())
    assert "at once: exclusion is given up." in broken(lease(), at_once=True)
    assert broken(lease(), "") == ("billing: it was free, so only its minimum hold was lifted.")
    assert broken(lease(), tick_forgotten=True).endswith("Its last tick may run again.")


def test_a_break_of_a_paused_lease_says_that_it_stays_paused():
    for text in (
        display.before_break(held(paused=True), at_once=False),
        broken(lease(paused=True)),
        broken(lease(paused=True), ""),
    ):
        assert text.endswith("It stays paused until it is resumed.")


def test_a_pause_says_that_a_running_holder_goes_on():
    assert "Its holder web1:4711 goes on." in display.paused(held(state="paused"))
    assert "goes on" not in display.paused(lease(state="paused"))


def test_hostile_text_of_the_database_steers_no_sentence():
    row = held(name=HOSTILE, holder=HOSTILE)
    for text in (
        display.before_break(row, at_once=False),
        broken(row, HOSTILE),
        display.paused(row),
        display.resumed(row, was_paused=True),
    ):
        assert text.replace("\n", "").isprintable()
