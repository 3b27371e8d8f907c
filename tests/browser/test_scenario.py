"""What an engineer does at three in the morning, with a job that really runs."""

import re
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect

from django_runlease.models import Run, RunLease

from ..support import DEADLINE, UNHURRIED, elsewhere, manage, spawn_manage, wait_for
from .site import PASSWORD, USER, superuser

pytestmark = pytest.mark.usefixtures("nothing")

TERMS = ("--ttl", "20s", "--every", "5m")


@contextmanager
def running(name):
    """A tick of the job that goes on until it is stopped."""
    program = ("sh", "-c", "echo charging; exec sleep 600")
    arguments = ("runjob", name, *TERMS, "--grace", "1s", "--", *program)
    with spawn_manage(*arguments, env=UNHURRIED) as process:
        try:
            wait_for(
                lambda: elsewhere(RunLease.objects.filter(name=name, token__isnull=False).exists)
            )
            yield process
        finally:
            process.kill()


def tick(name, *arguments):
    """The next tick of the job, to its end."""
    return manage("runjob", name, *TERMS, "-v2", *arguments, "--", "true", env=UNHURRIED)


def log_in(page):
    page.goto("/admin/")
    page.get_by_label("Username").fill(USER)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()


def shows(page, *patterns):
    """Wait until the page says all of it, whatever stands between the words."""
    for pattern in patterns:
        expect(page.locator("#content")).to_contain_text(re.compile(pattern))


def outcomes(name):
    runs = Run.objects.filter(lease_name=name).order_by("started_at")
    return elsewhere(lambda: list(runs.values_list("outcome", flat=True)))


def test_an_engineer_finds_the_holder_breaks_its_lease_pauses_and_resumes(visit):
    elsewhere(superuser)
    page = visit(logged_in=False)
    with running("billing") as process, running("reports"):
        log_in(page)
        page.get_by_role("link", name="Leases", exact=True).last.click()

        # Who holds it?
        page.locator("#searchbar").fill("billing")
        page.get_by_role("button", name="Search").click()
        row = page.locator("#result_list tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("held")
        expect(row).to_contain_text(f":{process.pid}")
        row.get_by_role("link", name="billing", exact=True).click()
        shows(page, "held", rf"Process\s*{process.pid}, started", r"Runs\s*\S+, process group")

        # Take it away from there.
        page.get_by_role("link", name="Break").click()
        shows(page, rf":{process.pid} holds it now, and renewed it", "is told that it lost")
        shows(page, "The generation rises from 1 to 2", "Its run is closed as lost")
        page.get_by_label("Why").fill("the provider hangs")
        page.get_by_role("button", name="Break").click()
        shows(page, "free", "Not before", "1 break")
        page.evaluate("window.sameDocument = true")
        assert process.wait(DEADLINE) == 70
        assert "broken" in process.stderr.read()

    # No tick is to start until the provider answers.
    page.get_by_role("link", name="Pause").click()
    shows(page, "each tick declines as paused")
    page.get_by_label("Why").fill("no provider")
    page.get_by_role("button", name="Pause").click()
    shows(page, "paused", "no provider")
    page.evaluate("window.sameDocument = true")
    assert "declined, paused" in tick("billing").stdout
    shows(page, "1 declined tick")
    assert page.evaluate("window.sameDocument"), "it was not the refresh, but a reload"

    page.get_by_role("link", name="Resume").click()
    shows(page, f"It was paused by {USER}, because: no provider")
    page.get_by_role("button", name="Resume").click()
    shows(page, "free")
    done = tick("billing", "--wait", "2m")
    assert done.returncode == 0, done
    shows(page, "1 succeeded")
    shows(page, "What operators did", "the provider hangs", "no provider")
    assert outcomes("billing") == ["lost", "declined", "succeeded"]


def test_a_page_that_is_open_shows_that_the_holder_has_gone(visit):
    """Without a reload, in the list and on the page of the lease."""
    leases, lease = visit(), visit()
    with running("billing") as process:
        leases.goto("/admin/runlease/runlease/")
        lease.goto("/admin/runlease/runlease/")
        lease.get_by_role("link", name="billing", exact=True).click()
        for page in (leases, lease):
            shows(page, "held", f":{process.pid}")
            page.evaluate("window.sameDocument = true")
        assert manage("runlease", "break", "billing", "--yes").returncode == 0
        assert process.wait(DEADLINE) == 70
        shows(leases, "free", "lost")
        shows(lease, "free", "1 run, 1 lost, 1 break")
        for page in (leases, lease):
            assert page.evaluate("window.sameDocument")
