"""No page has anything that axe finds wrong, in whatever theme and width."""

import pytest
from django.contrib.auth.admin import UserAdmin

from ..support import elsewhere
from . import tour
from .axe import EXCUSED, excuses, violations

pytestmark = pytest.mark.usefixtures("world")

WIDTHS = (1440, 360)
THEMES = ("light", "dark")


@pytest.mark.parametrize("name", tour.NAMES)
def test_axe_finds_nothing_wrong(page, name):
    page.goto(elsewhere(tour.pages)[name])
    for theme in THEMES:
        page.emulate_media(color_scheme=theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert violations(page) == set(), (theme, width)


def test_the_pages_show_what_is_looked_at(page):
    """Else the test above would find nothing wrong with nothing."""
    pages = elsewhere(tour.pages)
    for name, expected in tour.SEEN.items():
        page.goto(pages[name])
        text = " ".join(page.locator("#content").inner_text().split())
        assert [words for words in expected if words not in text] == [], name


def test_an_excuse_is_for_what_django_does_on_its_own_pages(page, monkeypatch):
    monkeypatch.setattr(UserAdmin, "search_help_text", "Part of a name")
    monkeypatch.setattr(UserAdmin, "show_full_result_count", False)
    needed = set()
    for address in ("/admin/auth/user/?q=a", "/admin/auth/group/add/"):
        page.goto(address)
        needed |= excuses(page)
    assert needed <= EXCUSED
    assert needed


def test_axe_looks_at_colours_labels_and_pictures(page):
    page.goto(tour.OVERVIEW)
    page.evaluate(
        """() => {
            const picture = document.querySelector("svg[role=img]");
            picture.removeAttribute("aria-labelledby");
            picture.querySelector("title").remove();
            document.querySelector(".runlease-note").style.color = "#ddd";
            document.querySelector("[data-runlease-toggle]").textContent = "";
        }"""
    )
    assert {rule for rule, _ in violations(page)} == {
        "svg-img-alt",
        "color-contrast",
        "button-name",
    }
