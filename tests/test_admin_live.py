"""The alerts in the admin are those of now; what a check has recorded is laid over them."""

from datetime import timedelta

import pytest
from django.urls import reverse

from django_runlease import silences
from django_runlease.admin.figures import with_view
from django_runlease.admin.live import live
from django_runlease.holder import this_process
from django_runlease.models import Alert, RunLease

from .factories import AlertFactory, EffectFactory, RunFactory, RunLeaseFactory
from .pages import Page, address
from .plans import count_queries
from .support import ago

pytestmark = pytest.mark.django_db

LEASES = reverse("admin:runlease_runlease_changelist")
OVERVIEW = reverse("admin:runlease_runlease_overview")


def failing(name="job"):
    RunFactory.create_batch(3, lease_name=name, outcome="failed")
    return RunLeaseFactory(name=name)


def now(*names):
    leases = with_view(RunLease.objects.all())
    return live("default", [lease for lease in leases if not names or lease.name in names])


def kinds(found, name="job"):
    return [alert["kind"] for alert in found.alerts.get(name, [])]


@pytest.mark.parametrize("where", ["list", "lease", "overview"])
def test_what_no_check_has_seen_is_shown_and_says_so_by_having_no_since(ops, where):
    lease = failing()
    place = {"list": LEASES, "lease": address(lease), "overview": OVERVIEW}[where]
    said = Page(ops.get(place))
    assert "3 failures in a row" in said.html
    (alert,) = now().alerts["job"]
    assert (alert["opened"], alert["silenced"]) == (None, False)
    assert ("een just now, by no check yet" in said.text) == (where != "list")


def test_what_a_check_has_recorded_adds_since_when_and_the_silence_to_what_is_now(ops):
    lease = failing()
    AlertFactory(
        lease_name="job",
        kind="failing",
        message="2 failures in a row",
        opened_at=ago(500),
        silenced_until=ago(-600),
        silenced_by="bob",
    )
    text = Page(ops.get(address(lease))).text
    assert "3 failures in a row" in text
    assert "2 failures in a row" not in text
    assert "8m" in text
    assert "by bob" in text
    assert "as of the last check" not in text


def test_a_silence_goes_on_from_an_incident_that_is_over_to_one_that_no_check_has_seen():
    failing()
    over = {"lease_name": "job", "kind": "failing", "resolved_at": ago(5)}
    AlertFactory(**over, opened_at=ago(900), silenced_until=ago(-600), silenced_by="bob")
    AlertFactory(**{**over, "kind": "stuck"}, opened_at=ago(300))
    AlertFactory(**{**over, "lease_name": "other"}, opened_at=ago(300))
    (alert,) = now().alerts["job"]
    assert (alert["opened"], alert["silenced"], alert["silenced_by"]) == (None, True, "bob")
    AlertFactory(**over, opened_at=ago(100))
    assert [alert["silenced"] for alert in now().alerts["job"]] == [False], "it was lifted"


def test_what_is_over_is_not_shown_though_no_check_has_resolved_it(ops):
    lease = RunLeaseFactory(name="job", held=True)
    for kind in ("overrun", "contention", "starved", "failing", "stuck", "lost"):
        AlertFactory(lease_name="job", kind=kind, message="it was so")
    assert "it was so" not in Page(ops.get(address(lease))).text
    assert kinds(now()) == []


@pytest.mark.parametrize("kind", ["ghost", "overdue", "uncertain"])
def test_what_only_the_host_of_the_holder_can_see_stays_as_the_last_check_saw_it(ops, kind):
    lease = RunLeaseFactory(name="job", held=True)
    AlertFactory(lease_name="job", kind=kind, message="its process is gone")
    said = Page(ops.get(address(lease)))
    assert "its process is gone" in said.text
    assert "as of the last check" in said.text
    here = this_process()
    RunLease.objects.update(host=here.host, holder_process=here.process)
    assert kinds(now()) == [], "from here it is seen that it lives"
    RunLease.objects.update(host="elsewhere", expires_at=ago(1), ttl=timedelta(minutes=1))
    assert kinds(now()) == ["ghost"]
    assert not now().alerts["job"][0]["is_recorded"]


def test_the_worst_come_first_and_of_these_the_oldest():
    failing()
    RunFactory(lease_name="job", outcome="lost")
    RunFactory(lease_name="job", declined=True)
    AlertFactory(lease_name="job", kind="contention", opened_at=ago(9000))
    AlertFactory(lease_name="job", kind="lost", severity="critical", opened_at=ago(90))
    assert kinds(now()) == ["lost", "failing", "contention"]


def test_any_number_of_leases_takes_the_same_few_queries():
    def queries():
        leases = list(with_view(RunLease.objects.all()))
        return count_queries(lambda: live("default", leases))

    failing("job-x")
    few = queries()
    for n in range(30):
        failing(f"job-{n}")
        AlertFactory(lease_name=f"job-{n}", kind="ghost")
    assert queries() == few == 3


def test_only_the_leases_of_the_page_are_judged():
    failing("a")
    failing("b")
    assert set(now("a").alerts) == {"a"}


def test_the_overview_judges_the_leases_on_its_page_and_takes_others_from_the_last_check(
    ops, monkeypatch
):
    monkeypatch.setattr("django_runlease.admin.overview.LANES", 1)
    failing("a")
    failing("b")
    AlertFactory(lease_name="a", kind="ghost", message="it is over")
    AlertFactory(lease_name="b", kind="ghost", message="it may be over")
    said = Page(ops.get(OVERVIEW))
    assert "it is over" not in said.text
    assert "it may be over" in said.text
    assert said.text.count("failures in a row") == 1
    assert "The leases on this page are judged now; those on other pages" in said.text


def test_the_filter_says_that_it_knows_what_the_last_check_did(ops):
    failing()
    assert "as of the last check" in Page(ops.get(LEASES)).text


MISTAKE = {"ALERTS": {"failing": {"cuont": 1}}}


@pytest.mark.parametrize("where", ["list", "lease", "overview"])
def test_a_mistake_in_the_settings_is_told_and_what_was_recorded_is_still_shown(
    ops, settings, where
):
    lease = failing()
    AlertFactory(lease_name="job", kind="stuck", message="it was so", remedy="look")
    settings.RUNLEASE = MISTAKE
    place = {"list": LEASES, "lease": address(lease), "overview": OVERVIEW}[where]
    said = Page(ops.get(place))
    assert "unknown key 'cuont': did you mean \"count\"?" in said.text
    assert "manage.py check finds all mistakes" in said.text
    assert "`" not in said.text
    assert "it was so" in said.html
    assert not said.refused


@pytest.mark.parametrize("where", ["list", "lease", "overview"])
@pytest.mark.parametrize("text", ["import os\nos.environ['NO_SUCH_KEY']", "1 +", "absent"])
def test_a_mistake_in_the_jobs_of_an_app_takes_no_page_down_and_is_told(ops, make_app, where, text):
    lease = failing()
    AlertFactory(lease_name="job", kind="stuck", message="it was so")
    make_app("runlease_test_broken", text)
    said = Page(ops.get({"list": LEASES, "lease": address(lease), "overview": OVERVIEW}[where]))
    assert "runlease_test_broken.jobs cannot be imported" in said.text
    assert "it was so" in said.html


@pytest.mark.parametrize(
    "text", ["import runlease_test_absent", "from django_runlease import job\njob('a', x=3)"]
)
def test_a_silence_with_a_mistake_in_the_jobs_of_an_app_says_so(ops, make_app, text):
    lease = failing()
    make_app("runlease_test_broken", text)
    said = Page(ops.post(address(lease, "silence", "failing"), {"length": "4"}))
    assert "runlease_test_broken.jobs cannot be imported" in said.text
    assert not Alert.objects.exists()


def test_what_no_check_has_seen_can_be_silenced(ops):
    lease = failing()
    assert Page(ops.get(address(lease))).all("a", href=address(lease, "silence", "failing"))
    assert "3 failures in a row" in Page(ops.get(address(lease, "silence", "failing"))).text
    assert ops.post(address(lease, "silence", "failing"), {"length": "4"}).status_code == 302
    alert = Alert.objects.get()
    assert (alert.kind, alert.silenced_by) == ("failing", "ops")
    assert alert.resolved_at is None
    assert alert.silenced_until is not None


def test_a_silence_with_a_mistake_in_the_settings_says_so(ops, settings):
    lease = failing()
    settings.RUNLEASE = MISTAKE
    said = Page(ops.post(address(lease, "silence", "failing"), {"length": "4"}))
    assert "unknown key 'cuont'" in said.html.split('class="errornote"')[-1].replace("&#x27;", "'")
    assert not Alert.objects.exists()


def test_a_silence_of_what_is_recorded_or_over_records_nothing_more():
    failing()
    over = AlertFactory(lease_name="job", kind="failing", resolved_at=ago(5))
    silences.silence("job", "failing", "default", by="ada", length=timedelta(hours=1))
    assert list(Alert.objects.values_list("pk", "silenced_by")) == [(over.pk, "ada")]


def test_alerts_of_the_period_that_are_over_are_a_table_the_newest_first(ops, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.lease.RESOLVED", 2)
    lease = RunLeaseFactory(name="job")
    for kind, opened in (("lost", 9000), ("stuck", 7000), ("overrun", 5000), ("failing", 200_000)):
        end = ago(opened - 125)
        AlertFactory(lease_name="job", kind=kind, opened_at=ago(opened), resolved_at=end)
    said = Page(ops.get(address(lease)))
    table = said.html[said.html.index('id="runlease-resolved"') :]
    table = table[: table.index("</table>")]
    assert "lost" not in table
    assert table.index("overrun") < table.index("stuck")
    assert table.count("2m 5s") == 2
    assert "Only the 2 newest are listed" in said.text
    assert "Alerts that are over" not in Page(ops.get(address(lease), {"within": "1h"})).text


def test_effects_that_are_uncertain_are_told_at_once(ops):
    RunLeaseFactory(name="job")
    EffectFactory(lease_name="job")
    assert kinds(now()) == ["uncertain"]
