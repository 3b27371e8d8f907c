"""Tables and sentences for people, made from rows as the history gives them."""

import os
import re
import subprocess
from typing import Any

import pytest
from django.core.management.color import color_style, no_style
from hypothesis import given, settings
from hypothesis import strategies as st

from django_runlease import display
from django_runlease.display.drawn import drawn
from django_runlease.display.text import wrapped
from django_runlease.holder import group_led_by, this_process
from django_runlease.store import Broken
from django_runlease.text import printable

PLAIN = no_style()
COLOUR = color_style(force_color=True)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = "a\x1b[2Jb\x07c\x9bd\u202ee\x7ff\x00g"


def plain(page: display.Page, room: int = 80) -> str:
    return display.plain(page, PLAIN, room)


def coloured(page: display.Page, room: int = 80) -> str:
    return display.plain(page, COLOUR, room)


def with_rich(page: display.Page, room: int = 80) -> str:
    """What rich draws, without its colours."""
    return ESCAPES.sub("", drawn(page, COLOUR, room))


def figures(**values: Any) -> dict[str, Any]:
    """What a history without a run comes to."""
    none = dict.fromkeys(("min", "median", "p95", "max"))
    return {
        "lease_name": "billing",
        "runs": 0,
        "success_rate": None,
        "duration": none,
        "share": none,
        "waited": none,
        "lag": none,
        "declined": 0,
    } | values


def lengths(median: float, p95: float, most: float) -> dict[str, float]:
    return {"min": 0.0, "median": median, "p95": p95, "max": most}


def lease(**values: Any) -> dict[str, Any]:
    """A free lease as the history and the card give it."""
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
        "heartbeat": True,
        "not_before": None,
        "last_tick": None,
        "paused": False,
        "paused_by": "",
        "paused_reason": "",
        "progress": None,
        "state": "free",
        "held_for": None,
        "renewed_ago": None,
        "expires_in": None,
        "due_in": None,
        "process_age": None,
        "process_gone": False,
        "progress_share": None,
        "estimated_left": None,
        "alerts": [],
        "uncertain_effects": 0,
        "declines_since_start": 0,
        "statistics": figures(),
        "runs": [],
        "declines": [],
        "actions": [],
    } | values


def held(**values: Any) -> dict[str, Any]:
    return lease(
        **{
            "state": "held",
            "holder": "web1:4711",
            "claimed_at": "2026-11-30T15:14:59.108044Z",
            "held_for": 130.0,
            "renewed_ago": 3.2,
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


def action(kind: str = "paused", **values: Any) -> dict[str, Any]:
    return {
        "lease_name": "billing",
        "kind": kind,
        "by": "ann@web1",
        "reason": "",
        "at": "2026-11-30T15:18:00.000000Z",
        "detail": {},
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
    assert printable(HOSTILE) == "a�[2Jb�c�d�e�f�g"
    assert printable("one\ntwo\tthree\N{NO-BREAK SPACE}four") == "one two three four"
    assert printable("naïve 日本 🎉") == "naïve 日本 🎉"


@settings(deadline=None)
@given(st.text())
def test_printable_text_is_printable_whatever_it_was(text):
    assert printable(text).isprintable()


@pytest.mark.parametrize(
    ("cut", "expected"), [(display.cut_end, "abcdef…"), (display.cut_middle, "abc…hij")]
)
def test_long_text_is_cut_with_an_ellipsis(cut, expected):
    assert cut("abcdefghij", 7) == expected
    assert cut("abcdefg", 7) == "abcdefg"


def test_wrapped_text_breaks_at_spaces_and_through_words_that_are_too_long():
    assert list(wrapped("one two three", 7)) == ["one two", "three"]
    assert list(wrapped("one two three", 8)) == ["one two", "three"]
    assert list(wrapped("abcdefghij kl", 4)) == ["abcd", "efgh", "ij", "kl"]
    assert list(wrapped("日本語", 5)) == ["日本", "語"]
    assert list(wrapped("", 5)) == [""]


@settings(deadline=None)
@given(text=st.text().map(printable), room=st.integers(2, 20))
def test_wrapped_text_fits_and_loses_nothing_but_spaces(text, room):
    lines = list(wrapped(text, room))
    assert all(display.width(line) <= room for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


def test_a_mark_whose_letter_is_cut_off_goes_with_it():
    assert display.cut_middle("aaaaaaaaae\u0301bb", 6) == "aaa…bb"
    assert display.cut_end("aae\u0301bbbbbb", 4) == "aae\u0301…"


@settings(deadline=None)
@given(
    text=st.text().map(printable),
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
    lines = plain(display.lease_table(rows)).splitlines()
    expected = starts(lines[0], "STATE")
    assert [starts(line, "free") for line in lines[1:]] == [expected] * 4
    assert {display.width(line) for line in lines} == {display.width(lines[0])}


@pytest.mark.parametrize("room", [40, 80, 200])
@pytest.mark.parametrize("draw", [plain, with_rich])
@pytest.mark.parametrize("character", ["x", "日", "🎉", "e\u0301", "\x1b", "\n", "א", "\u202e"])
def test_nothing_is_wider_than_its_terminal_whatever_the_rows_hold(character, draw, room):
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
    row = held(
        name=long,
        holder=long,
        paused_reason=long,
        progress={"done": long, "message": long},
        progress_share=0.5,
        alerts=[ALERT | {"message": long}],
        runs=runs,
        declines=runs[1:],
        actions=[
            action(lease_name=long, by=long, reason=long),
            action("broken", detail={"was_held": True, "holder": long, "generation": long}),
            action(long, detail={"alert": long, "until": long}),
        ],
    )
    for page in (
        display.lease_table(leases),
        display.run_table(runs),
        display.history_table([*runs, *row["actions"]]),
        display.lease_page(row),
    ):
        for line in draw(page, room).splitlines():
            assert display.width(line) <= room
            assert line.isprintable()


@pytest.mark.parametrize("draw", [plain, with_rich])
def test_a_table_that_does_not_fit_becomes_one_card_for_each_row_and_loses_nothing(draw):
    page = display.run_table([run(reason="a reason of more than forty columns in all"), run()])
    assert [line.rstrip() for line in draw(page, 40).splitlines()] == [
        "WHEN (UTC)  11-30 15:14:59",
        "NAME        billing",
        "OUTCOME     succeeded",
        "DURATION    2m 10s",
        "BY          web1:4711",
        "REASON      a reason of more than forty",
        "            columns in all",
        "",
        "WHEN (UTC)  11-30 15:14:59",
        "NAME        billing",
        "OUTCOME     succeeded",
        "DURATION    2m 10s",
        "BY          web1:4711",
    ]


def test_a_bar_that_does_not_fit_beside_its_text_stands_above_it():
    row = lease(
        progress={"done": 1, "total": 2}, progress_share=0.5, estimated_left=1000.0, name="job"
    )
    page = plain(display.lease_page(row), 40)
    assert "Progress    [#########---------]\n            50%, 1 of 2, about 16m 40s\n" in page


def test_rich_and_plain_text_share_their_layout():
    """But for the lines that rich draws."""
    rows = [run(), run(outcome="failed", reason="a " * 60, lease_name="日本")]
    for page in (display.run_table(rows), display.lease_table([held(), lease(name="🎉")])):
        for room in (60, 80, 120):
            lines = [line.rstrip() for line in with_rich(page, room).splitlines()]
            assert [line for line in lines if set(line) != {"─"}] == plain(page, room).splitlines()


@pytest.mark.parametrize(
    "text", ["[red]x[/red]", "[/]", "[link=http://e.org]y", ":smile:", "\\[b]", "[bold", "@[click"]
)
def test_rich_takes_no_text_of_the_database_for_markup(text):
    row = held(name=text, holder=text, paused_reason=text, alerts=[ALERT | {"message": text}])
    runs = [run(lease_name=text, holder=text, reason=text)]
    for page, times in (
        (display.lease_table([row]), 2),
        (display.run_table(runs), 3),
        (display.lease_page(row | {"runs": runs}), 6),
    ):
        assert with_rich(page, 200).count(text) == times


def test_no_text_of_the_database_steers_the_terminal_through_rich():
    """Not even where it is coloured, and so passes through a reader of escape sequences."""
    row = held(name=HOSTILE, alerts=[ALERT | {"message": "\x1b]8;;http://e.org\x07\x1b[2J\r\b"}])
    shown = drawn(display.lease_page(row), COLOUR, 200)
    assert ESCAPES.sub("", shown).replace("\n", "").isprintable()
    assert "\x1b]" not in shown


def test_rich_cuts_nothing_off_where_it_knows_a_character_to_be_wider():
    heart = "\u2764\ufe0f" * 10
    shown = with_rich(display.lease_page(lease(name=heart)))
    assert shown.count("\u2764") == 10


def test_a_wide_terminal_shows_long_names_in_full():
    name = "a-rather-long-name-of-a-job-that-does-not-fit-into-eighty-columns"
    row = held(name=name)
    assert name not in plain(display.lease_table([row]))
    assert name in plain(display.lease_table([row]), 140)


def test_a_terminal_too_narrow_for_anything_gets_its_rows_all_the_same():
    assert "held 2m 10s" in plain(display.lease_table([held()]), 10)
    assert "Generation" in plain(display.lease_page(held()), 10)


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
    line = plain(display.lease_table([row])).splitlines()[1]
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
    table = coloured(display.lease_table([row]))
    assert painted in table
    assert ESCAPES.sub("", table) == plain(display.lease_table([row]))
    assert ESCAPES.sub("", coloured(display.lease_page(row))) == plain(display.lease_page(row))


def test_the_page_of_a_lease_labels_what_is_known_and_leaves_out_the_rest():
    page = display.lease_page(
        held(
            host="web1",
            holder_process={"pid": 4711, "group": 4712, "runs": "pg_dump"},
            process_age=131.2,
            every=3600.0,
            progress={"done": 3, "total": 10, "message": "invoices"},
            progress_share=0.3,
            estimated_left=292.9,
            paused_by="alice@web1",
            paused_reason="disk full",
            uncertain_effects=2,
            declines_since_start=12,
            runs=[run(), run(outcome="failed", reason="ValueError: no")],
            declines=[run(outcome="declined", reason="held", host="web2")],
        )
    )
    assert plain(page).splitlines() == [
        "Name        billing",
        "State       held 2m 10s, expires in 2m 50s",
        "Paused by   alice@web1",
        "Reason      disk full",
        "Holder      web1:4711",
        "Host        web1",
        "Process     4711, started 2m 11s ago",
        "Runs        pg_dump",
        "Program     process group 4712",
        "Heartbeat   renewed 3s ago",
        "Progress    [#####-------------] 30%, 3 of 10, about 4m 52s left",
        "Message     invoices",
        "Generation  7",
        "TTL         5m",
        "Every       1h",
        "Claimed     2026-11-30 15:14:59 UTC",
        "Declined    12 in a row since the last start",
        "Effects     2 uncertain: see `manage.py runlease effects --uncertain`",
        "",
        "Last runs",
        "WHEN (UTC)      OUTCOME    DURATION  BY         REASON",
        "11-30 15:14:59  succeeded    2m 10s  web1:4711",
        "11-30 15:14:59  failed       2m 10s  web1:4711  ValueError: no",
        "",
        "Last declines",
        "WHEN (UTC)      BY    REASON",
        "11-30 15:14:59  web2  held by web1:4711",
    ]


def test_the_page_of_a_lease_sums_up_the_last_week_and_only_what_there_was_in_it():
    page = plain(
        display.lease_page(
            lease(
                statistics=figures(
                    runs=2016,
                    success_rate=0.99999,
                    declined=1,
                    duration=lengths(12.0, 64.0, 250.0),
                    share=lengths(0.04, 0.21, 0.8333),
                    waited=lengths(0.0, 0.0, 3.0),
                    lag=lengths(0.0, 0.0, 0.0),
                )
            )
        )
    )
    assert [line for line in page.splitlines() if line[:3] in ("Las", "Dur", "Wai", "Lag")] == [
        "Last week   2016 runs, 99.9 % succeeded, 1 tick declined",
        "Duration    median 12s, p95 1m 4s, max 4m 10s: up to 83.3 % of every",
        "Waited      median 0s, p95 0s, max 3s",
    ]
    assert "Last week" not in plain(display.lease_page(lease()))


def test_the_figures_of_leases_fit_into_80_columns():
    rows = [
        figures(lease_name="x" * 200),
        figures(
            lease_name="billing",
            runs=100_000,
            success_rate=1.0,
            declined=100_000,
            duration=lengths(754.0, 754.0, 754.0),
            share=lengths(1.0, 1.0, 1.5),
        ),
    ]
    titles, empty, full = plain(display.statistics_table(rows)).splitlines()
    assert empty.split()[1:] == ["0", "0"]
    assert " ".join(full.split()) == "billing 100000 100 % 100000 12m 34s 12m 34s 12m 34s 150 %"
    assert len(titles) <= 80


def test_the_page_of_a_lease_that_never_ran_says_so():
    assert plain(display.lease_page(lease())).endswith("\n\nNo run yet.")


def value(label: str, row: dict[str, Any]) -> str | None:
    """What the page of a lease says beside *label*."""
    found = re.search(rf"^{label} {{2,}}(.+)$", plain(display.lease_page(row), 400), re.M)
    return found and found[1]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"holder_process": None}, None),
        ({"holder_process": "odd"}, None),
        ({"holder_process": {"pid": "odd"}}, None),
        ({"holder_process": {"pid": 47}}, "47"),
        ({"holder_process": {"pid": 47}, "process_age": 0.4}, "47, started 0s ago"),
        (
            {"holder_process": {"pid": 47}, "process_age": 9.0, "process_gone": True},
            "47, which is gone",
        ),
    ],
)
def test_the_process_of_a_holder_is_told_as_far_as_it_is_known(values, shown):
    assert value("Process", held(**values)) == shown


def test_a_process_that_is_gone_while_its_program_goes_on_is_called_gone():
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, process_group=0) as program:
        me = this_process()
        process = {**me.process, "start": 1, **group_led_by(program.pid)}
        shown = value("Process", held(host=me.host, holder_process=process))
    assert shown == f"{os.getpid()}, which is gone; its program goes on"


def test_a_lease_that_is_renewed_by_hand_says_so():
    row = held(heartbeat=False)
    assert value("Heartbeat", row) == "renewed 3s ago, by hand: it has no heartbeat"
    assert value("Heartbeat", lease()) is None


ABOUT = "overdue, critical, since 2026-11-30 15:14:59 UTC"
UNTIL = "2026-12-01 06:00:00 UTC"
ALERT = {
    "kind": "overdue",
    "severity": "critical",
    "message": "no start for 2h",
    "remedy": "see whether cron runs",
    "opened_at": "2026-11-30T15:14:59.108044Z",
    "silenced_until": None,
    "silenced": False,
}


@pytest.mark.parametrize(
    ("values", "shown", "role"),
    [
        (
            {},
            f"{ABOUT}: no start for 2h (see whether cron runs)",
            "ERROR",
        ),
        (
            {"severity": "warning", "remedy": ""},
            "overdue, warning, since 2026-11-30 15:14:59 UTC: no start for 2h",
            "WARNING",
        ),
        (
            {"silenced": True, "silenced_until": "2026-12-01T06:00:00.000000Z"},
            f"{ABOUT}, silenced until {UNTIL}: no start for 2h (see whether cron runs)",
            "",
        ),
    ],
)
def test_an_open_alert_is_told_in_full_and_a_silenced_one_calls_nobody(values, shown, role):
    row = lease(alerts=[ALERT | values])
    assert value("Alert", row) == shown
    painted = getattr(COLOUR, role)(shown) if role else f"  {shown}"
    assert painted in coloured(display.lease_page(row), 400)


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        ({"done": 3, "total": None, "message": ""}, "3"),
        ({"done": 0, "total": 0}, "0 of 0"),
        ({"done": 0.30000000000000004, "total": 1.0}, "0.3 of 1"),
        ({"done": 12, "total": 10}, "12 of 10"),
        ({"done": -1, "total": 10**30}, f"-1 of {10**30}"),
        ({"done": HOSTILE, "total": 1, "message": HOSTILE}, f"{printable(HOSTILE)} of 1"),
        ({}, None),
        ({"message": "only words"}, None),
        ("odd", None),
        ([1], None),
    ],
)
def test_progress_of_any_shape_is_shown_or_left_out(progress, shown):
    page = plain(display.lease_page(lease(progress=progress)))
    assert value("Progress", lease(progress=progress)) == shown
    assert page.replace("\n", "").isprintable()


@pytest.mark.parametrize(
    ("share", "drawn", "percent"),
    [
        (0.0, "[------------------]", "0%"),
        (0.5, "[#########---------]", "50%"),
        (0.9999, "[#################-]", "99%"),
        (1.0, "[##################]", "100%"),
    ],
)
def test_a_bar_and_a_percentage_are_full_only_when_all_is_done(share, drawn, percent):
    row = lease(progress={"done": 1, "total": 1}, progress_share=share)
    assert value("Progress", row) == f"{drawn} {percent}, 1 of 1"
    line = re.search("^Progress.+", with_rich(display.lease_page(row)), re.M)
    assert line[0].count("━") >= 19
    assert percent in line[0]


def test_rich_draws_the_bar_in_proportion():
    def filled(share: float) -> int:
        row = lease(progress={"done": 1, "total": 1}, progress_share=share)
        line = next(
            line
            for line in drawn(display.lease_page(row), COLOUR, 80).splitlines()
            if "Progress" in line
        )
        return line.partition("━")[2].partition("\x1b")[0].count("━") + 1

    assert [filled(share) for share in (0.25, 0.5, 1.0)] == [5, 10, 20]


# -- runs


def cells(row: dict[str, Any]) -> list[str]:
    line = plain(display.run_table([row]), 140).splitlines()[1]
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
    painted = coloured(display.run_table([run(outcome=outcome)]))
    assert getattr(COLOUR, role)(outcome) in painted
    assert ESCAPES.sub("", painted) == plain(display.run_table([run(outcome=outcome)]))


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


def test_a_break_of_a_holder_that_is_gone_says_that_nobody_is_waited_for():
    me = this_process()
    gone = held(host=me.host, holder_process={**me.process, "start": 1})
    assert display.before_break(gone, at_once=False).endswith(
        "Its holder is gone. The next claim may come at once, with or without a break."
    )
    text = broken(lease(), is_gone=True)
    assert "It was held by web1:4711, which is gone.\nThe next claim may come at once." in text


def test_before_a_break_of_a_free_lease_only_its_minimum_hold_is_at_stake():
    text = display.before_break(lease(), at_once=False)
    assert text == "billing is free. A break only lifts its minimum hold."


def broken(
    row: dict[str, Any], holder: str = "web1:4711", *, is_gone: bool = False, **how: bool
) -> str:
    how = {"at_once": False, "tick_forgotten": False} | how
    found = Broken(was_held=holder != "", holder=holder, free_at=None, is_gone=is_gone)
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


def test_before_a_break_of_a_free_lease_it_is_said_that_a_broken_holder_may_still_run():
    free = lease(due_in=170.0, not_before="2026-11-30T15:20:00.000000Z")
    text = display.before_break(free, at_once=False)
    assert "which may still be running" in text
    assert "up to 2m 50s earlier" in text
    assert "may still be running" not in display.before_break(lease(), at_once=False)


def test_a_break_of_a_paused_lease_says_that_it_stays_paused():
    for text in (
        display.before_break(held(paused=True), at_once=False),
        broken(lease(paused=True)),
        broken(lease(paused=True), ""),
    ):
        assert text.endswith("It stays paused until it is resumed.")


def test_a_resume_says_when_the_next_claim_may_come_if_that_is_not_now():
    row = lease(due_in=170.0, not_before="2026-11-30T15:20:00.000000Z")
    assert display.resumed(row, was_paused=True) == (
        "billing: resumed. The next claim may come in 2m 50s."
    )
    assert display.resumed(lease(), was_paused=True) == "billing: resumed."


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


# -- what operators did


BREAK = {
    "was_held": True,
    "holder": "web1:4711",
    "generation": 7,
    "at_once": False,
    "free_at": "2026-11-30T15:19:00.000000Z",
    "connections_ended": 0,
    "tick_forgotten": False,
}
FREED = {**BREAK, "was_held": False, "holder": "", "free_at": None}
UNTIL = {"alert": "failing", "until": "2026-12-01T00:00:00.000000Z"}
HELD = "held by web1:4711, generation 7, free"


@pytest.mark.parametrize(
    ("kind", "detail", "told"),
    [
        ("paused", {}, ""),
        ("broken", BREAK, f"{HELD} at 2026-11-30 15:19:00 UTC"),
        ("broken", BREAK | {"free_at": None, "at_once": True}, f"{HELD} at once"),
        ("broken", BREAK | {"free_at": "2026-11-30T15:17:00.000000Z"}, f"{HELD} at once"),
        ("broken", FREED, "it was free"),
        (
            "broken",
            FREED | {"connections_ended": 1, "tick_forgotten": True},
            "it was free, 1 connection ended, last tick forgotten",
        ),
        ("broken", FREED | {"connections_ended": 2}, "it was free, 2 connections ended"),
        ("silenced", UNTIL, "failing until 2026-12-01 00:00:00 UTC"),
        ("unsilenced", {"alert": "failing"}, "failing"),
        ("removed", {"generation": 7}, "at generation 7"),
        ("removed", None, "at generation None"),
        ("unheard-of", [1], ""),
    ],
)
def test_an_action_of_an_operator_is_one_line_with_who_what_and_why(kind, detail, told):
    row = action(kind, detail=detail, reason="it hangs")
    alone = plain(display.action_table([row]), 200).splitlines()
    assert [line.split() for line in alone] == [
        ["WHEN", "(UTC)", "NAME", "ACTION", "BY", "REASON", "DETAIL"],
        ["11-30", "15:18:00", "billing", kind, "ann@web1", "it", "hangs", *told.split()],
    ]
    among = plain(display.history_table([row, run()]), 200).splitlines()
    why = f"it hangs ({told})" if told else "it hangs"
    assert among[1].split() == ["11-30", "15:18:00", "billing", kind, "ann@web1", *why.split()]
    assert among[2].split()[:5] == ["11-30", "15:14:59", "billing", "succeeded", "2m"]
    assert len(among) == 3


def test_the_page_of_a_lease_ends_with_what_operators_did():
    page = plain(display.lease_page(lease(actions=[action(reason="disk full")])))
    assert page.endswith(
        "What operators did\n"
        "WHEN (UTC)      ACTION  BY        REASON     DETAIL\n"
        "11-30 15:18:00  paused  ann@web1  disk full"
    )
    assert "What operators did" not in plain(display.lease_page(lease()))
