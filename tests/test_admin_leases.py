"""The list of leases in the admin: who holds what, for how long yet, and how its runs went."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from django_runlease.admin import filters, words
from django_runlease.admin.figures import percentile, recent
from django_runlease.models import RunLease

from .factories import AlertFactory, RunLeaseFactory, ran
from .pages import HOSTILE, Page
from .plans import count_queries, long_history, work
from .support import ago

__all__ = ["long_history"]

pytestmark = pytest.mark.django_db

ADDRESS = reverse("admin:runlease_runlease_changelist")


def page(client, **query):
    return Page(client.get(ADDRESS, query))


def names(client, **query):
    found = re.findall(
        r'<bdi class="runlease-name[^>]*>(job-\w+)</bdi>', page(client, **query).html
    )
    return sorted({name.removeprefix("job-") for name in found})


def held(**more):
    return RunLeaseFactory(
        **{
            "name": "job",
            "held": True,
            "claimed_at": ago(130),
            "renewed_at": ago(3),
            "expires_at": ago(-297.5),
            **more,
        }
    )


def test_a_held_lease_says_who_holds_it_for_how_long_and_until_when(ops):
    held()
    said = page(ops)
    for line in ("held for 2m [1-5]\\ds", "elsewhere:4711", "renewed \\d+s ago", "generation 1"):
        assert re.search(line, said.text)
    assert re.search(r"expires in 4m [1-5]\ds", said.text)
    (bar,) = said.all("rect", height="6", rx="2")[1:]
    assert 85 < float(bar["width"].rstrip("%")) < 100


def test_a_process_is_named_where_the_holder_does_not_name_it(ops):
    held(holder="the night shift")
    assert "process 4711 on elsewhere" in page(ops).text


def test_bars_say_nothing_besides_the_words_that_the_script_counts_down(ops):
    held(progress={"done": 3, "total": 4}, every=timedelta(seconds=100))
    ran(length=30)
    bars = page(ops).all("svg", **{"class": "runlease-bar"})
    assert [(bar.get("aria-hidden"), bar.get("aria-label")) for bar in bars] == [("true", None)] * 3


def test_progress_is_a_bar_with_its_message(ops):
    held(progress={"done": 3, "total": 4, "message": "invoice 1036"})
    said = page(ops)
    assert "75%, 3 of 4 done" in said.text
    assert "invoice 1036" in said.text


@pytest.mark.parametrize(
    "progress", [7, [], "x", {"done": -1, "total": 0}, {"done": {}, "total": [1]}, {"done": 1e400}]
)
def test_progress_that_makes_no_sense_is_no_error(ops, progress):
    held()
    RunLease.objects.update(progress=progress if progress != {"done": 1e400} else {"done": 10**400})
    assert "held for" in page(ops).text


def test_a_paused_lease_says_why_and_an_expired_one_since_when(ops):
    RunLeaseFactory(name="job-p", paused=True, paused_reason="provider is down")
    held(name="job-e", expires_at=ago(61))
    text = page(ops).text
    assert "paused provider is down" in text
    assert re.search(r"expired 1m( \d+s)? ago", text)
    assert "held for" not in text


def test_a_lease_that_is_held_but_not_renewed_stands_out(ops):
    held(name="job-late", renewed_at=ago(250))
    held(name="job-hand", renewed_at=ago(250), heartbeat=False)
    assert page(ops).text.count("not renewed") == 2, "its badge, and the filter"
    assert names(ops, state="stalled") == ["late"]
    assert names(ops, state="held") == ["hand"]


def test_the_last_run_is_the_newest_that_ended_and_was_one(ops):
    RunLeaseFactory(name="job")
    ran(outcome="failed", age=500, length=20)
    ran(age=400, trigger="bypass")
    ran(age=300, declined=True)
    ran(age=200, outcome="running", finished_at=None)
    text = page(ops).text
    assert re.search(r"failed 8m( \d+s)? ago took 20s", text)
    assert "0% of 1 run succeeded" in text


def test_success_and_duration_are_those_of_the_last_runs_against_the_interval(ops):
    RunLeaseFactory(name="job", every=timedelta(seconds=100))
    for n in range(1, 5):
        ran(length=30 * n, age=10_000 - n, outcome="lost" if n == 1 else "succeeded")
    ran(outcome="terminated", age=9_000, length=30)
    said = page(ops)
    assert "75% of 4 runs succeeded" in said.text
    assert "95% within 1m 54s 114% of the 1m 40s interval" in said.text
    assert said.all("svg", **{"class": "runlease-bar"})
    assert said.all("rect", **{"class": "runlease-mark"})[0]["x"] == "80%"
    assert said.all("rect", **{"class": "runlease-fill runlease-bad"})[-1]["width"] == "100%"


@pytest.mark.parametrize(("length", "tone"), [(79, "good"), (81, "warn"), (101, "bad")])
def test_the_bar_of_the_duration_warns_from_four_fifths_of_the_interval_on(ops, length, tone):
    RunLeaseFactory(name="job", every=timedelta(seconds=100))
    ran(length=length)
    bars = [bar for bar in page(ops).all("rect", height="6") if "runlease-fill" in bar["class"]]
    assert [bar["class"] for bar in bars] == [f"runlease-fill runlease-{tone}"]


def test_percentiles_are_those_of_postgresql():
    values = [float(n * n % 17) for n in range(23)]
    with connection.cursor() as cursor:
        for share in (0.0, 0.5, 0.95, 1.0):
            sql = "SELECT percentile_cont(%s) WITHIN GROUP (ORDER BY v) FROM unnest(%s) AS v"
            cursor.execute(sql, [share, values])
            assert percentile(values, share) == pytest.approx(cursor.fetchone()[0])
    assert percentile([], 0.5) is None


def test_thirty_durations_are_drawn_with_the_declined_ticks_between_them(ops):
    RunLeaseFactory(name="job")
    for n in range(40):
        ran(age=4000 - 100 * n, outcome="failed" if n == 39 else "succeeded")
    ran(age=3950, declined=True)
    ran(age=150, declined=True)
    ran(age=149, declined=True)
    said = page(ops)
    assert "30 runs, 29 succeeded, 1 failed, 2 declined ticks" in said.labels
    assert len(said.all("rect", **{"class": "runlease-tick"})) == 1 + 1, "one is of the legend"


def test_open_alerts_are_named_and_silenced_ones_say_so(ops):
    RunLeaseFactory(name="job")
    for n in range(3):
        ran(outcome="failed", age=500 + n)
    ran(declined=True, age=300)
    AlertFactory(lease_name="job", kind="contention", silenced_until=ago(-60))
    AlertFactory(lease_name="job", kind="ghost", resolved_at=ago(1))
    said = page(ops)
    failing = "failing (critical) 3 failures in a row, and none has ever succeeded"
    assert f"{failing} contention (silenced) (warning) 1 tick" in said.text
    assert said.all("bdi", title="3 failures in a row, and none has ever succeeded")
    assert "ghost" not in said.text


def test_what_is_critical_and_what_is_a_warning_have_signs_of_their_own():
    signs = [words.alert(severity, "x").split("</svg>")[0] for severity in ("critical", "warning")]
    assert len({re.sub('class=".*?"', "", sign) for sign in signs}) == 2


def test_hosts_that_are_not_offered_are_said_to_be_there(ops, monkeypatch):
    monkeypatch.setattr(filters, "HOSTS", 2)
    for n in range(2):
        held(name=f"job-{n}", host=f"web{n}")
    assert "the search finds the others" not in page(ops).text
    held(name="job-2", host="web2")
    said = page(ops)
    assert "By host, some of many: the search finds the others" in said.text
    offered = [link["href"] for link in said.all("a") if "?host=" in str(link.get("href"))]
    assert offered == ["?host=web0", "?host=web1"]


@pytest.fixture
def various(db):
    held(name="job-a", host="web1")
    ran(lease_name="job-a", outcome="failed", age=900)
    ran(lease_name="job-a", age=800)
    held(name="job-b", host="web2", holder="web2:7", expires_at=ago(5))
    ran(lease_name="job-b", outcome="failed", age=900)
    ran(lease_name="job-b", age=800, declined=True)
    ran(lease_name="job-b", age=700, trigger="bypass")
    RunLeaseFactory(name="job-c", paused=True)
    RunLeaseFactory(name="job-d", host="web1")
    AlertFactory(lease_name="job-c")
    AlertFactory(lease_name="job-d", resolved_at=ago(1))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": "held"}, "a"),
        ({"state": "expired"}, "b"),
        ({"state": "paused"}, "c"),
        ({"state": "free"}, "d"),
        ({"state": "<x>"}, "abcd"),
        ({"outcome": "succeeded"}, "a"),
        ({"outcome": "failed"}, "b"),
        ({"outcome": "lost"}, ""),
        ({"outcome": "declined"}, "abcd"),
        ({"host": "web1"}, "a"),
        ({"host": "nowhere"}, ""),
        ({"alerts": "open"}, "c"),
        ({"alerts": "none"}, "abd"),
        ({"q": "job-c"}, "c"),
        ({"q": "web2"}, "b"),
        ({"q": "web2", "state": "held"}, ""),
    ],
)
def test_filters_and_the_search_find_leases(ops, various, query, expected):
    found = names(ops, **query)
    assert found == list(expected)


def test_a_job_that_fails_each_second_hides_no_other_that_failed(ops, various, monkeypatch):
    monkeypatch.setattr("django_runlease.admin.filters.FAILURES", 5)
    RunLeaseFactory(name="job-e")
    for n in range(6):
        ran(lease_name="job-e", outcome="failed", age=100 - n, length=1)
    assert names(ops, outcome="failed") == ["b", "e"]
    assert names(ops, outcome="failed", q="job-b") == ["b"]
    ran(lease_name="job-e", age=50, length=1)
    assert names(ops, outcome="failed") == ["b"]
    ran(lease_name="job-b", outcome="lost", age=50, length=1)
    assert names(ops, outcome="failed") == []


@pytest.mark.parametrize("host", ["web1", "<b>nowhere</b>"])
def test_a_host_is_asked_for_also_while_nobody_holds_anything(ops, host):
    RunLeaseFactory(name="job-a", host="web1")
    assert names(ops, host=host) == []
    said = page(ops, host=host)
    assert "No lease is like that" in said.text
    assert host in said.text


def test_the_hosts_that_are_offered_are_those_that_hold_something_and_are_known(ops, various):
    held(name="job-e", host="")
    RunLeaseFactory(name="job-f", host="web3")
    offered = {link["href"] for link in page(ops).all("a") if "?host=" in str(link.get("href"))}
    assert offered == {"?host=web1", "?host=web2"}


def test_thirty_leases_take_as_many_queries_as_three(ops, various):
    few = count_queries(lambda: page(ops))
    for n in range(30):
        held(name=f"job-{n}", progress={"done": 1, "total": 2})
        ran(lease_name=f"job-{n}")
        ran(lease_name=f"job-{n}", declined=True)
        AlertFactory(lease_name=f"job-{n}")
    assert count_queries(lambda: page(ops)) == few <= 10


def test_a_long_history_is_read_by_indexes(ops, long_history):
    for n in range(20):
        RunLeaseFactory(name=f"job-{n}")
    plan, in_vain = work(lambda: recent("default", [f"job-{n}" for n in range(20)]))
    assert "Seq Scan on runlease_run" not in plan
    assert in_vain < 100


def test_hostile_text_stays_text_and_nothing_is_inline(ops):
    held(
        name=HOSTILE[:150].strip(),
        holder=HOSTILE,
        host=HOSTILE,
        paused=True,
        paused_reason=HOSTILE,
        progress={"done": 1, "total": 2, "message": HOSTILE},
    )
    AlertFactory(lease_name=HOSTILE[:150].strip(), kind="ghost", message=HOSTILE)
    said = page(ops)
    assert "<script>alert" not in said.html
    assert HOSTILE in said.text
    assert not said.refused


def test_instants_are_told_in_the_zone_of_the_reader(ops):
    RunLeaseFactory(name="job")
    run = ran(age=3600)
    run.refresh_from_db()
    with timezone.override("Asia/Tokyo"):
        expected = timezone.localtime(run.finished_at).strftime("%Y-%m-%d %H:%M:%S JST")
        said = page(ops)
    assert said.all("time", title=expected)


def test_no_lease_at_all_is_told_from_none_that_matches(ops):
    assert "No job has run yet. The first run of one adds it here; to start one:" in page(ops).text
    RunLeaseFactory(name="job")
    for query in ({"q": "x"}, {"state": "held"}):
        assert "No lease is like that" in page(ops, **query).text
        assert page(ops, **query).all("a", href="?")
    assert "No lease is like that" not in page(ops).text


def test_the_pictures_of_the_list_have_a_legend(ops):
    RunLeaseFactory(name="job")
    text = page(ops).text
    for line in ("the longer the higher", "ticks were declined here", "80% of the interval"):
        assert line in text


def test_a_long_name_is_whole_on_hover_where_it_is_cut(ops):
    held(name="n" * 41, holder="h" * 41)
    said = page(ops)
    for name in ("n" * 41, "h" * 41):
        assert said.all("bdi", title=name)
    RunLease.objects.update(name="n" * 40)
    assert not page(ops).all("bdi", title="n" * 40)


def test_a_list_of_which_some_leases_are_left_off_says_so(ops, monkeypatch):
    for module in ("base", "leases", "overview"):
        monkeypatch.setattr(f"django_runlease.admin.{module}.MOST", 3)
    pages = (ADDRESS, reverse("admin:runlease_runlease_overview"))
    for number in range(3):
        RunLeaseFactory(name=f"job-{number}")
    assert not any("Only the first" in Page(ops.get(each)).text for each in pages)
    for number in range(3, 5):
        RunLeaseFactory(name=f"job-{number}")
    assert names(ops) == ["0", "1", "2"]
    assert all("Only the first 3 leases are here" in Page(ops.get(each)).text for each in pages)
    assert "Only the first" not in page(ops, q="job-4").text
