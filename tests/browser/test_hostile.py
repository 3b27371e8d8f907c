"""Whatever names, holders, reasons and output are: a page on a telephone does not scroll sideways,
and none of it is more than text."""

import pytest

from ..support import elsewhere
from . import tour
from . import world as worlds

WIDTHS = (360, 1440)


@pytest.fixture(scope="module")
def hostile_world(world):
    elsewhere(worlds.hostile)


pytestmark = pytest.mark.usefixtures("hostile_world")


def too_wide(page):
    """What stands out of the page, if it can be scrolled sideways."""
    return page.evaluate(
        """() => {
            const wide = document.documentElement.scrollWidth;
            if (wide <= innerWidth) return [];
            return [...document.querySelectorAll("body *")]
                .filter(each => each.getBoundingClientRect().right > innerWidth + 1)
                .map(each => `${each.tagName}.${each.getAttribute("class")}`)
                .slice(0, 8).concat(`the page is ${wide} wide`);
        }"""
    )


@pytest.mark.parametrize("name", tour.HOSTILE)
def test_no_page_scrolls_sideways_with_hostile_text(page, name):
    page.goto(elsewhere(lambda: tour.hostile_pages(worlds.NAME))[name])
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        assert too_wide(page) == [], width
        page.locator("#content details").evaluate_all("all => all.map(each => each.open = true)")
        assert too_wide(page) == [], width
    assert page.locator("#content b").filter(has_text="&").count() == 0


@pytest.mark.parametrize("name", tour.NAMES)
def test_no_page_scrolls_sideways(page, name):
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(elsewhere(tour.pages)[name])
    assert too_wide(page) == []


def test_hostile_text_is_shown_as_it_is(page):
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto(elsewhere(lambda: tour.hostile_pages(worlds.NAME))["lease"])
    holder = page.locator("dd bdi").first
    assert holder.text_content() == worlds.HOSTILE
    title = page.locator("h1 bdi")
    assert title.text_content() == worlds.NAME
    # bdi keeps what turns the direction around to itself.
    assert title.evaluate("each => getComputedStyle(each).unicodeBidi") == "isolate"
