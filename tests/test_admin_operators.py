"""What operators did, on the page of a lease and in its timeline."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.urls import reverse

from django_runlease import store
from django_runlease.admin import operators
from django_runlease.admin.figures import PAUSES, windows
from django_runlease.admin.periods import PERIODS
from django_runlease.models import OperatorAction

from .factories import AlertFactory, RunFactory, RunLeaseFactory
from .pages import HOSTILE, Page, address, send
from .plans import count_queries
from .support import ago

pytestmark = pytest.mark.django_db

HOUR = 3600
DAY = PERIODS["24h"][0]


def page(client, lease, **query):
    return Page(client.get(address(lease), query))


def confirm(client, lease, action, *more, **given):
    assert send(client, address(lease, action, *more), **given).status_code == 302


def did(kind, age, name="job", **more):
    return OperatorAction.objects.create(
        lease_name=name, kind=kind, at=ago(age), **{"by": "ada", **more}
    )


def pauses(*names):
    found = windows("default", names or ["job"], DAY, 10)
    return [pause for name in names or ["job"] for pause in found[name].pauses]


def ages(pause):
    """Hours from a pause's start and end to now."""
    (lasting,) = pauses("clock")
    return [round((lasting.end - at) / HOUR, 1) for at in (pause.start, pause.end)]


@pytest.fixture(autouse=True)
def clock():
    """A pause that lasts ends now."""
    RunLeaseFactory(name="clock", paused=True)
    did("paused", HOUR, name="clock")


# -- the list


def test_what_is_done_in_the_admin_and_on_the_command_line_stands_there_newest_first(ops):
    lease = RunLeaseFactory(name="job", held=True, generation=7)
    AlertFactory(lease_name="job", kind="failing")
    call_command("runlease", "pause", "job", "--reason", "disk full", verbosity=0)
    confirm(ops, lease, "resume", reason="disk is empty")
    confirm(ops, lease, "break", wait="now", reason="it hangs")
    confirm(ops, lease, "silence", "failing", length="4", reason="known")
    confirm(ops, lease, "silence", "failing", length="0", reason="not known")
    text = page(ops, lease).text
    text = text[text.index("What operators did") :]
    places = [
        text.index(said)
        for said in (
            "ops no longer silenced failing not known",
            "ops silenced failing until ",
            "ops broken elsewhere:4711 held it, in generation 7 the next run could start at once",
            "ops resumed disk is empty",
            "paused disk full",
        )
    ]
    assert places == sorted(places)
    assert re.search(r"\w+@\S+ paused disk full", text)
    kinds = OperatorAction.objects.filter(lease_name="job").order_by("pk")
    assert list(kinds.values_list("kind", "by"))[1:] == [
        (kind, "ops") for kind in ("resumed", "broken", "silenced", "unsilenced")
    ]
    assert LogEntry.objects.count() == 4


def test_a_break_that_made_the_next_run_wait_says_until_when(ops):
    lease = RunLeaseFactory(name="job", held=True)
    confirm(ops, lease, "break", wait="wait", reason="it hangs")
    assert re.search(r"the next run had to wait until \d{4}-", page(ops, lease).text)


def test_all_else_that_is_known_of_a_break_and_a_removal_is_told(ops):
    lease = RunLeaseFactory(name="job")
    freed = {"was_held": False, "tick_forgotten": True}
    did("broken", 9, detail={**freed, "connections_ended": 1})
    did("broken", 8, detail={**freed, "connections_ended": 2})
    did("removed", 7, detail={"generation": 7})
    text = page(ops, lease).text
    for said in (
        "nobody held it; the next run could start at once",
        "1 database connection ended",
        "2 database connections ended",
        "its last tick could run again",
        "removed at generation 7",
    ):
        assert said in text


def test_actions_on_other_leases_are_not_there_and_of_many_the_newest_are(ops):
    lease = RunLeaseFactory(name="job")
    assert "What operators did" not in page(ops, lease).text
    did("resumed", 5, name="other", reason="another")
    for n in range(operators.ACTIONS):
        did("resumed", 100 + n, reason=f"reason {n};")
    text = page(ops, lease).text
    assert text.count("reason ") == operators.ACTIONS
    assert "another" not in text
    assert "Older ones" not in text
    did("resumed", 90, reason="reason")
    text = page(ops, lease).text
    assert f"reason {operators.ACTIONS - 1};" not in text
    assert "Older ones are told by runlease history --actions" in text


def test_the_log_of_the_admin_can_still_be_read(ops):
    lease = RunLeaseFactory(name="job")
    confirm(ops, lease, "pause", reason="no paper")
    log = address(lease, "history")
    assert page(ops, lease).all("a", href=log)
    assert "Paused: no paper" in Page(ops.get(log)).text


def test_a_resume_that_came_too_late_says_so_and_is_not_written_down(ops, monkeypatch):
    lease = RunLeaseFactory(name="job", paused=True)
    resume = store.resume

    def somebody_else_first(*args, **options):
        resume(*args, **{**options, "by": "bob"})
        return resume(*args, **options)

    monkeypatch.setattr(store, "resume", somebody_else_first)
    confirm(ops, lease, "resume")
    assert "There is nothing to do any more." in page(ops, lease).text
    assert not LogEntry.objects.exists()
    assert [each.by for each in OperatorAction.objects.filter(lease_name="job")] == ["bob"]


def test_hostile_text_of_actions_stays_text(ops):
    lease = RunLeaseFactory(name="job", paused=True)
    held = {"was_held": True, "holder": HOSTILE, "generation": HOSTILE}
    did("broken", 9, by=HOSTILE, reason=HOSTILE, detail=held)
    did("silenced", 8, detail={"alert": HOSTILE})
    did("<script>", 8, detail=[HOSTILE])
    did("paused", 7, by=HOSTILE, reason=HOSTILE)
    said = page(ops, lease)
    assert "<script>" not in said.html.replace('<script src="', "")
    assert said.text.count(HOSTILE) >= 6
    assert not said.refused


def test_actions_have_no_page_where_anybody_could_change_them(ops):
    apps = ops.get(reverse("admin:index")).context["app_list"]
    names = {model["object_name"] for app in apps for model in app["models"]}
    assert {"Run", "RunLease"} <= names
    assert "OperatorAction" not in names


# -- pauses in the timeline


def test_a_pause_lasts_until_somebody_resumes_or_says_another_reason_or_until_now():
    RunLeaseFactory(name="job", paused=True)
    did("paused", 8 * HOUR, reason="a")
    did("resumed", 6 * HOUR)
    did("broken", 5 * HOUR)
    did("paused", 4 * HOUR, reason="b", by="bob")
    did("paused", 2 * HOUR, reason="c")
    found = pauses()
    assert [ages(pause) for pause in found] == [[8, 6], [4, 2], [2, 0]]
    assert [(pause.by, pause.reason, pause.lasts) for pause in found] == [
        *(("ada", "a", False), ("bob", "b", False), ("ada", "c", True)),
    ]


def test_a_pause_that_began_before_the_period_is_there_and_one_that_ended_before_is_not():
    RunLeaseFactory(name="job", paused=True)
    did("paused", 50 * HOUR)
    did("resumed", 40 * HOUR)
    did("paused", 30 * HOUR)
    did("resumed", 20 * HOUR)
    did("paused", 3 * HOUR)
    assert [ages(pause) for pause in pauses()] == [[30, 20], [3, 0]]


def test_a_pause_whose_beginning_is_not_known_lasted_since_before_the_period():
    RunLeaseFactory(name="job")
    did("resumed", 20 * HOUR)
    assert [ages(pause) for pause in pauses()] == [[24, 20]]


def test_a_lease_that_is_not_paused_any_more_has_no_pause_that_lasts():
    """As when its row was deleted by hand, and came back."""
    RunLeaseFactory(name="job")
    did("paused", 2 * HOUR)
    did("paused", 2 * HOUR, name="gone")
    assert pauses("job", "gone") == []


def test_of_many_pauses_the_newest_are_drawn():
    RunLeaseFactory(name="job")
    for n in range(PAUSES):
        did("paused", 5 * HOUR - 72 * n)
        did("resumed", 5 * HOUR - 72 * n - 1)
    found = pauses()
    assert len(found) == PAUSES // 2
    assert [ages(found[0])[0], ages(found[-1])[0]] == [4.0, 3.0]


def test_a_pause_is_drawn_behind_the_runs_named_in_the_legend_and_told_in_the_table(ops):
    lease = RunLeaseFactory(name="job", paused=True)
    did("paused", 12 * HOUR, reason="disk full")
    did("resumed", 6 * HOUR)
    did("paused", 3 * HOUR, by="bob")
    RunFactory(lease_name="job", started_at=ago(9 * HOUR), finished_at=ago(8 * HOUR))
    said = page(ops, lease)
    legend, first, lasting = (
        said.all("rect", **{"class": "runlease-paused"})[index] for index in (2, 0, 1)
    )
    assert legend["width"] == "12"
    assert float(first["x"].rstrip("%")) == pytest.approx(50, abs=0.1)
    assert float(first["width"].rstrip("%")) == pytest.approx(25, abs=0.1)
    assert float(lasting["x"].rstrip("%")) == pytest.approx(87.5, abs=0.1)
    assert said.html.index("runlease-paused") < said.html.index("runlease-fill runlease-good")
    assert re.search(r"paused from [^<]+ to [^<]+, ada, disk full</title>", said.html)
    assert re.search(r"paused since [^<]+, bob</title>", said.html)
    assert "1 run, 1 succeeded, 2 pauses" in said.text
    table = said.text[said.text.index("Each run, declined tick and pause") :]
    at = r"\S+ \S+ UTC"
    rows = (f"paused {at} 3h bob", f"succeeded {at} 1h .*", f"paused {at} 6h ada disk full")
    assert re.search(" ".join(rows), table)
    assert "What else happened Pauses 2" in said.text


def test_pauses_are_drawn_in_the_overview_too_in_as_many_queries(ops, django_assert_num_queries):
    place = reverse("admin:runlease_runlease_overview")
    few = count_queries(lambda: ops.get(place))
    for n in range(5):
        RunLeaseFactory(name=f"job-{n}", paused=True)
        did("paused", HOUR, name=f"job-{n}")
    with django_assert_num_queries(few):
        said = Page(ops.get(place))
    assert len(said.all("rect", **{"class": "runlease-paused"})) == 7


@pytest.mark.parametrize("kind", ["broken", "silenced", "removed"])
@pytest.mark.parametrize(
    "detail",
    [
        ["x"],
        {"was_held": True, "free_at": "tomorrow", "connections_ended": "x"},
        {"was_held": True, "free_at": 5, "holder": [1]},
        {"alert": ["failing"], "until": []},
        {"alert": {}, "until": "9999-12-31T23:59:59", "generation": {}},
    ],
)
def test_a_detail_that_was_written_by_hand_and_makes_no_sense_is_no_error(ops, kind, detail):
    did(kind, 60, detail=detail, reason="by hand")
    assert "by hand" in page(ops, RunLeaseFactory(name="job")).text
