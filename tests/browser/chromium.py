"""The browser of the tests: Chromium, the system's or Playwright's own."""

from __future__ import annotations

import shutil

from playwright.sync_api import Browser, Error, Playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")

ARGUMENTS = [
    "--no-sandbox",  # root, as in a container of CI, cannot start it with one
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class NoBrowserError(Exception):
    """There is no Chromium."""


def launch(playwright: Playwright) -> Browser:
    """Start the Chromium on the PATH, else that which Playwright has installed.

    Raises NoBrowserError if there is none.
    """
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    try:
        return playwright.chromium.launch(executable_path=found, args=ARGUMENTS)
    except Error as error:
        if found:
            raise
        raise NoBrowserError(
            "no Chromium was found: `apt-get install chromium`, or"
            " `python -m playwright install --with-deps chromium`"
        ) from error
