"""The overview in the admin: the open alerts, and the timelines of all jobs under each other."""

import re

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.urls import reverse

from django_runlease.admin import charts, overview

from .factories import AlertFactory, RunFactory, RunLeaseFactory, ran
from .pages import HOSTILE, Page, address
from .plans import count_queries
from .support import ago

pytestmark = pytest.mark.django_db

ADDRESS = reverse("admin:runlease_runlease_overview")


def page(client, **query):
    return Page(client.get(ADDRESS, query))


def test_every_job_has_a_lane_with_its_state_and_what_happened(ops):
    RunLeaseFactory(name="billing", held=True)
    RunLeaseFactory(name="reports")
    RunFactory(lease_name="billing", running=True)
    RunFactory(lease_name="reports", outcome="failed")
    RunFactory(lease_name="reports", declined=True)
    said = page(ops)
    assert "billing held elsewhere:4711 " in said.text
    assert "1 run, 1 running" in said.text
    assert "reports free " in said.text
    assert "1 run, 1 failed, 1 declined tick" in said.text
    assert len(said.all("svg", **{"class": "runlease-timeline"})) == 2
    assert "Timeline of billing" in said.text


def test_open_alerts_that_are_not_silenced_come_first_the_worst_of_them_on_top(ops):
    lease = RunLeaseFactory(name="billing")
    RunFactory(lease_name="billing", declined=True)
    AlertFactory(lease_name="billing", kind="contention", opened_at=ago(500))
    AlertFactory(lease_name="removed", kind="failing", severity="critical", message="3 in a row")
    AlertFactory(lease_name="billing", kind="ghost", silenced_until=ago(-60))
    AlertFactory(lease_name="billing", kind="lost", resolved_at=ago(1))
    RunFactory.create_batch(3, lease_name="billing", outcome="failed")
    AlertFactory(lease_name="billing", kind="failing", silenced_until=ago(-60))
    said = page(ops)
    assert (
        "silenced"
        not in said.text[said.text.index("Open alerts") : said.text.index("are judged now")]
    )
    assert said.text.index("failing (critical) removed : 3 in a row") < said.text.index(
        "contention (warning) billing"
    )
    assert re.search(r"8m \d+s ago", said.text)
    assert "ghost" not in said.text
    assert said.all("a", href=address(lease))


def test_without_alerts_or_jobs_it_says_so(ops):
    text = page(ops).text
    assert "Open alerts None. The leases on this page are judged now" in text
    assert "No job has run yet" in text


def test_thirty_jobs_take_as_many_queries_as_three(ops):
    def add(count, start):
        for n in range(start, start + count):
            RunLeaseFactory(name=f"job-{n}", held=True)
            RunFactory(lease_name=f"job-{n}")
            AlertFactory(lease_name=f"job-{n}")

    add(3, 0)
    few = count_queries(lambda: page(ops))
    add(27, 3)
    assert count_queries(lambda: page(ops)) == few <= 11


def test_more_jobs_than_a_page_holds_are_on_the_next_one(ops, monkeypatch):
    monkeypatch.setattr(overview, "LANES", 2)
    for n in range(3):
        RunLeaseFactory(name=f"job-{n}")
    assert "job-0" in page(ops).text
    assert "job-2" not in page(ops).text
    last = page(ops, p="2", within="7d")
    assert "job-2" in last.text
    assert "job-0" not in last.text
    assert last.all("a", href="?within=7d&p=1")
    assert "job-2" in page(ops, p="99").text


def test_more_runs_and_alerts_than_are_shown_are_mentioned(ops, monkeypatch):
    monkeypatch.setattr(overview, "BARS", 2)
    monkeypatch.setattr(overview, "ALERTS", 1)
    RunLeaseFactory(name="job")
    RunFactory.create_batch(3, lease_name="job")
    for kind in ("failing", "overrun"):
        AlertFactory(lease_name="removed", kind=kind)
    text = page(ops).text
    assert "Only the newest are drawn" in text
    assert "There are more" in text


def test_who_may_not_look_does_not(client):
    user = get_user_model().objects.create_user("ada", is_staff=True)
    client.force_login(user)
    assert client.get(ADDRESS).status_code == 403
    user.user_permissions.add(Permission.objects.get(codename="view_runlease"))
    assert client.get(ADDRESS).status_code == 200


def test_the_list_of_leases_leads_to_it_and_it_to_the_leases(ops):
    lease = RunLeaseFactory(name="job")
    leases = Page(ops.get(reverse("admin:runlease_runlease_changelist")))
    assert leases.all("a", href=ADDRESS)
    assert page(ops).all("a", href=address(lease))


def test_hostile_text_stays_text_and_nothing_is_inline(ops):
    name = HOSTILE[:150].strip()
    RunLeaseFactory(name=name, held=True, holder=HOSTILE)
    RunFactory(lease_name=name, reason=HOSTILE, outcome="lost")
    AlertFactory(lease_name=name, message=HOSTILE)
    said = page(ops)
    assert "<script>alert" not in said.html
    assert HOSTILE in said.text
    assert not said.refused


def rows(client, **query):
    """The cells of each lease's row, without its name."""
    html = page(client, **query).html
    body = html[html.index("<tbody>") : html.index("</tbody>")]
    found = re.findall(r'<td class="runlease-count[^>]*>([^<]*)</td>', body)
    return [found[n : n + 8] for n in range(0, len(found), 8)]


def test_a_table_counts_beside_the_lanes_what_happened(ops):
    RunLeaseFactory(name="a")
    RunLeaseFactory(name="b")
    for n in range(3):
        RunFactory(lease_name="a", started_at=ago(1000 + 100 * n), finished_at=ago(950 + 100 * n))
    RunFactory(lease_name="a", outcome="lost", reason="broken by ada", took_over_from="web1:7")
    RunFactory(lease_name="a", outcome="terminated", started_at=ago(70), finished_at=ago(1))
    RunFactory(lease_name="a", declined=True)
    said = page(ops)
    outcomes = ["runs", "succeeded", "terminated", "went wrong"]
    heads = [*outcomes, "declined ticks", "takeovers", "breaks", "overlaps"]
    assert " ".join(heads) in said.text
    assert rows(ops) == [["5", "3", "1", "1", "1", "1", "1", "1"], ["0"] * 8]
    labels = [cell["data-label"] for cell in said.all("td") if "data-label" in cell]
    assert labels == 2 * heads


def test_what_happens_to_a_lease_has_one_name_and_one_sign_wherever_it_is_told(ops):
    lease = RunLeaseFactory(name="job")
    ran(600, age=3600, outcome="lost", reason="broken by ada", took_over_from="web1:7")
    ran(600, age=3500)
    said = page(ops)
    legend = said.html[said.html.index('class="runlease-legend"') :]
    legend = legend[: legend.index("</ul>")]
    own = Page(ops.get(address(lease))).text
    for name in ("takeover", "break", "overlap"):
        assert f"</svg> {name}s</li>" in legend
        assert re.search(rf"data-label=\"{name}s\">1<", said.html)
        assert f"1 {name}" in said.text
        assert f"{name.capitalize()}s 1" in own
    for sign in charts.SIGNS.values():
        assert sign in legend
        assert said.html.count(sign) == 2, "one is in the lane"


def test_what_is_not_all_counted_says_so(ops, monkeypatch):
    monkeypatch.setattr(overview, "BARS", 2)
    RunLeaseFactory(name="job")
    RunFactory.create_batch(3, lease_name="job")
    assert rows(ops)[0][:3] == ["2+", "2+", "0"]
    assert page(ops).all("line", **{"class": "runlease-undrawn"})


def test_one_axis_is_for_all_lanes(ops):
    for n in range(3):
        RunLeaseFactory(name=f"job-{n}")
    said = page(ops, within="24h")
    assert len(said.all("svg", **{"class": "runlease-axis"})) == 1
    labels = re.findall(r'<text class="runlease-label"[^>]*>([^<]+)</text>', said.html)
    assert len(labels) == len(set(labels)) >= 3


def test_before_the_first_job_it_says_how_to_start_one(ops):
    assert "manage.py runjob NAME -- PROGRAM" in page(ops).text
    assert not page(ops).all("svg", **{"class": "runlease-axis"})
