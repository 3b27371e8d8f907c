"""What the pages give to the script that keeps them up to date."""

import pytest
from django.urls import reverse

from django_runlease.admin import refreshing

from .factories import AlertFactory, RunFactory, RunLeaseFactory, ran
from .pages import Page, address
from .support import ROOT, ago

pytestmark = pytest.mark.django_db

LEASES = reverse("admin:runlease_runlease_changelist")
OVERVIEW = reverse("admin:runlease_runlease_overview")
WHERE = pytest.mark.parametrize("where", ["list", "lease", "overview"])


@pytest.fixture
def place(where):
    lease = RunLeaseFactory(name="job", held=True)
    return {"list": LEASES, "lease": address(lease), "overview": OVERVIEW}[where]


@pytest.mark.django_db(transaction=True)
@WHERE
def test_a_refresh_does_not_take_the_answer_to_an_operator_away(ops, place):
    lease = RunLeaseFactory(name="other")
    told = 'class="messagelist"'
    ops.post(address(lease, "pause"), {"reason": "no provider"})
    assert told not in ops.get(place, headers={refreshing.HEADER: "1"}).content.decode()
    assert told in ops.get(place).content.decode()
    assert told not in ops.get(place).content.decode(), "it has been told"


@WHERE
def test_how_often_is_said_where_the_script_reads_it_and_nowhere_else(ops, place, monkeypatch):
    assert "Refreshes every 5 seconds" in Page(ops.get(place)).html
    for seconds, said in ((7, "7 seconds"), (1, "1 second")):
        monkeypatch.setattr(refreshing, "PERIOD", seconds)
        page = Page(ops.get(place))
        assert page.all("p", **{"data-runlease-period": str(seconds)})
        assert page.all("span", **{"data-runlease-on": f"Refreshes every {said}"})


def test_the_script_names_the_header_that_the_pages_look_for():
    script = (ROOT / "django_runlease/static/runlease/admin.js").read_text()
    assert f'"{refreshing.HEADER}"' in script


@WHERE
def test_what_is_said_aloud_is_a_part_of_its_own_that_nothing_else_changes(ops, place, settings):
    """A part is exchanged if anything in it has changed, and a new alert is read out."""
    settings.RUNLEASE = {"ALERTS": {"failing": {"cuont": 1}}}

    def part():
        html = Page(ops.get(place)).html
        start = html.index('<div data-runlease-refresh="problem">')
        return html[start : html.index("</div>", start)]

    before = part()
    assert 'role="alert"' in before
    RunFactory(lease_name="job", outcome="failed")
    AlertFactory(lease_name="job")
    assert part() == before


def test_every_place_that_keys_can_scroll_has_a_role_and_a_name(ops):
    lease = RunLeaseFactory(name="job")
    run = ran(outcome="failed", error="Oops", output="sent")
    AlertFactory(lease_name="job", resolved_at=ago(5))
    found = []
    for place in (address(lease), reverse("admin:runlease_run_change", args=[run.pk])):
        page = Page(ops.get(place))
        places = [tag for _, tag in page.tags if tag.get("tabindex") == "0"]
        assert all(tag.get("role") == "region" for tag in places)
        found += [tag.get("aria-label") for tag in places]
    assert found == [
        "Table of durations and waits",
        "Table of alerts that are over",
        "Traceback",
        "End of the output",
    ]
