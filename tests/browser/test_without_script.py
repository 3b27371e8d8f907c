"""All of it works with JavaScript switched off."""

import pytest
from playwright.sync_api import expect

from django_runlease import incidents
from django_runlease.models import Alert, RunLease

from ..factories import RunFactory, RunLeaseFactory
from ..support import ago, elsewhere
from . import tour

pytestmark = pytest.mark.usefixtures("nothing")


@pytest.fixture
def page(visit):
    return visit(java_script_enabled=False)


def job():
    for n in range(3):
        RunFactory(
            lease_name="billing", outcome="failed", started_at=ago(600 - n), error="Oops: no"
        )
    RunLeaseFactory(name="billing", held=True)
    RunLeaseFactory(name="reports")
    incidents.check("default")


def said(page):
    return page.locator(".messagelist")


def test_every_page_and_every_action_works(page):
    elsewhere(job)
    page.goto(tour.LEASES)
    expect(page.get_by_role("button", name="Pause refresh")).to_be_hidden()
    page.locator("#searchbar").fill("bill")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="has open alerts").click()
    page.get_by_role("link", name="billing", exact=True).click()
    expect(page.locator("[data-runlease-left]")).to_contain_text("4m")
    page.get_by_role("link", name="7 days").click()
    table = page.locator("details table").first
    expect(table).to_be_hidden()
    page.locator("#content details summary").first.click()
    expect(table).to_be_visible()

    page.get_by_role("link", name="Silence").first.click()
    page.get_by_role("radio", name="4 hours").check()
    page.get_by_role("button", name="Silence").click()
    expect(said(page)).to_contain_text("for 4h")
    page.get_by_role("link", name="Pause").click()
    page.get_by_label("Why").fill("no provider")
    page.get_by_role("button", name="Pause").click()
    expect(said(page)).to_contain_text("no provider")
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume").click()
    expect(said(page)).to_contain_text("Resumed")
    page.get_by_role("link", name="Break").click()
    page.get_by_label("Why").fill("it hangs")
    page.get_by_role("radio").last.check()
    page.get_by_role("button", name="Break").click()
    expect(said(page)).to_contain_text("it hangs")
    assert elsewhere(lambda: RunLease.objects.get(name="billing").token) is None
    assert elsewhere(lambda: Alert.objects.exclude(silenced_until=None).count()) == 1

    page.get_by_role("link", name="All its runs").first.click()
    page.locator("#result_list a").first.click()
    page.get_by_text("Show the traceback").click()
    expect(page.locator("pre", has_text="Oops: no")).to_be_visible()
    page.goto(tour.OVERVIEW)
    page.get_by_role("link", name="1 hour").click()
    expect(page.locator("#content")).to_contain_text("3 failed")
