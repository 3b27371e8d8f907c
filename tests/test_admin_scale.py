"""The pages of the admin read a bounded number of rows, however many there are: told from what the
database says that it has read, never from a clock."""

from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse

from django_runlease import history, search, situation
from django_runlease.admin import base, filters, runs
from django_runlease.admin import lease as lease_page
from django_runlease.admin.figures import recent, windows
from django_runlease.models import RunLease
from django_runlease.search import Filters
from django_runlease.statistics import statistics, statistics_of_newest

from .factories import RunFactory, RunLeaseFactory
from .pages import Page, address
from .plans import rows_read, work
from .support import ago

pytestmark = pytest.mark.django_db

LEASES = reverse("admin:runlease_runlease_changelist")
RUNS = reverse("admin:runlease_run_changelist")

JOBS = 5_000
TICKS = 20_000


def insert(names, *, holder="''", token="NULL", expires="NULL"):
    return f"""
        INSERT INTO runlease_runlease (name, generation, paused, holder, host, paused_by,
                                       paused_reason, token, expires_at)
        SELECT name, 1, n %% 100 = 3, {holder}, {holder}, '', '', {token}, {expires}
          FROM ({names}) AS names (n, name) ORDER BY md5(name)
    """


@pytest.fixture(params=["analyzed", "just loaded"])
def long(request, db):
    """5,000 jobs that ran once each, and were declined before; one in 100 failed, as did all long
    ago; and one that ticks each second, and was declined in between."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE runlease_run, runlease_runlease")
        cursor.execute(
            insert("SELECT n, 'job-' || n FROM generate_series(1, %s) n UNION SELECT 0, 'ticker'"),
            [JOBS],
        )
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger, reason,
                                      started_at, finished_at, outcome, error, output)
            SELECT name, gen_random_uuid(), 1, 'h:1', 'h', 'runjob', '',
                   now() - make_interval(secs => age),
                   now() - make_interval(secs => age - 0.5), outcome, '', ''
              FROM (
                SELECT 'job-' || n, 90000 - n, 'failed' FROM generate_series(1, %(jobs)s) n
                UNION ALL
                SELECT 'job-' || n, 80000 - n, 'declined' FROM generate_series(1, %(jobs)s) n
                UNION ALL
                SELECT 'job-' || n, 70000 - n, CASE WHEN n %% 100 = 7 THEN 'lost' ELSE 'succeeded'
                       END FROM generate_series(1, %(jobs)s) n
                UNION ALL
                SELECT 'ticker', n, CASE WHEN n / 300 %% 10 = 3 THEN 'declined'
                       ELSE 'succeeded' END FROM generate_series(1, %(ticks)s) n
            ) AS each (name, age, outcome) ORDER BY age DESC
            """,
            {"jobs": JOBS, "ticks": TICKS},
        )
        if request.param == "analyzed":
            cursor.execute("ANALYZE runlease_run, runlease_runlease")


@pytest.fixture
def less(monkeypatch):
    """Less on a page, so that a table of moderate length is long."""
    for module in (base, runs):
        monkeypatch.setattr(module, "MOST", 100)
    monkeypatch.setattr(runs, "AMONG", 1_000)
    monkeypatch.setattr(lease_page, "DRAWN", 100)
    monkeypatch.setattr(lease_page, "COUNTED", 500)
    monkeypatch.setattr(situation, "MOST_TICKS", 500)
    monkeypatch.setattr(filters, "FAILURES", 200)
    monkeypatch.setattr(filters, "HOLDERS", 200)


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"p": "2"},
        {"outcome": "succeeded"},
        {"outcome": "declined"},
        {"outcome": "failed"},
        {"outcome": "failed", "within": "30d"},
        {"outcome": "abandoned"},
        {"outcome": "running"},
        {"within": "1h"},
        {"within": "30d"},
        {"outcome": "succeeded", "within": "30d"},
        {"lease": "ticker", "within": "30d"},
        {"lease": "ticker", "outcome": "declined", "within": "7d"},
        {"lease": "ticker", "outcome": "failed"},
        {"q": "ticker"},
        {"q": "ticker", "within": "30d"},
        {"q": "nothing"},
    ],
)
def test_a_list_of_runs_reads_no_more_of_them_than_it_looks_through(ops, long, less, query):
    assert rows_read(lambda: ops.get(RUNS, query))["runlease_run"] <= 1_500


@pytest.mark.parametrize("within", ["1h", "24h", "7d", "30d"])
def test_the_page_of_a_job_that_ticks_each_second_reads_its_newest_runs(ops, long, less, within):
    ticker = RunLease.objects.get(name="ticker")
    place = address(ticker)
    assert rows_read(lambda: ops.get(place, {"within": within}))["runlease_run"] <= 3_000


@pytest.fixture
def uneven(db):
    """100 jobs that ran 300 times each, in turn, and one that did as often as all of them. The
    planner takes a name for an average one."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE runlease_run")
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger, reason,
                                      started_at, finished_at, outcome, error, output)
            SELECT CASE WHEN n % 2 = 0 THEN 'ticker' ELSE 'job-' || n % 200 END,
                   gen_random_uuid(), 1, 'h:1', 'h', 'runjob', '',
                   now() - make_interval(secs => n), now() - make_interval(secs => n - 0.5),
                   'succeeded', '', '' FROM generate_series(60000, 1, -1) n
            """
        )
        cursor.execute("ANALYZE runlease_run")


def test_the_newest_runs_of_a_job_with_more_than_most_are_not_sorted_out_of_all(uneven):
    month = timedelta(days=30)
    read = rows_read(lambda: windows("default", ["ticker", "job-1"], month, 1_000))
    assert read["runlease_run"] <= 4_000
    filters = Filters(since=month)
    read = rows_read(lambda: search.read(search.newest_keys("ticker", filters, 1_000), "default"))
    assert read["runlease_run"] <= 2_000


@pytest.fixture
def many(long):
    """As many leases that are held, each on a host of its own."""
    with connection.cursor() as cursor:
        names = "SELECT n, 'held-' || n FROM generate_series(1, %s) n"
        expires = "now() + make_interval(hours => CASE WHEN n = 4 THEN -1 ELSE 1 END)"
        cursor.execute(
            insert(names, holder="'h' || n", token="gen_random_uuid()", expires=expires), [JOBS]
        )
        cursor.execute("ANALYZE runlease_runlease")


@pytest.mark.parametrize(
    "query",
    [
        {"state": "free"},
        {"state": "held"},
        {"state": "expired"},
        {"state": "paused"},
        {"host": "h7"},
        {"q": "job-777"},
        {"q": "nothing"},
        {"o": "-2"},
        {"outcome": "failed"},
        {"outcome": "lost"},
        {"outcome": "succeeded"},
        {"outcome": "lost", "state": "free", "q": "job"},
    ],
)
def test_a_list_of_leases_looks_at_each_once_at_most(ops, many, less, query):
    read = rows_read(lambda: ops.get(LEASES, query))
    # And once more at those of the page, and at some for the hosts to choose from.
    assert read["runlease_runlease"] <= 2 * JOBS + 1 + 600
    # Where more failed than are read: of each job its newest failure, and its newest success.
    many_failed = query == {"outcome": "failed"}
    assert read["runlease_run"] <= (2 * JOBS + 300 if many_failed else 5_000)


@pytest.mark.parametrize("query", [{}, {"p": "2"}, {"p": "99"}, {"o": "1"}, {"alerts": "none"}])
def test_a_list_of_leases_in_the_order_of_names_stops_at_the_last_it_counts(ops, many, less, query):
    assert rows_read(lambda: ops.get(LEASES, query))["runlease_runlease"] <= 1_000


def test_what_failed_of_all_jobs_is_not_read_to_find_what_failed_of_some(db, long):
    with connection.cursor() as cursor:
        # Among millions, what is rare is not in the statistics.
        cursor.execute("SET LOCAL default_statistics_target = 1")
        cursor.execute("ANALYZE runlease_run")
    plan, in_vain = work(lambda: recent("default", ["job-1", "job-2", "ticker"]))
    assert "runlease_run_unsuccessful" not in plan
    assert in_vain < 100, plan


# -- what the pages say of it


def test_a_list_says_among_how_many_runs_it_was_looked(ops, monkeypatch):
    monkeypatch.setattr(runs, "AMONG", 3)
    RunFactory(declined=True)
    RunFactory.create_batch(3)
    said = Page(ops.get(RUNS, {"outcome": "declined"})).text
    assert "0 runs" in said
    assert "among the 3 newest runs" in said
    for complete in ({}, {"outcome": "failed"}, {"outcome": "declined", "lease": "job"}):
        assert "among the" not in Page(ops.get(RUNS, complete)).text


def test_a_search_that_means_too_many_leases_says_so(ops, monkeypatch):
    monkeypatch.setattr(runs, "NAMES", 2)
    for name in ("job-a", "job-b", "job-c"):
        RunLeaseFactory(name=name)
        RunFactory(lease_name=name)
    said = Page(ops.get(RUNS, {"q": "job"})).text
    assert "2 runs" in said
    assert "More than 2 leases match" in said
    assert "More than" not in Page(ops.get(RUNS, {"q": "job-c"})).text


def test_a_search_finds_the_runs_of_a_lease_that_was_removed_by_its_whole_name(ops):
    RunFactory(lease_name="gone", holder="web9:1")
    assert "web9:1" in Page(ops.get(RUNS, {"q": "gone"})).text


def test_the_page_of_a_lease_says_how_many_runs_its_figures_are_told_from(ops, monkeypatch):
    monkeypatch.setattr(lease_page, "COUNTED", 2)
    lease = RunLeaseFactory(name="job")
    place = address(lease)
    RunFactory(lease_name="job")
    note = "durations and waits are those of the 2 newest"
    assert note not in Page(ops.get(place)).text
    RunFactory(lease_name="job")
    assert note in Page(ops.get(place)).text


def test_declines_since_the_last_start_are_counted_to_a_thousand(ops, monkeypatch):
    lease = RunLeaseFactory(name="job", held=True)
    monkeypatch.setattr(lease_page, "DECLINES", 2)
    RunFactory.create_batch(3, lease_name="job", declined=True, started_at=ago(-1))
    place = address(lease)
    assert "2 or more" in Page(ops.get(place)).text
    assert history.declines_since("default", "job", None) == 3


def test_statistics_of_the_newest_begin_where_these_do(db):
    for n in range(4):
        times = {"started_at": ago(100 - n), "finished_at": ago(100 - n - n)}
        RunFactory(lease_name="job", outcome="failed" if n == 0 else "succeeded", **times)
    everything = statistics("default", "job")
    newest = statistics_of_newest("default", "job", 3)
    assert (everything["runs"], newest["runs"]) == (4, 3)
    assert newest["success_rate"] == 1
    assert newest["since"] > everything["since"]
    enough = statistics_of_newest("default", "job", 5)
    assert enough["runs"] == 4
    assert enough["duration"] == everything["duration"]
