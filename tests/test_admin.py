"""The admin: nobody changes rows by hand, no token is shown, and it is where it is wanted."""

import re
import subprocess
import sys
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.staticfiles import finders
from django.db import connection
from django.urls import reverse

from django_runlease.models import Run, RunLease

from .factories import AlertFactory, RunFactory, RunLeaseFactory
from .pages import Page
from .support import ROOT

pytestmark = pytest.mark.django_db

MODELS = pytest.mark.parametrize(
    ("model", "factory"), [(RunLease, RunLeaseFactory), (Run, RunFactory)]
)


def url(model, page, *args):
    return reverse(f"admin:runlease_{model._meta.model_name}_{page}", args=args)


def test_the_list_of_leases_says_who_holds_which(ops):
    RunLeaseFactory(name="billing", held=True)
    RunLeaseFactory(name="reports", expired=True)
    RunLeaseFactory(name="imports")
    RunLeaseFactory(name="exports", held=True, paused=True)
    page = ops.get(url(RunLease, "changelist")).content.decode()
    for word in ("billing", "held", "elsewhere:4711", "expired", "free", "paused"):
        assert f">{word}<" in page


@MODELS
def test_nobody_adds_changes_or_deletes_a_row_by_hand(ops, model, factory):
    row = factory()
    assert ops.get(url(model, "add")).status_code == 403
    assert ops.post(url(model, "delete", row.pk)).status_code == 403
    assert ops.post(url(model, "change", row.pk), {}).status_code == 403
    assert model.objects.filter(pk=row.pk).exists()


def pages_about(lease, run):
    """Those of *lease*, which is held, and of its *run*; with all confirmations, filled or not."""
    actions = [(action, ()) for action in ("pause", "break")] + [("silence", ("failing",))]
    return [
        *(url(RunLease, page) for page in ("changelist", "overview")),
        *(url(RunLease, page, lease.pk) for page in ("change", "history")),
        *(url(RunLease, action, lease.pk, *more) for action, more in actions),
        url(Run, "changelist"),
        f"{url(Run, 'changelist')}?lease={lease.name}",
        *(url(Run, page, run.pk) for page in ("change", "history")),
        reverse("admin:app_list", args=["runlease"]),
    ]


def test_no_page_shows_a_token(ops):
    lease = RunLeaseFactory(name="job", held=True)
    run = RunFactory(lease_name="job", token=lease.token, running=True)
    AlertFactory(lease_name="job", kind="failing")
    user = get_user_model().objects.get()
    LogEntry.objects.create(user=user, object_id=lease.pk, action_flag=CHANGE, change_message="x")
    tokens = {str(lease.token), lease.token.hex}
    pages = pages_about(lease, run)
    said = [ops.get(page) for page in pages]
    said += [ops.post(page, {"length": "no"}) for page in pages if "/break/" in page]
    RunLease.objects.update(paused=True)
    said += [ops.get(url(RunLease, page, lease.pk)) for page in ("resume", "change")]
    for response in said:
        assert response.status_code == 200
        assert not [token for token in tokens if token in response.content.decode()]


def test_a_page_asks_for_the_right_to_look_at_what_it_shows(client):
    """Being staff, with a right to something else, is not enough."""
    lease = RunLeaseFactory(name="job", held=True)
    run = RunFactory(lease_name="job", output="secret", error="secret")
    ada = get_user_model().objects.create_user("ada", is_staff=True)
    client.force_login(ada)
    rights = {"view_runlease": [], "view_run": []}
    for page in pages_about(lease, run):
        rights["view_run" if "/run/" in page else "view_runlease"].append(page)
    del rights["view_runlease"][-1]
    for right, others in (("view_run", "view_runlease"), ("view_runlease", "view_run")):
        ada.user_permissions.set(Permission.objects.filter(codename=right))
        for page in rights[others]:
            response = client.get(page)
            assert response.status_code == 403, page
            assert b"secret" not in response.content
        allowed = [page for page in rights[right] if client.get(page).status_code == 200]
        assert len(allowed) >= 4


class Replica:
    """Reads of leases and runs go to a replica, which is behind."""

    def db_for_read(self, model, **hints):
        return "other" if model._meta.app_label == "runlease" else None


@pytest.mark.django_db(transaction=True)
def test_pages_show_what_the_database_that_decides_has_and_no_replica(ops, other, settings):
    lease = RunLeaseFactory(name="job", held=True)
    run = RunFactory(lease_name="job", running=True)
    AlertFactory(lease_name="job", kind="failing")
    settings.DATABASE_ROUTERS = [Replica()]
    assert not RunLease.objects.exists()
    for page in pages_about(lease, run)[:-1]:
        assert "job" in Page(ops.get(page)).text


@MODELS
@pytest.mark.parametrize(
    "look_up", ["token", "token__gte", "token__startswith", "generation", "reason__contains"]
)
def test_no_row_is_looked_up_by_what_no_filter_offers(ops, model, factory, look_up):
    """Above all not by its token, which could be guessed digit by digit."""
    row = factory(**({"held": True} if model is RunLease else {}))
    value = str(row.token) if look_up.startswith("token") else "1"
    assert ops.get(url(model, "changelist"), {look_up: value}).status_code == 400


@MODELS
def test_the_head_of_a_page_can_be_asked_for(ops, model, factory):
    row = factory()
    for page, *args in (["changelist"], ["change", row.pk], ["history", row.pk]):
        assert ops.head(url(model, page, *args)).status_code == 200
    assert ops.put(url(model, "change", row.pk)).status_code == 403


def test_the_empty_log_of_a_run_sends_nobody_to_the_page_of_a_lease(ops):
    lease, run = RunLeaseFactory(), RunFactory()
    nobody, elsewhere = "Nobody has done anything to it in this admin", "by command stands on"
    of_lease = Page(ops.get(url(RunLease, "history", lease.pk))).text
    assert nobody in of_lease
    assert elsewhere in of_lease
    of_run = Page(ops.get(url(Run, "history", run.pk))).text
    assert nobody in of_run
    assert elsewhere not in of_run


@pytest.mark.urls("tests.urls_admins")
def test_all_links_stay_in_the_site_of_the_admin_that_shows_them(ops):
    lease = RunLeaseFactory(name="job", held=True)
    RunFactory(lease_name="job")
    AlertFactory(lease_name="job")
    pages = ["runlease/", "runlease/overview/", f"runlease/{lease.pk}/change/", "run/"]
    for page in [*pages, f"runlease/{lease.pk}/break/"]:
        said = Page(ops.get(f"/operations/runlease/{page}"))
        links = [link["href"] for link in said.all("a") if link.get("href")]
        assert [link for link in links if link.startswith("/operations/runlease/")]
        assert not [link for link in links if link.startswith("/admin/")]
    response = ops.post(f"/operations/runlease/runlease/{lease.pk}/pause/", {"reason": "x"})
    assert response.url == f"/operations/runlease/runlease/{lease.pk}/change/"


def test_without_the_admin_nothing_is_registered_or_imported():
    code = """
import sys
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_runlease"], DATABASES={"default": {
    "ENGINE": "django.db.backends.postgresql", "NAME": "none"}})
django.setup()
from django.core.management import call_command
call_command("check")
print([name for name in sys.modules if "admin" in name.split(".")])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr


def test_styles_and_scripts_are_files_that_are_found(ops):
    said = Page(ops.get(url(RunLease, "changelist")))
    sheets = [link["href"] for link in said.all("link", rel="stylesheet")]
    scripts = [script["src"] for script in said.all("script")]
    assert "/static/runlease/admin.css" in sheets
    assert "/static/runlease/admin.js" in scripts
    for name in ("runlease/admin.css", "runlease/admin.js"):
        assert finders.find(name)


def test_every_text_of_a_template_can_be_translated():
    for template in (ROOT / "django_runlease/templates").rglob("*.html"):
        text = re.sub(
            r"{% blocktranslate.*?{% endblocktranslate %}", "", template.read_text(), flags=re.S
        )
        text = re.sub(r"{%.*?%}|{{.*?}}|<[^>]*>", " ", text, flags=re.S)
        assert not re.search(r"[a-z]{2,}", text, re.I), (template, text)


@pytest.fixture
def some(ops):
    lease = RunLeaseFactory(name="a <b> c", held=True)
    run = RunFactory(lease_name="a <b> c")
    return ops, lease, run


def test_every_page_says_where_it_is(some):
    client, lease, run = some
    leases, runs = url(RunLease, "changelist"), url(Run, "changelist")
    of_lease, of_run = url(RunLease, "change", lease.pk), url(Run, "change", run.pk)
    for address, before, last in (
        (leases, [], "Leases"),
        (of_lease, [leases], "a <b> c"),
        (url(RunLease, "overview"), [leases], "Overview"),
        (url(RunLease, "break", lease.pk), [leases, of_lease], "Break"),
        (runs, [], "Runs"),
        (f"{runs}?lease=a+%3Cb%3E+c", [runs], "a <b> c"),
        (of_run, [runs, f"{runs}?lease=a+%3Cb%3E+c"], "20"),
    ):
        html = Page(client.get(address)).html
        start = html.index('class="breadcrumbs"')
        crumbs = html[start : start + re.search("</(ol|div)>", html[start:]).start()]
        links = [unescape(link) for link in re.findall('href="([^"]*)"', crumbs)]
        assert links == ["/admin/", "/admin/runlease/", *before]
        said = unescape(re.sub("<[^>]*>", "", crumbs.split(">", 1)[1])).split("\n")
        assert [line for line in said if line.strip()][-1].lstrip(" \u203a").startswith(last)
        isolated = unescape(crumbs).count('<bdi class="runlease-name">a <b> c</bdi>')
        assert isolated == crumbs.count("a &lt;b&gt; c")


def test_the_page_of_the_app_leads_to_the_overview_who_may_see_it(client, ops):
    address = reverse("admin:app_list", args=["runlease"])
    assert Page(ops.get(address)).all("a", href=url(RunLease, "overview"))
    ada = get_user_model().objects.create_user("ada", is_staff=True)
    ada.user_permissions.add(Permission.objects.get(codename="view_run"))
    client.force_login(ada)
    assert not Page(client.get(address)).all("a", href=url(RunLease, "overview"))


@pytest.mark.urls("tests.urls_own_admins")
def test_a_site_with_a_page_of_leases_of_its_own_has_no_link_to_the_overview(ops):
    said = Page(ops.get(reverse("admin:app_list", args=["runlease"])))
    assert said.all("a", href=url(RunLease, "changelist"))
    assert "Overview" not in said.text


@pytest.mark.parametrize(
    "instant", ["infinity", "-infinity", "20000-01-01 UTC", "0044-03-15 BC UTC"]
)
@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(
            ("runlease_runlease", column)
            for column in ("expires_at", "claimed_at", "renewed_at", "not_before", "last_tick")
        ),
        *(("runlease_run", column) for column in ("started_at", "finished_at", "tick")),
        *(("runlease_alert", column) for column in ("opened_at", "silenced_until")),
    ],
)
def test_an_instant_that_no_calendar_has_takes_no_page_down(ops, table, column, instant):
    lease = RunLeaseFactory(name="job", held=True, every=timedelta(hours=1))
    run = RunFactory(lease_name="job")
    AlertFactory(lease_name="job", kind="failing")
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = %s::timestamptz", [instant])
    for view, args in (
        *((f"runlease_{view}", ()) for view in ("changelist", "overview")),
        *((f"runlease_{view}", (lease.pk,)) for view in ("change", "break", "pause", "history")),
        ("runlease_silence", (lease.pk, "failing")),
        ("run_changelist", ()),
        ("run_change", (run.pk,)),
        ("run_history", (run.pk,)),
    ):
        page = Page(ops.get(reverse(f"admin:runlease_{view}", args=args)))
        assert "job" in page.text
        assert page.all("span", **{"data-runlease-left": "inf"}) == []


def test_who_may_not_look_at_runs_finds_no_link_to_them(client):
    one = get_user_model().objects.create_user("eve", is_staff=True)
    one.user_permissions.set(Permission.objects.filter(codename="view_runlease"))
    client.force_login(one)
    lease = RunLeaseFactory(name="job", held=True)
    RunFactory.create_batch(3, lease_name="job")
    for view, args in (("changelist", ()), ("overview", ()), ("change", (lease.pk,))):
        page = Page(client.get(reverse(f"admin:runlease_runlease_{view}", args=args)))
        assert not [a["href"] for a in page.all("a") if "/run/" in str(a.get("href"))]
    one.user_permissions.add(Permission.objects.get(codename="view_run"))
    page = Page(client.get(reverse("admin:runlease_runlease_change", args=[lease.pk])))
    assert len([a for a in page.all("a") if "/run/" in str(a.get("href"))]) >= 5


def test_who_may_not_look_at_runs_reads_nowhere_why_they_ended(client):
    """The last line of an exception may say what is as secret as the output."""
    one = get_user_model().objects.create_user("eve", is_staff=True)
    one.user_permissions.set(Permission.objects.filter(codename="view_runlease"))
    client.force_login(one)
    lease = RunLeaseFactory(name="job")
    RunFactory(lease_name="job", outcome="failed", reason="OperationalError: DSN=secret")
    RunFactory(lease_name="job", outcome="lost", reason="broken by ada: secret")
    RunFactory(lease_name="job", declined=True)
    pages = [("changelist", ()), ("overview", ()), ("change", (lease.pk,))]
    pages = [url(RunLease, view, *args) for view, args in pages]
    said = [Page(client.get(address)) for address in pages]
    assert not [page for page in said if "secret" in page.html]
    assert "the lease was held" in said[-1].text
    assert ["1 break" in page.html for page in said] == [True] * 3, "it is told, but not why"
    one.user_permissions.add(Permission.objects.get(codename="view_run"))
    told = ["secret" in client.get(address).content.decode() for address in pages]
    assert told == [False, True, True]


@pytest.mark.parametrize(
    "query", ["?host=%00", "?state=%00", "?outcome=%00", "?alerts=%00", "?q=%00", "?p=%00"]
)
def test_odd_addresses_of_lists_are_no_error(ops, query):
    RunLeaseFactory(name="job", held=True)
    for model in (RunLease, Run):
        for more in ("", "&lease=%00&within=%00&outcome=%00" if model is Run else ""):
            response = ops.get(url(model, "changelist") + query + more)
            assert response.status_code in (200, 302, 400)


@pytest.mark.urls("tests.urls_leases_only")
def test_a_site_that_has_leases_and_no_runs_shows_no_link_to_them(ops):
    lease = RunLeaseFactory(name="job", held=True)
    RunFactory(lease_name="job")
    page = Page(ops.get(url(RunLease, "change", lease.pk)))
    assert not [a for a in page.all("a") if "/run/" in str(a.get("href"))]


@pytest.mark.urls("tests.urls_runs_only")
def test_a_site_that_has_runs_and_no_leases_shows_no_link_to_them(ops):
    RunLeaseFactory(name="job", held=True)
    run = RunFactory(lease_name="job")
    for place in (url(Run, "change", run.pk), f"{url(Run, 'changelist')}?lease=job"):
        page = Page(ops.get(place))
        assert "job" in page.text
        assert not [a for a in page.all("a") if "/runlease/runlease/" in str(a.get("href"))]


@pytest.mark.urls("tests.urls_leases_only")
def test_a_name_is_told_as_it_is_also_at_the_beginning_of_a_message(ops):
    lease = RunLeaseFactory(name="job")
    page = ops.post(url(RunLease, "pause", lease.pk), {"reason": "<b>"}, follow=True)
    name = '<bdi class="runlease-name">{}</bdi>'.format
    assert f"{name('job')}: {name('Paused: &lt;b&gt;')}" in page.content.decode()
