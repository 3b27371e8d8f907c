"""The pages keep themselves up to date, and disturb nobody by it."""

import re

import pytest
from django.contrib.sessions.models import Session
from playwright.sync_api import expect

from django_runlease import store

from ..factories import RunFactory, RunLeaseFactory, ran
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


def more_of(name):
    """Something that the page of the lease will show, besides the time that passes."""
    elsewhere(lambda: ran(7, lease_name=name, age=60, reason="it was odd"))


def mark(locator):
    locator.evaluate("each => getSelection().selectAllChildren(each)")


def test_a_text_that_is_marked_stays_and_the_page_says_that_it_waits_and_since_when(stopped, lease):
    page = stopped
    page.goto(LEASES)
    listed = page.locator("#result_list")
    mark(listed.get_by_text("elsewhere:4711"))
    pause()
    for _ in range(3):
        refreshed(page)
        expect(state(page)).to_have_text("Waits while text on this page is marked")
    expect(age(page)).to_have_text("(15s)")
    expect(listed).not_to_contain_text("no provider")
    assert page.evaluate("getSelection().toString()") == "elsewhere:4711"
    page.evaluate("getSelection().removeAllRanges()")
    refreshed(page)
    expect(listed).to_contain_text("no provider")
    expect(state(page)).to_have_text("Refreshes every 5 seconds")
    expect(age(page)).to_be_empty()


def test_a_text_that_is_marked_where_nothing_has_changed_holds_nothing_up(stopped, lease):
    page = stopped
    page.goto(lease)
    mark(page.locator("[data-runlease-refresh=runs] tbody tr").first)
    pause()
    refreshed(page)
    expect(page.locator(".runlease-state")).to_contain_text("paused")
    expect(state(page)).to_have_text("Refreshes every 5 seconds")
    assert "succeeded" in page.evaluate("getSelection().toString()")


def test_a_page_that_waits_while_its_next_answer_is_on_its_way_has_not_failed(stopped, lease):
    page = stopped
    page.goto(LEASES)
    mark(page.locator("#result_list"))
    for _ in range(4):
        refreshed(page)
    page.route(LEASES_ITSELF, lambda route: None)
    with page.expect_request(LEASES_ITSELF):
        pass_time(page, 5)
    pass_time(page, 2)
    expect(state(page)).to_have_text("Waits while text on this page is marked")


MISTAKE = {"ALERTS": {"failing": {"cuont": 1}}}


@pytest.mark.parametrize("where", ["leases", "overview", "lease"])
def test_what_is_said_aloud_is_said_once_and_not_at_each_refresh(stopped, lease, where, settings):
    page = stopped
    settings.RUNLEASE = MISTAKE
    page.goto({"leases": LEASES, "overview": OVERVIEW, "lease": lease}[where])
    alert = page.get_by_role("alert").element_handle()
    pause()
    refreshed(page)
    shown = page.locator("[data-runlease-refresh] .runlease-badge").filter(has_text="paused")
    expect(shown.first).to_be_visible()
    assert alert.evaluate("each => each.isConnected")
    settings.RUNLEASE = {}
    refreshed(page)
    expect(page.get_by_role("alert")).to_have_count(0)


def test_a_refresh_leaves_what_is_scrolled_where_it_was(stopped, lease):
    page = stopped
    page.set_viewport_size({"width": 320, "height": 700})
    elsewhere(lambda: ran(100.25, lease_name="billing", age=4000.5))
    page.goto(lease)
    table = page.locator("[data-runlease-refresh=trend] .runlease-scroll")
    page.evaluate("document.documentElement.style.fontSize = '32px'")
    table.evaluate("each => { each.scrollLeft = 40; }")
    assert table.evaluate("each => each.scrollLeft") == 40
    more_of("billing")
    refreshed(page)
    expect(page.locator("[data-runlease-refresh=runs]")).to_contain_text("it was odd")
    assert table.evaluate("each => each.scrollLeft") == 40


def test_a_page_that_nobody_sees_asks_for_nothing_until_it_is_seen(stopped, lease):
    page = stopped
    page.goto(LEASES)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    pass_time(page, 60)
    page.evaluate("fetch('?')")
    assert len(asked) == 1, "that is our own"
    page.evaluate("delete document.hidden")
    with page.expect_response(page.url):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_pause_holds_for_an_answer_that_is_on_its_way(stopped, lease):
    page = stopped
    page.goto(LEASES)
    held = []
    page.route(LEASES_ITSELF, lambda route: held.append(route))
    with page.expect_request(LEASES_ITSELF):
        pass_time(page, 5)
    button(page).click()
    pause()
    with page.expect_response(LEASES_ITSELF) as answer:
        held[0].continue_()
    answer.value.finished()
    # Whatever follows an answer has followed when one that was asked for later has been read.
    page.unroute(LEASES_ITSELF)
    page.evaluate("fetch('?').then(answer => answer.text())")
    expect(page.locator("#result_list")).not_to_contain_text("no provider")
    expect(state(page)).to_have_text("Refresh is paused")


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


def test_the_focus_stays_on_its_link_though_others_come_before_it(stopped, lease):
    page = stopped
    page.goto(LEASES)
    link = page.get_by_role("link", name="billing", exact=True)
    link.focus()
    elsewhere(lambda: RunLeaseFactory(name="accounts"))
    refreshed(page)
    expect(page.get_by_role("link", name="accounts", exact=True)).to_be_visible()
    expect(link).to_be_focused()


@pytest.mark.parametrize("label", ["Pause", "Break"])
def test_the_focus_goes_to_no_other_link_where_its_own_is_gone(stopped, lease, label):
    page = stopped
    page.goto(lease)
    place = page.locator("[data-runlease-refresh=actions]")
    place.get_by_role("link", name=label, exact=True).focus()
    pause()
    elsewhere(lambda: store.break_lease("billing", "default", by="grace", reason="x", at_once=True))
    for seconds in (0, 5):
        pass_time(page, seconds)
        refreshed(page)
        expect(place.get_by_role("link", name="Resume")).to_be_visible()
        expect(place).to_be_focused()
    page.keyboard.press("Tab")
    expect(place.get_by_role("link", name="Resume")).to_be_focused()


def test_the_focus_stays_on_what_is_scrolled_by_keys(stopped, lease):
    page = stopped
    page.goto(lease)
    tables = page.get_by_role("region", name="Table of durations and waits")
    tables.focus()
    more_of("billing")
    refreshed(page)
    expect(page.locator("[data-runlease-refresh=runs]")).to_contain_text("it was odd")
    expect(tables).to_be_focused()


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


def test_what_is_fresh_is_counted_down_from_the_moment_when_it_came(stopped, lease):
    page = stopped
    page.goto(LEASES)
    shown = page.locator("[data-runlease-left]")
    before = shown.get_attribute("data-runlease-left")
    refreshed(page)
    expect(shown).not_to_have_attribute("data-runlease-left", before)
    seconds = float(shown.get_attribute("data-runlease-left"))
    pass_time(page, 1)
    minutes, rest = divmod(int(seconds - 1), 60)
    expect(shown).to_have_text(f"{minutes}m {rest}s" if rest else f"{minutes}m")


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
    with page.expect_request(page.url):
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


def test_a_refresh_leaves_what_an_operator_is_told_to_the_page_that_he_comes_to(stopped, lease):
    page = stopped
    page.goto(LEASES)
    # His browser has not followed the redirect yet when this window asks for itself.
    site = page.context.request
    form = lease.replace("/change/", "/pause/")
    token = re.search(r'csrfmiddlewaretoken" value="(\w+)"', site.get(form).text())[1]
    given = {"csrfmiddlewaretoken": token, "reason": "no provider"}
    assert site.post(form, form=given, max_redirects=0).status == 302
    refreshed(page)
    expect(page.locator("#result_list")).to_contain_text("no provider")
    page.goto(lease)
    expect(page.locator(".messagelist")).to_contain_text("no provider")


def test_the_button_has_a_label_that_says_what_it_does_and_no_state_besides(stopped, lease):
    page = stopped
    page.goto(LEASES)
    for label in ("Pause refresh", "Resume refresh"):
        expect(button(page)).to_have_text(label)
        assert button(page).get_attribute("aria-pressed") is None
        button(page).click()
