"""The history in the admin: found by indexes, and with all that a run left behind."""

import re
from datetime import timedelta

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.urls import reverse

from django_runlease.admin import base
from django_runlease.models import Run

from .factories import RunFactory, RunLeaseFactory
from .pages import HOSTILE, Page, address
from .plans import long_history, work
from .support import ago

__all__ = ["long_history"]

pytestmark = pytest.mark.django_db

ADDRESS = reverse("admin:runlease_run_changelist")


def page(client, **query):
    return Page(client.get(ADDRESS, query))


def generations(client, **query):
    """Those of the runs of the list, in its order, from the rows' primary keys."""
    html = page(client, **query).html
    keys = list(dict.fromkeys(map(int, re.findall(r"/runlease/run/(\d+)/change/", html))))
    found = Run.objects.in_bulk(keys)
    return [found[key].generation for key in keys]


def one(client, **fields):
    run = RunFactory(**fields)
    return Page(client.get(reverse("admin:runlease_run_change", args=[run.pk])))


def test_a_row_tells_how_the_run_ended_when_and_how_long_it_took_and_who_ran_it(ops):
    RunFactory(
        lease_name="billing",
        outcome="lost",
        reason="broken by ada",
        started_at=ago(3700),
        finished_at=ago(3600),
        lag=timedelta(seconds=12),
        took_over_from="web1:7",
    )
    text = page(ops).text
    for words in (
        *("billing", "lost", "broken by ada", "1h 1m ago", "1m 40s", "12s after its tick"),
        *("elsewhere:4711", "took over from web1:7", "runjob"),
    ):
        assert words in text


def test_a_declined_tick_names_where_it_came_and_who_held_the_lease(ops):
    RunFactory(declined=True, host="web2", holder="web1:7")
    text = page(ops).text
    assert "tick on web2" in text
    assert "held by web1:7" in text


@pytest.fixture
def various(db):
    RunFactory(lease_name="billing", generation=1, started_at=ago(40 * 86400))
    RunFactory(lease_name="billing", generation=2, outcome="failed", started_at=ago(7200))
    RunFactory(lease_name="reports", generation=3, outcome="failed", started_at=ago(100))
    RunFactory(lease_name="Rebilling", generation=4, started_at=ago(50))
    for name in ("billing", "reports", "Rebilling"):
        RunLeaseFactory(name=name)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, [4, 3, 2, 1]),
        ({"outcome": "failed"}, [3, 2]),
        ({"outcome": "nonsense"}, [4, 3, 2, 1]),
        ({"within": "1h"}, [4, 3]),
        ({"within": "30d", "outcome": "succeeded"}, [4]),
        ({"lease": "billing"}, [2, 1]),
        ({"lease": "billing", "within": "24h"}, [2]),
        ({"q": "billing"}, [4, 2, 1]),
        ({"q": "billing", "outcome": "failed"}, [2]),
        ({"q": "rEBILL"}, [4]),
        ({"q": "nothing"}, []),
        ({"o": "-1"}, [4, 3, 2, 1]),
    ],
)
def test_filters_and_the_search_find_runs_the_newest_first(ops, various, query, expected):
    assert generations(ops, **query) == expected


def test_no_other_look_up_reads_the_whole_history(ops, various):
    assert ops.get(ADDRESS, {"output__contains": "x"}).status_code == 400


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"p": "20"},
        {"outcome": "failed"},
        {"outcome": "declined"},
        {"outcome": "declined", "p": "20"},
        {"lease": "job-3"},
        {"lease": "job-3", "outcome": "succeeded"},
        {"lease": "job-7", "outcome": "failed"},
        {"within": "1h"},
        {"q": "job-1", "outcome": "failed"},
    ],
)
def test_a_page_of_a_long_history_is_found_by_indexes(ops, long_history, query):
    plan, in_vain = work(lambda: page(ops, **query))
    assert "runlease_run" in plan
    # A count of the first thousand, whichever they are, begins where the table does.
    scans = re.findall(r"Seq Scan on runlease_run .*actual rows=(\d+)", plan)
    assert all(int(rows) <= base.MOST for rows in scans), plan
    assert in_vain < 100, plan


def test_no_more_rows_than_are_paged_through_are_counted(ops, monkeypatch):
    monkeypatch.setattr(base, "MOST", 3)
    monkeypatch.setattr("django_runlease.admin.runs.MOST", 3)
    RunFactory.create_batch(5)
    said = page(ops)
    assert "3 runs" in said.text
    assert "These are the 3 newest" in said.text


def test_output_and_traceback_are_folded_with_their_last_line_in_sight(ops):
    said = one(ops, error="Traceback:\n  File x\nOSError: no disk", output="one\ntwo\n")
    assert len(said.all("details")) == 2
    assert not any("open" in found for found in said.all("details"))
    assert "OSError: no disk" in re.sub(r"<details>.*?</details>", "", said.html, flags=re.S)
    assert "File x" in said.text


def test_a_run_shows_all_but_its_token(ops):
    said = one(ops, tick=ago(70), exit_code=3, reason="exit code 3", outcome="failed")
    run = Run.objects.get()
    assert str(run.token) not in said.html
    for words in ("failed", "exit code 3", "Scheduled for", "1s", "elsewhere:4711"):
        assert words in said.text


def test_hostile_text_stays_text_and_nothing_is_inline(ops):
    fields = dict.fromkeys(("holder", "host", "reason", "took_over_from"), HOSTILE)
    said = one(ops, lease_name=HOSTILE, error=HOSTILE, output=HOSTILE, **fields)
    for each in (said, page(ops), page(ops, lease=HOSTILE), page(ops, q=HOSTILE)):
        assert "<script>alert" not in each.html
        assert HOSTILE in each.text
        assert not each.refused


def test_the_page_of_a_run_begins_with_how_it_ended_and_why(ops):
    text = one(ops, lease_name="billing", outcome="lost", reason="broken by ada").text
    assert "Run of billing lost : broken by ada" in text
    declined = one(ops, declined=True, reason="busy", host="web2", holder="web1:7").text
    assert "declined : the lease's row was locked" in declined
    assert "Tick on web2 Held by web1:7" in declined
    assert "Duration" not in declined
    assert "it is still running" in one(ops, running=True).text


def test_the_page_of_a_run_tells_its_waits(ops):
    text = one(ops, waited=timedelta(seconds=7), lag=timedelta(seconds=8), tick=ago(70)).text
    assert "Waited for the lease 7s" in text
    assert "Started after its tick 8s" in text


def test_a_run_leads_to_its_lease_and_to_all_its_runs(ops, client):
    lease = RunLeaseFactory(name="billing")
    run = RunFactory(lease_name="billing")
    of_run, to_lease = reverse("admin:runlease_run_change", args=[run.pk]), address(lease)
    assert Page(ops.get(of_run)).all("a", href=to_lease)
    assert len(Page(ops.get(of_run)).all("a", href=f"{ADDRESS}?lease=billing")) == 2
    assert page(ops, lease="billing").all("a", href=to_lease)
    assert not page(ops, lease="gone").all("a", href=to_lease)
    ada = get_user_model().objects.create_user("ada", is_staff=True)
    ada.user_permissions.add(Permission.objects.get(codename="view_run"))
    client.force_login(ada)
    assert not Page(client.get(of_run)).all("a", href=to_lease)
    assert not page(client, lease="billing").all("a", href=to_lease)


def test_the_runs_of_one_lease_say_whose_they_are(ops):
    RunFactory(lease_name="billing")
    assert "Runs of billing" in page(ops, lease="billing").text
    assert "Runs of" not in page(ops).text


def test_no_run_at_all_is_told_from_none_that_matches(ops):
    assert "No job has run yet. To start one: manage.py runjob" in page(ops).text
    assert "No run is like that" not in page(ops).text
    for query in ({"lease": "x"}, {"q": "x"}, {"outcome": "failed"}):
        assert "No run is like that" in page(ops, **query).text
        assert page(ops, **query).all("a", href="?")


def test_a_run_that_does_not_exist_is_not_found(ops):
    for key in ("4711", "x"):
        assert ops.get(reverse("admin:runlease_run_change", args=[key])).status_code == 404


def test_a_run_without_output_says_so_once_it_has_ended(ops):
    said = "Nothing of its output was kept"
    assert said in one(ops).text
    assert said not in one(ops, output="x").text
    assert said not in one(ops, running=True).text
    assert said not in one(ops, declined=True).text
