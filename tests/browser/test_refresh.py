"""The pages keep themselves up to date, and disturb nobody by it."""

import re

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import expect

from django_runlease import store

from ..factories import RunFactory, RunLeaseFactory
from ..support import elsewhere
from .tour import LEASES, OVERVIEW

LEASES_ITSELF = re.compile(re.escape(LEASES) + "$")

pytestmark = pytest.mark.usefixtures("nothing")


@pytest.fixture
def lease(nothing):
    def make():
        RunFactory(lease_name="billing")
        return RunLeaseFactory(name="billing", held=True)

    return f"{LEASES}{elsewhere(make).pk}/change/"


def pause():
    elsewhere(lambda: store.pause("billing", "default", by="grace", reason="no provider"))


def button(page):
    return page.get_by_role("button", name=re.compile("refresh"))


def pass_time(page, seconds):
    page.clock.run_for(seconds * 1000)


def refreshed(page):
    """Let time pass until the page has asked for itself, and wait for the answer."""
    with page.expect_response(page.url) as answer:
        pass_time(page, 5)
    answer.value.finished()


@pytest.mark.parametrize("where", ["leases", "overview", "lease"])
def test_a_page_shows_a_change_without_a_reload(stopped, lease, where):
    page = stopped
    page.goto({"leases": LEASES, "overview": OVERVIEW, "lease": lease}[where])
    page.evaluate("window.sameDocument = true")
    content = page.locator("[data-runlease-refresh] .runlease-badge").filter(has_text="paused")
    expect(content).to_have_count(0)
    pause()
    refreshed(page)
    expect(content.first).to_be_visible()
    assert page.evaluate("window.sameDocument")


def test_a_refresh_does_not_take_the_focus_away(stopped, lease):
    page = stopped
    page.goto(LEASES)
    link = page.get_by_role("link", name="billing", exact=True)
    link.focus()
    pause()
    refreshed(page)
    expect(link).to_be_focused()
    page.locator("#searchbar").focus()
    page.keyboard.type("bill")
    refreshed(page)
    expect(page.locator("#result_list")).to_contain_text("no provider")
    expect(page.locator("#searchbar")).to_be_focused()
    expect(page.locator("#searchbar")).to_have_value("bill")


def test_a_refresh_closes_nothing_that_is_open(stopped, lease):
    page = stopped
    page.goto(lease)
    page.locator("summary").first.click()
    table = page.locator("details table").first
    expect(table).to_be_visible()
    page.locator("h1").last.click()
    expect(page.locator("summary").first).not_to_be_focused()
    pause()
    refreshed(page)
    expect(page.locator(".runlease-state")).to_contain_text("paused")
    expect(table).to_be_visible()


def test_the_refresh_is_paused_by_key_and_stays_so_on_other_pages(stopped, lease):
    page = stopped
    asked = []
    page.goto(LEASES)
    button(page).focus()
    page.keyboard.press("Space")
    expect(button(page)).to_have_text("Resume refresh")
    page.goto(lease)
    expect(button(page)).to_have_text("Resume refresh")
    page.on("request", lambda request: asked.append(request.url))
    pause()
    pass_time(page, 60)
    page.evaluate("fetch('?')")
    assert len(asked) == 1, "that is our own"
    button(page).focus()
    page.keyboard.press("Enter")
    expect(page.locator(".runlease-state")).to_contain_text("paused")


def test_what_expires_is_counted_down_and_its_bar_shrinks(stopped, lease):
    page = stopped
    page.goto(LEASES)
    button(page).click()
    left = page.locator("[data-runlease-left]")
    fill = page.locator("svg[data-runlease-of] .runlease-fill")
    expect(left).to_have_text(re.compile(r"4m [2-5]\ds"))
    wide = fill.bounding_box()["width"]
    pass_time(page, 150)
    expect(left).to_have_text(re.compile(r"(2m|1m [45]\ds|2m [12]?\ds)"))
    assert 0.3 * wide < fill.bounding_box()["width"] < 0.6 * wide
    pass_time(page, 300)
    expect(left).to_have_text("0s")
    expect(fill).to_have_attribute("width", "0%")


def state(page):
    return page.locator("[data-runlease-state]")


def age(page):
    return page.locator("[data-runlease-age]")


def test_a_refresh_that_fails_says_how_old_is_what_is_shown(stopped, lease):
    page = stopped
    page.goto(LEASES)
    expect(state(page)).to_have_text("Refreshes every 5 seconds")
    expect(age(page)).to_be_empty()
    elsewhere(Session.objects.all().delete)
    with page.expect_response(re.compile("/login/")):
        pass_time(page, 5)
    expect(state(page)).to_contain_text("what is shown is old")
    expect(state(page)).to_have_attribute("role", "status")
    pass_time(page, 60)
    expect(age(page)).to_have_text(re.compile(r"\(1m( \ds)?\)"))
    expect(page.locator("#result_list")).to_contain_text("billing")


def test_a_server_that_does_not_answer_leaves_nobody_with_an_old_page_for_a_new_one(stopped, lease):
    page = stopped
    page.goto(LEASES)
    asked = []

    def answer_the_second(route):
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page.route(LEASES_ITSELF, answer_the_second)
    with page.expect_request(LEASES_ITSELF):
        pass_time(page, 5)
    pass_time(page, 12)
    expect(state(page)).to_contain_text("what is shown is old")
    expect(age(page)).to_have_text(re.compile(r"\(1\ds\)"))
    pause()
    with page.expect_response(LEASES_ITSELF):
        pass_time(page, 60)
    expect(page.locator("#result_list")).to_contain_text("no provider")
    expect(state(page)).to_have_text("Refreshes every 5 seconds")
    expect(age(page)).to_be_empty()


def test_a_page_that_comes_to_the_front_again_is_read_at_once(stopped, lease):
    page = stopped
    page.goto(LEASES)
    pause()
    with page.expect_response(page.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.locator("#result_list")).to_contain_text("no provider")
