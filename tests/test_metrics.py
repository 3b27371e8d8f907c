"""What the metrics say of real leases, and that no counter ever falls."""

import json
import re
import sys
import threading
import uuid
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connections
from django.test import RequestFactory
from django.urls import path
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from django_runlease import metrics, store, views
from django_runlease.clock import Instant, Now, Seconds
from django_runlease.exceptions import RunLeaseError
from django_runlease.models import Alert, Outcome, Run, RunLease
from django_runlease.tallies import BUCKETS

from .factories import RunFactory, RunLeaseFactory
from .past import ago, fresh, insert_runs, old, prune
from .support import expire, granted, together, wish

DONE = store.Closing(outcome=Outcome.SUCCEEDED)
HOSTILE = ['quo"te', "back\\slash", "\\n", '\\"} 1', "{a=b}", "a,b", "日本", "#", "a b"]
COUNTERS = ("_total", "_bucket", "_sum", "_count")

urlpatterns = [path("metrics", views.metrics)]


def samples(text=None):
    """The value of each sample, by name and labels."""
    families = parse_text(metrics.text() if text is None else text)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(name, lease="job", **labels):
    return samples().get((f"runlease_{name}", frozenset({"lease": lease, **labels}.items())))


def short_of(before, after):
    """The counters of *before* that are lower, or missing, *after*."""
    return {
        key: (was, after.get(key))
        for key, was in before.items()
        if key[0].endswith(COUNTERS) and after.get(key, -1.0) < was
    }


# -- counters and histograms


@pytest.mark.django_db
def test_runs_count_by_outcome_from_their_end_on():
    claimed = granted()
    assert value("runs_total", outcome="succeeded") == 0
    assert value("run_duration_seconds_count", outcome="succeeded") is None
    store.release(claimed, DONE)
    store.release(granted(), store.Closing(outcome=Outcome.FAILED))
    assert value("runs_total", outcome="succeeded") == value("runs_total", outcome="failed") == 1
    assert value("run_duration_seconds_count", outcome="succeeded") == 1
    assert value("runs_total", outcome="running") is None


@pytest.mark.django_db
def test_declined_ticks_count_by_reason_and_are_no_runs():
    granted()
    request = wish("job")
    store.record_decline(request, store.claim(request, "default"), "default")
    assert value("declined_total", reason="held") == 1
    assert value("declined_total", reason="busy") == 0
    assert sum(v for (name, _), v in samples().items() if name == "runlease_runs_total") == 0


@pytest.mark.django_db
def test_takeovers_and_losses_are_counted():
    claimed = granted()
    expire()
    granted()
    assert (value("takeovers_total"), value("lost_total")) == (1, 0)
    assert value("runs_total", outcome="abandoned") == 1
    assert store.release(claimed, DONE).reason == "taken"
    assert (value("takeovers_total"), value("lost_total")) == (1, 1)


@pytest.mark.django_db
def test_every_counter_of_a_lease_begins_at_zero():
    """Else the first decline would be no increase, and no alert."""
    RunLeaseFactory(name="job")
    reasons = {"held", "busy", "paused", "not_due", "same_tick"}
    assert {value("declined_total", reason=reason) for reason in reasons} == {0}
    ended = {outcome.value for outcome in Outcome} - {"running", "declined"}
    assert {value("runs_total", outcome=outcome) for outcome in ended} == {0}
    assert (value("takeovers_total"), value("lost_total")) == (0, 0)


@pytest.mark.django_db
@pytest.mark.parametrize("bound", BUCKETS)
def test_the_bound_of_a_bucket_belongs_to_it(bound):
    RunLeaseFactory(name="job")
    exactly = timedelta(seconds=bound)
    RunFactory(lease_name="job", waited=exactly, lag=exactly + timedelta(microseconds=1))
    le = str(float(bound))
    below = [str(float(b)) for b in BUCKETS if b < bound]
    assert value("wait_seconds_bucket", le=le) == 1
    assert {value("wait_seconds_bucket", le=b) for b in below} <= {0}
    assert value("start_lag_seconds_bucket", le=le) == 0
    assert value("start_lag_seconds_bucket", le="+Inf") == 1
    assert value("wait_seconds_sum") == bound


@pytest.mark.django_db
def test_a_declined_tick_counts_among_the_waits_only_if_it_waited_and_never_has_a_lag():
    RunLeaseFactory(name="job")
    RunFactory(lease_name="job", waited=timedelta(seconds=1), lag=timedelta(seconds=2))
    RunFactory(lease_name="job", declined=True, waited=timedelta(0), lag=timedelta(seconds=3))
    RunFactory(lease_name="job", declined=True, waited=None)
    assert (value("wait_seconds_count"), value("wait_seconds_sum")) == (1, 1)
    RunFactory(lease_name="job", declined=True, waited=timedelta(seconds=60))
    assert (value("wait_seconds_count"), value("wait_seconds_sum")) == (2, 61)
    assert (value("start_lag_seconds_count"), value("start_lag_seconds_sum")) == (1, 2)


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Outcome.LOST, Outcome.ABANDONED])
def test_a_run_whose_end_nobody_saw_has_no_duration(outcome):
    RunLeaseFactory(name="job")
    RunFactory(lease_name="job", outcome=outcome)
    assert value("runs_total", outcome=outcome.value) == 1
    assert value("run_duration_seconds_count", outcome=outcome.value) is None


@pytest.mark.django_db
def test_a_bypass_is_no_run_of_the_job():
    RunLeaseFactory(name="job")
    before = samples()
    RunFactory(lease_name="job", trigger="bypass", generation=None)
    assert samples() == before


@pytest.mark.django_db
def test_of_names_without_a_lease_there_are_no_samples():
    RunFactory(lease_name="gone")
    assert samples() == {}


# -- no counter falls


@pytest.mark.django_db
def test_a_prune_changes_no_sample():
    RunLeaseFactory(name="job")
    fresh()
    old(40, 20, waited=timedelta(seconds=3.3), lag=timedelta(seconds=1.1), took_over_from="x")
    old(40, 20, declined=True)
    before = samples()
    assert prune().declines == 20
    assert samples() == before


@pytest.mark.django_db
def test_no_counter_falls_when_an_abandoned_run_turns_out_to_be_lost():
    claimed = granted()
    expire()
    granted()
    before = samples()
    store.release(claimed, DONE)
    after = samples()
    assert Run.objects.get(pk=claimed.run_id).outcome == Outcome.LOST
    assert not short_of(before, after)
    assert value("runs_total", outcome="lost") == 1


@pytest.mark.django_db
def test_no_counter_falls_when_a_broken_holder_says_when_it_really_stopped():
    claimed = granted()
    store.break_lease("job", "default", by="ann", at_once=True)
    before = samples()
    store.release(claimed, DONE)
    assert not short_of(before, samples())


@pytest.mark.django_db(transaction=True)
def test_no_counter_falls_while_prunes_run_on_other_connections():
    insert_runs(3000, names=2)
    scrapes, pruned = [samples()], threading.Event()

    def scrape():
        while not pruned.is_set():
            scrapes.append(samples())
        return 0

    def prune_in_small_steps():
        done = prune(batch=25)
        return done.runs + done.declines

    def prune_all():
        try:
            return sum(together(prune_in_small_steps, prune_in_small_steps))
        finally:
            pruned.set()

    _, removed = together(scrape, prune_all)
    scrapes.append(samples())
    assert removed == 3000
    assert len(scrapes) > 3
    for before, after in pairwise(scrapes):
        assert not short_of(before, after)
    assert scrapes[0] == scrapes[-1]


# -- gauges


@pytest.mark.django_db
def test_a_held_lease_says_since_when_until_when_and_at_which_interval():
    lease = RunLeaseFactory(name="job", held=True, every=timedelta(minutes=5))
    lease.refresh_from_db()
    assert value("held") == 1
    since, until = lease.claimed_at.timestamp(), lease.expires_at.timestamp()
    assert value("held_since_timestamp_seconds") == pytest.approx(since, abs=1e-3)
    assert value("expires_timestamp_seconds") == pytest.approx(until, abs=1e-3)
    assert value("interval_seconds") == 300


@pytest.mark.django_db
def test_a_paused_lease_may_be_held():
    RunLeaseFactory(name="job", held=True, paused=True)
    assert value("held") == 1


@pytest.mark.django_db
def test_an_expired_lease_is_not_held_and_says_when_it_expired():
    RunLeaseFactory(name="job", expired=True)
    assert value("held") == 0
    assert value("held_since_timestamp_seconds") is None
    assert value("expires_timestamp_seconds") is not None


@pytest.mark.django_db
def test_a_free_lease_has_no_instants():
    store.release(granted(), store.Closing(outcome=Outcome.FAILED))
    told = {name for name, _ in samples() if "timestamp" in name or "interval" in name}
    assert told == set()
    assert value("held") == 0


@pytest.mark.django_db
def test_the_last_success_is_when_it_ended_whatever_came_after():
    RunLeaseFactory(name="job")
    (success,) = old(3, generation=1)
    old(2, outcome=Outcome.FAILED, generation=2)
    old(1, trigger="bypass", generation=None)
    ended = Run.objects.get(pk=success).finished_at.timestamp()
    assert value("last_success_timestamp_seconds") == pytest.approx(ended, abs=1e-3)


def started(seconds, every=100, **more):
    """A lease whose last claim was so long ago, and the run of that claim."""
    moment = Now() - Seconds(timedelta(seconds=seconds))
    running = more.get("outcome") == Outcome.RUNNING
    run = RunFactory(
        lease_name="job",
        started_at=moment,
        finished_at=None if running else Now(),
        generation=9,
        **more,
    )
    run.refresh_from_db()
    RunLeaseFactory(
        name="job",
        held=running,
        claimed_at=run.started_at,
        every=timedelta(seconds=every) if every else None,
    )


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.FAILED, Outcome.RUNNING])
def test_the_ratio_is_the_last_runs_share_of_the_interval(outcome):
    started(90, outcome=outcome)
    assert value("duration_interval_ratio") == pytest.approx(0.9, abs=0.3)


@pytest.mark.django_db
def test_a_run_that_has_just_begun_does_not_hide_how_long_the_last_success_took():
    (success,) = old(1, generation=1)
    Run.objects.filter(pk=success).update(finished_at=ago(1) + Seconds(timedelta(seconds=95)))
    started(0, outcome=Outcome.RUNNING)
    assert value("duration_interval_ratio") == pytest.approx(0.95, abs=0.01)


@pytest.mark.django_db
def test_without_an_interval_or_a_run_there_is_no_ratio():
    RunLeaseFactory(name="other", every=timedelta(minutes=1))
    started(90, every=None)
    assert value("duration_interval_ratio") is None
    assert value("duration_interval_ratio", lease="other") is None


@pytest.mark.django_db
def test_open_alerts_are_told_by_kind_unless_they_are_silenced():
    common = {"severity": "warning", "lease_name": "job", "opened_at": ago(1)}
    Alert.objects.create(kind="overdue", **common)
    Alert.objects.create(kind="failing", **common, silenced_until=ago(-1))
    Alert.objects.create(kind="stuck", **common, silenced_until=ago(0.1))
    Alert.objects.create(kind="lost", **common, resolved_at=ago(0.1))
    alerts = {labels for name, labels in samples() if name == "runlease_alerts"}
    assert {dict(labels)["kind"] for labels in alerts} == {"overdue", "stuck"}
    assert value("alerts", kind="overdue") == 1


# -- the exposition


@pytest.mark.django_db
def test_hostile_names_leave_the_exposition_valid_and_are_told_as_they_are():
    for name in HOSTILE:
        RunLeaseFactory(name=name, held=True)
        Alert.objects.create(kind="lost", severity="critical", lease_name=name, opened_at=ago(1))
    RunFactory(lease_name=HOSTILE[0], declined=True, reason='x"\n\\')
    told = {dict(labels)["lease"] for name, labels in samples() if name == "runlease_held"}
    assert told == set(HOSTILE)
    assert value("declined_total", lease=HOSTILE[0], reason='x"\n\\') == 1
    shape = re.compile(
        r"(# (HELP|TYPE) .*|[a-z_]+(\{([a-z]+=\"(\\[\\n\"]|[^\\\"])*\",?)*\})? [-+.\deInf]+)"
    )
    assert all(shape.fullmatch(line) for line in metrics.text().splitlines())


@pytest.mark.django_db
def test_labels_are_few_and_none_is_called_job_and_no_token_is_told():
    tokens = [RunLeaseFactory(name="job", held=True).token, uuid.uuid4()]
    RunFactory(lease_name="job", token=tokens[1])
    labels = {key for _, pairs in samples() for key, _ in pairs}
    assert labels == {"lease", "outcome", "reason", "le"}
    text = metrics.text()
    assert not any(str(token) in text or token.hex in text for token in tokens)


@pytest.mark.django_db
def test_every_metric_has_help_and_keeps_to_its_name():
    insert_runs(8)
    families = {family.name: family for family in parse_text(metrics.text())}
    declared = {**metrics.COUNTERS, **metrics.HISTOGRAMS, **metrics.GAUGES}
    assert {name.removesuffix("_total") for name in declared} == set(families)
    assert all(family.documentation for family in families.values())


@pytest.mark.django_db
def test_the_number_of_queries_does_not_grow_with_the_rows(django_assert_num_queries):
    insert_runs(100, names=10)
    with django_assert_num_queries(4):
        metrics.text()


@pytest.mark.django_db
def test_a_registry_of_your_own_can_have_the_collector_and_registers_without_a_query(
    django_assert_num_queries,
):
    own = CollectorRegistry(auto_describe=True)
    with django_assert_num_queries(0):
        own.register(metrics.Collector())
    RunLeaseFactory(name="job", held=True)
    assert own.get_sample_value("runlease_held", {"lease": "job"}) == 1


@pytest.mark.django_db
def test_the_json_has_the_same_samples():
    insert_runs(8)
    told = json.loads(json.dumps(metrics.as_json(), allow_nan=False))
    found = {
        (sample["name"], frozenset(sample["labels"].items())): sample["value"]
        for metric in told
        for sample in metric["samples"]
    }
    assert found == samples()
    assert {metric["type"] for metric in told} == {"counter", "histogram", "gauge"}


@pytest.mark.django_db
def test_an_instant_beyond_all_years_is_told_and_is_null_in_json():
    RunLeaseFactory(name="job", held=True)
    RunLease.objects.update(expires_at=Instant(float("inf")))
    assert value("expires_timestamp_seconds") == float("inf")
    (expires,) = [m for m in metrics.as_json() if m["name"].startswith("runlease_expires")]
    assert expires["samples"][0]["value"] is None


def test_without_prometheus_client_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    for use in (metrics.Collector, metrics.registry, metrics.text, metrics.as_json):
        with pytest.raises(RunLeaseError, match=r"pip install 'django-runlease\[prometheus\]'"):
            use()


# -- the view


@pytest.mark.django_db
@pytest.mark.urls(__name__)
def test_the_view_gives_the_text_format_and_asks_for_no_login(client):
    RunLeaseFactory(name="job", held=True)
    response = client.get("/metrics")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain; version=")
    assert "no-store" in response["Cache-Control"]
    key = ("runlease_held", frozenset({"lease": "job"}.items()))
    assert samples(response.content.decode())[key] == 1


@pytest.mark.django_db
def test_the_view_gives_openmetrics_to_who_asks_for_it():
    insert_runs(8)
    asking = RequestFactory().get("/", headers={"accept": "application/openmetrics-text"})
    response = views.metrics(asking)
    assert response["Content-Type"].startswith("application/openmetrics-text")
    families = list(parse_openmetrics(response.content.decode()))
    assert {family.name for family in families} >= {"runlease_runs", "runlease_held"}


@pytest.mark.django_db
def test_the_view_takes_nothing_but_get_and_head():
    request = RequestFactory()
    assert views.metrics(request.head("/")).status_code == 200
    assert views.metrics(request.post("/")).status_code == 405


@pytest.mark.django_db(transaction=True)
def test_a_scrape_works_within_a_transaction_of_the_project(settings, client):
    settings.ROOT_URLCONF = __name__
    insert_runs(8)
    connections["default"].settings_dict["ATOMIC_REQUESTS"] = True
    try:
        assert client.get("/metrics").status_code == 200
    finally:
        connections["default"].settings_dict["ATOMIC_REQUESTS"] = False
