"""What axe, a checker of accessibility, finds wrong in a page."""

from __future__ import annotations

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

EXCUSED = {
    # Its label is a picture, whose text axe does not count, and a help text is no label.
    ("label-title-only", "#searchbar"),
    # "(Show all)" behind the number of results.
    ("link-in-text-block", "#changelist-search a"),
    # Underlined when the pointer is over them.
    ("link-in-text-block", ".breadcrumbs a"),
}
"""What the admin of Django has on all of its pages: the rule, and where."""

OPTIONS = {
    "resultTypes": ["violations"],
    # axe would load the style sheets once more, by styles that the policy refuses.
    "preload": False,
}


def violations(page: Page) -> set[tuple[str, str]]:
    """The rules that are broken, each with the place and what axe says of it."""
    # Colours that are about to change have no contrast to speak of.
    page.evaluate("Promise.all(document.getAnimations().map(each => each.finished))")
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return {
        (violation["id"], f"{node['target'][0]} {node['failureSummary']}")
        for violation in found
        for node in violation["nodes"]
        if not _is_excused(page, violation["id"], node)
    }


def excuses(page: Page) -> set[tuple[str, str]]:
    """Those of the excuses that *page* needs."""
    found = Axe().run(page, options=OPTIONS).response["violations"]
    return {
        (rule, place)
        for rule, place in EXCUSED
        for violation in found
        for node in violation["nodes"]
        if violation["id"] == rule and _is_at(page, node, place)
    }


def _is_excused(page: Page, rule: str, node: dict[str, Any]) -> bool:
    return any(rule == known and _is_at(page, node, place) for known, place in EXCUSED)


def _is_at(page: Page, node: dict[str, Any], place: str) -> bool:
    target = node["target"][0]
    return bool(page.evaluate("([t, p]) => document.querySelector(t).matches(p)", [target, place]))
