"""Draws the README's pictures: ``python -m tests.browser.screenshots``.

With ``--all FOLDER``, draws every page there instead: light and dark, narrow and wide.
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import django
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
WIDTHS = {"narrow": 360, "wide": 1440}
THEMES = ("light", "dark")


@contextmanager
def own_database() -> Iterator[None]:
    """A fresh database beside that of the example project, dropped at the end."""
    from django.db import connections
    from django.test.utils import setup_databases, teardown_databases

    made = setup_databases(verbosity=0, interactive=False)
    try:
        yield
    finally:
        connections.close_all()
        teardown_databases(made, verbosity=0)


def open_page(browser: Browser, address: str, key: str, width: int, theme: Any = "light") -> Page:
    size = {"width": width, "height": 800}
    context = browser.new_context(base_url=address, viewport=size, color_scheme=theme)
    context.add_cookies([{"name": "sessionid", "value": key, "url": address}])
    # The admin's list of applications takes room, and is not what is to be shown.
    context.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    return context.new_page()


def draw(page: Page, url: str, path: Path, upto: str = "") -> None:
    """Draw the page; its upper part alone, where *upto* selects the end of that."""
    page.goto(url, wait_until="networkidle")
    path.parent.mkdir(parents=True, exist_ok=True)
    options: Any = {"full_page": True, "animations": "disabled", "caret": "hide"}
    if upto:
        end = page.locator(upto).bounding_box()
        assert end, upto
        width = page.viewport_size["width"]  # type: ignore[index]  # every page here has one
        options["clip"] = {"x": 0, "y": 0, "width": width, "height": end["y"] + end["height"]}
    page.screenshot(path=path, **options)
    print(path)


def draw_readme(browser: Browser, address: str, key: str, pages: dict[str, str]) -> None:
    page = open_page(browser, address, key, 1280)
    draw(page, pages["leases"], ROOT / "docs/leases.png")
    draw(page, pages["lease"], ROOT / "docs/lease.png", "section:has(.runlease-trend)")


def draw_all(browser: Browser, address: str, key: str, pages: dict[str, str], folder: Path) -> None:
    for theme in THEMES:
        for size, width in WIDTHS.items():
            page = open_page(browser, address, key, width, theme)
            for name, url in pages.items():
                draw(page, url, folder / f"{name}-{theme}-{size}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", type=Path, metavar="FOLDER")
    parser.add_argument("--hostile", action="store_true", help="with hostile names and texts")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "example_project.settings")
    django.setup()
    logging.getLogger("django_runlease").setLevel(logging.ERROR)

    from . import site, tour, world
    from .chromium import launch

    with own_database(), site.serving() as address:
        world.build(days=1)
        pages = tour.pages()
        if options.hostile:
            world.hostile()
            pages = tour.hostile_pages(world.NAME)
        key = site.session()
        with sync_playwright() as playwright:
            browser = launch(playwright)
            if options.all:
                draw_all(browser, address, key, pages, options.all)
            else:
                draw_readme(browser, address, key, pages)
            browser.close()


if __name__ == "__main__":
    main()
