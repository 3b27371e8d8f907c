"""A browser on the example project: whatever it complains of fails the test.

Playwright runs an event loop in the thread of the tests, where Django refuses to work on the
database: a test does that by ``elsewhere``, and the fixtures here do so too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from ..support import DEADLINE, elsewhere
from . import world as worlds
from .chromium import launch
from .site import empty, serving, session

expect.set_options(timeout=DEADLINE * 1000)


@pytest.fixture(scope="package")
def transactional_db(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """In the place of pytest-django's, which works on the database in the thread of the test."""
    with django_db_blocker.unblock():
        yield


@pytest.fixture(scope="package")
def site(transactional_db: None) -> Iterator[str]:
    """The address of the site, on the test's own database."""
    with serving() as address:
        yield address


@pytest.fixture(scope="package")
def chromium(site: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


@pytest.fixture
def nothing(site: str) -> None:
    """An empty database, for a test that changes it."""
    elsewhere(empty)


@pytest.fixture(scope="module")
def world(site: str) -> None:
    """Leases in all states, for tests that only look."""
    elsewhere(empty)
    elsewhere(lambda: worlds.build(days=0.1))


class Complaints:
    """What a browser tells only to who has its console open."""

    def __init__(self, context: BrowserContext) -> None:
        self.found: list[str] = []
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(str(error.error)))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.text} ({message.location.get('url')})")


Visit = Callable[..., Page]


@pytest.fixture
def visit(chromium: Browser, site: str) -> Iterator[Visit]:
    """Opens a page in a fresh profile, logged in or not; takes what a context of Playwright takes.

    What any of them complains of fails the test at its end.
    """
    opened: list[tuple[BrowserContext, Complaints]] = []

    def visit(*, logged_in: bool = True, **options: Any) -> Page:
        size = {"width": 1280, "height": 900}
        context = chromium.new_context(base_url=site, **{"viewport": size, **options})
        context.set_default_timeout(DEADLINE * 1000)
        # Browsers ask for it, the example has none.
        context.route("**/favicon.ico", lambda route: route.fulfill(status=204))
        opened.append((context, Complaints(context)))
        if logged_in:
            cookie = {"name": settings.SESSION_COOKIE_NAME, "value": elsewhere(session)}
            context.add_cookies([{**cookie, "url": site}])
        return context.new_page()

    yield visit
    for context, _ in opened:
        context.close()
    assert [complaints.found for _, complaints in opened if complaints.found] == []


@pytest.fixture
def page(visit: Visit) -> Page:
    """A page of a user who may do all."""
    return visit()


@pytest.fixture
def stopped(page: Page) -> Page:
    """A page whose time passes by its ``clock`` alone."""
    page.clock.install(time=0)
    page.clock.pause_at(1_000_000)
    return page
