"""All of it works with keys alone, and shows where one is."""

import pytest
from playwright.sync_api import expect

from django_runlease.models import RunLease

from ..factories import RunLeaseFactory
from ..support import elsewhere
from .tour import LEASES

pytestmark = pytest.mark.usefixtures("nothing")

MOST = 150
"""Tabs until one has been through a page."""

LOOK = """each => {
    const {outlineStyle, outlineWidth, boxShadow, borderColor, backgroundColor, textDecorationLine}
        = getComputedStyle(each);
    const outline = outlineStyle === "none" ? "" : outlineStyle + outlineWidth;
    return [outline, boxShadow, borderColor, backgroundColor, textDecorationLine].join();
}"""


def tab_to(page, locator):
    """Press Tab until it has the focus; each place of ours on the way must show that it has."""
    for _ in range(MOST):
        page.keyboard.press("Tab")
        place = page.evaluate_handle("document.activeElement")
        if place.evaluate("each => Boolean(each.closest('#content-main'))"):
            assert_it_looks_focused(place)
        if locator.evaluate("each => each === document.activeElement"):
            return
    raise AssertionError(f"{locator} is not reached by the Tab key")


def assert_it_looks_focused(place):
    settled = "each => Promise.all(each.getAnimations().map(animation => animation.finished))"
    place.evaluate(settled)
    focused = place.evaluate(LOOK)
    place.evaluate("each => each.blur()")
    place.evaluate(settled)
    assert place.evaluate(LOOK) != focused, place.evaluate("each => each.outerHTML")
    place.evaluate("each => each.focus({focusVisible: true})")


def follow(page):
    with page.expect_navigation():
        page.keyboard.press("Enter")


def test_a_lease_is_found_opened_and_broken_with_keys_alone(stopped):
    page = stopped
    elsewhere(lambda: RunLeaseFactory(name="billing", held=True))
    page.goto(LEASES)
    tab_to(page, page.get_by_role("link", name="billing", exact=True))
    follow(page)
    tab_to(page, page.get_by_role("link", name="Break"))
    follow(page)
    tab_to(page, page.get_by_label("Why"))
    page.keyboard.type("it hangs")
    tab_to(page, page.get_by_role("radio").first)
    page.keyboard.press("ArrowDown")
    tab_to(page, page.get_by_role("button", name="Break"))
    follow(page)
    expect(page.locator(".messagelist")).to_contain_text("may start at once: it hangs")
    assert elsewhere(lambda: RunLease.objects.get().token) is None


def test_a_mistake_in_a_form_is_said_beside_its_field(page):
    elsewhere(lambda: RunLeaseFactory(name="billing", held=True))
    page.goto(LEASES)
    page.get_by_role("link", name="billing", exact=True).click()
    page.get_by_role("link", name="Pause").click()
    why = page.get_by_label("Why")
    assert why.evaluate("each => each.validity.valueMissing"), "the browser itself says so"
    why.fill(" ")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_label("Why")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#content-main")).to_contain_text("This field is required")
