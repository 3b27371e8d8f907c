"""Each kind of alert: its situation made for real, seen, and gone again; and the rules' edges."""

import json
import re
import shlex
import signal
import subprocess
from datetime import UTC, datetime, timedelta
from functools import partial
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_runlease import LeaseLost, alerts, claim, jobs, lease, store
from django_runlease.alerts import RULES, evaluate, judge
from django_runlease.jobs import job
from django_runlease.models import AlertKind, Outcome, Run, RunLease, Severity
from django_runlease.situation import MOST_FAILURES, Situation
from django_runlease.store import Closing
from django_runlease.testing import expire_now, held_by_another, take_over_now, unfenced
from django_runlease.thresholds import thresholds

from .factories import RunFactory, RunLeaseFactory
from .plans import emptied
from .programs import ended, guards, start
from .support import ago, elsewhere, expire, manage, spawn_python, wait_for

NAME = "job"


def found(name=None):
    """The alerts by kind: their severities."""
    return {
        finding.kind.value: finding.severity.value
        for finding in evaluate("default", name and [name])
    }


def finding(kind):
    (one,) = [each for each in evaluate("default") if each.kind == kind]
    assert one.message == one.message.strip() != ""
    assert len((one.message + one.remedy).splitlines()) == 1
    assert re.search("`manage.py [a-z -]+ job", one.remedy), one.remedy
    return one


def run(outcome=Outcome.SUCCEEDED, **terms):
    """A whole run."""
    held = claim(NAME, **{"ttl": 60, "heartbeat": False, **terms})
    held.end(Closing(outcome=outcome))
    return Run.objects.get(pk=held.run_id)


def set_back(seconds, *fields):
    """Let that much time have passed since these moments of the lease."""
    RunLease.objects.update(**{field: ago(seconds) for field in fields})


def decline(times=1, **options):
    for _ in range(times):
        assert not claim(NAME, **options)


@pytest.fixture
def held():
    """A holder without a heartbeat, until the end of the test."""
    held = claim(NAME, ttl="10m", every="1h", heartbeat=False)
    yield held
    held.release()


# -- each situation, for real


@pytest.mark.django_db(transaction=True)
def test_nothing_is_wrong_with_a_job_that_runs_well():
    run(every="1h")
    with lease(NAME, every="1h"):
        assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_overrun_a_run_that_goes_on_for_most_of_its_interval_and_longer(held):
    set_back(47 * 60, "claimed_at")
    assert found() == {}
    set_back(49 * 60, "claimed_at")
    assert finding("overrun").severity == Severity.WARNING
    assert re.search(
        r"running for 49m( \d+s)?, 8[12] % of every \(1h\)", finding("overrun").message
    )
    set_back(61 * 60, "claimed_at")
    assert found() == {"overrun": "critical"}


@pytest.mark.django_db(transaction=True)
def test_overrun_the_last_run_until_a_shorter_one_has_ended():
    first = run(every="1h")
    Run.objects.filter(pk=first.pk).update(started_at=ago(55.5 * 60))
    set_back(55.5 * 60, "claimed_at")
    assert found() == {"overrun": "warning"}
    assert "took, in its last run, 55m" in finding("overrun").message
    with lease(NAME, every="1h"):
        assert found() == {"overrun": "warning"}
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_contention_a_tick_that_was_declined_of_late(held):
    decline()
    assert found() == {"contention": "warning"}
    assert finding("contention").message.startswith("1 tick declined as held or busy in the last")
    Run.objects.filter(outcome=Outcome.DECLINED).update(started_at=ago(59 * 60))
    assert found() == {"contention": "warning"}
    Run.objects.filter(outcome=Outcome.DECLINED).update(started_at=ago(61 * 60))
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_another_host_ran_is_neither_contention_nor_starvation(settings):
    settings.RUNLEASE = {"ALERTS": {"starved": {"count": 2}}}
    tick = datetime(2026, 1, 1, tzinfo=UTC)
    with held_by_another(NAME):
        pass
    held = claim(NAME, tick=tick)
    decline(5, tick=tick)
    assert found() == {}
    decline(2, tick=tick + timedelta(minutes=1))
    assert found() == {"contention": "warning"}
    assert finding("contention").message.startswith("1 tick ")
    held.release()
    # A host that comes too late.
    decline(1, tick=tick)
    assert finding("contention").message.startswith("1 tick ")


@pytest.mark.django_db(transaction=True)
def test_starved_three_ticks_in_a_row_since_the_last_start(held):
    decline(2)
    assert "starved" not in found()
    decline()
    assert found() == {"contention": "warning", "starved": "critical"}
    assert finding("starved").message.startswith("3 ticks in a row declined")
    held.release()
    run()
    assert "starved" not in found()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("reason", ["paused", "not_due", "same_tick"])
def test_ticks_that_are_declined_for_other_reasons_are_no_starvation_or_contention(reason):
    tick = datetime(2026, 1, 1, tzinfo=UTC)
    run(tick=tick, at_least="1m" if reason == "not_due" else None)
    if reason == "paused":
        store.pause(NAME, "default", by="ops")
    decline(4, tick=tick if reason == "same_tick" else None)
    assert {row.reason for row in Run.objects.filter(outcome=Outcome.DECLINED)} == {reason}
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_overdue_no_start_within_the_interval_and_a_tenth_of_it():
    run(every="1h")
    set_back(65 * 60, "claimed_at")
    assert found() == {}
    set_back(67 * 60, "claimed_at")
    assert found() == {"overdue": "critical"}
    assert re.search(
        r"no start for 1h 7m, where one is due every 1h \(and a grace of 6m\)",
        finding("overdue").message,
    )
    run(every="1h")
    assert found() == {}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("every", "age", "is_overdue"), [(60, 90, False), (60, 150, True)])
def test_the_grace_of_a_short_interval_is_a_minute(every, age, is_overdue):
    run(every=every)
    set_back(age, "claimed_at")
    assert ("overdue" in found()) == is_overdue


@pytest.mark.django_db(transaction=True)
def test_a_paused_lease_is_not_overdue_and_neither_is_a_resumed_one_before_its_next_tick():
    run(every="1h")
    store.pause(NAME, "default", by="ops")
    set_back(3 * 3600, "claimed_at")
    assert found() == {}
    decline()
    store.resume(NAME, "default", by="ops")
    assert found() == {}
    Run.objects.filter(outcome=Outcome.DECLINED).update(started_at=ago(2 * 3600))
    assert found() == {"overdue": "critical"}


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_held_is_not_overdue_but_may_overrun(held):
    set_back(10 * 3600, "claimed_at")
    assert found() == {"overrun": "critical"}


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_has_never_been_claimed_is_well():
    store.pause(NAME, "default", by="ops")
    store.resume(NAME, "default", by="ops")
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_failing_three_failures_in_a_row():
    run()
    for count in (1, 2):
        run(Outcome.FAILED)
        assert found() == {}, count
    run(Outcome.TIMED_OUT)
    assert found() == {"failing": "critical"}
    assert re.match(
        "3 failures in a row, the last success began .* ago", finding("failing").message
    )
    run()
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_neither_a_deploy_nor_declines_nor_a_bypass_end_or_lengthen_a_row_of_failures():
    run(Outcome.FAILED)
    run(Outcome.FAILED)
    run(Outcome.TERMINATED)
    with lease(NAME):
        decline()
    Run.objects.filter(outcome=Outcome.SUCCEEDED).delete()
    with unfenced(NAME, "by hand"):
        pass
    assert "failing" not in found()
    run(Outcome.FAILED)
    assert "failing" in found()
    assert "none has ever succeeded" in finding("failing").message


@pytest.mark.django_db(transaction=True)
def test_failing_by_real_jobs_on_the_command_line():
    for _ in range(3):
        assert manage("runjob", NAME, "--", "false").returncode == 1
    assert found() == {"failing": "critical"}
    assert manage("runjob", NAME, "--", "true").returncode == 0
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_stuck_a_holder_that_is_frozen_between_its_beats():
    code = f"""
import sys, time
from django_runlease import claim
held = claim({NAME!r}, ttl=600)
print("up", flush=True)
sys.stdin.read()
"""
    process = spawn_python(code, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGSTOP)
        set_back(370, "renewed_at")
        assert found() == {}
        set_back(410, "renewed_at")
        assert found() == {"stuck": "critical"}
        assert re.search(r"renewed it 6m \d+s ago: it hangs", finding("stuck").message)
    finally:
        process.kill()
        process.communicate()
    assert found() == {"ghost": "warning"}


@pytest.mark.django_db(transaction=True)
def test_a_holder_that_renews_by_itself_is_not_stuck_because_it_is_late(held):
    set_back(9 * 60, "renewed_at")
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_stuck_a_lease_that_expires_later_than_its_ttl_since_the_clock_was_set_back(held):
    RunLease.objects.update(expires_at=ago(-660))
    assert found() == {"stuck": "critical"}
    assert "the database's clock was set back" in finding("stuck").message
    held.renew()
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_ghost_a_lease_that_expired_and_nobody_took_over():
    held = claim(NAME, ttl=60, heartbeat=False)
    expire_now(held)
    assert found() == {"ghost": "warning"}
    assert re.search("the lease of .* expired .* ago, and nobody", finding("ghost").message)
    run()
    assert "ghost" not in found()
    assert not held.release()


@pytest.mark.django_db
def test_the_name_of_a_holder_turns_no_sentence_around():
    RunLeaseFactory(name=NAME, held=True, holder="web\N{RIGHT-TO-LEFT OVERRIDE}1:7")
    expire(NAME)
    assert "of web\N{REPLACEMENT CHARACTER}1:7 expired" in finding("ghost").message


@pytest.mark.django_db(transaction=True)
def test_ghost_a_holder_that_was_killed_is_seen_at_once_on_its_kernel():
    process = start("sleep", "600", options=("--ttl", "10m"), name=NAME)
    with ended(process):
        wait_for(RunLease.objects.filter(holder_process__has_key="group").exists)
    wait_for(lambda: found() == {"ghost": "warning"})
    assert "is gone, and nobody has taken over" in finding("ghost").message
    assert manage("runjob", NAME, "--", "true").returncode == 0
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_ghost_a_program_that_has_outlived_its_lease_is_named_and_its_run_stays_open():
    """Its runjob and its guard were both killed, so nothing has ended it."""
    process = start("sleep", "600", options=("--ttl", "10m"), name=NAME)
    wait_for(RunLease.objects.filter(holder_process__has_key="group").exists)
    group = RunLease.objects.get().holder_process["group"]
    with ended(process, [group]):
        guard = wait_for(lambda: guards(process))[0]
        process.send_signal(signal.SIGSTOP)
        guard.kill()
        process.kill()
        process.communicate()
        assert found() == {}, "its group lives"
        expire(NAME)
        assert f"while the process group {group} lives" in finding("ghost").message
        assert store.close_dead_runs("default") == []
    wait_for(lambda: store.close_dead_runs("default"))
    assert "nobody has taken over" in finding("ghost").message


@pytest.mark.django_db(transaction=True)
def test_lost_a_run_that_lost_its_lease_until_the_next_success():
    with pytest.raises(LeaseLost), lease(NAME, ttl=60, heartbeat=False) as held:
        expire_now(held)
        held.check()
    assert found() == {"lost": "critical"}
    assert "lost its lease, and none has ever succeeded" in finding("lost").message
    run(Outcome.FAILED)
    assert found() == {"lost": "critical"}
    run()
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_uncertain_an_action_whose_worker_died_until_it_is_confirmed():
    with lease(NAME, heartbeat=False) as held:
        with held.effect("charge", 1):
            assert found() == {}, "its holder is at it"
        with pytest.raises(ZeroDivisionError), held.effect("charge", 7):
            raise ZeroDivisionError
    assert found() == {"uncertain": "warning"}
    assert finding("uncertain").message.startswith("1 external action begun")
    with lease(NAME, heartbeat=False) as held:
        assert found() == {"uncertain": "warning"}, "another attempt's"
        with held.effect("charge", 7):
            assert found() == {}
    assert found() == {}


@pytest.mark.django_db(transaction=True)
def test_an_action_is_uncertain_also_while_its_dead_holder_has_the_lease():
    held = claim(NAME, heartbeat=False)
    pending = held.effect("charge", 7)
    pending.__enter__()
    assert found() == {}
    expire_now(NAME)
    assert found() == {"ghost": "warning", "uncertain": "warning"}
    take_over_now(NAME)
    assert "uncertain" in found()
    with pytest.raises(LeaseLost):
        pending.__exit__(None, None, None)
    held.release()


# -- the rules alone


@pytest.mark.parametrize(
    ("rule", "keys", "facts", "severities"),
    [
        ("overrun", {"share": 0.5}, {"every": 100.0, "last_duration": 51.0}, ["warning"]),
        ("overrun", {"share": 1.5}, {"every": 100.0, "last_duration": 149.0}, []),
        ("overrun", {"share": 1.5}, {"every": 100.0, "last_duration": 151.0}, ["critical"]),
        ("overrun", None, {"last_duration": 151.0}, []),
        ("overrun", None, {"every": 100.0, "started_ago": 500.0}, ["critical"]),
        ("contention", {"count": 3}, {"contended": 2}, []),
        ("contention", {"count": 3}, {"contended": 3}, ["warning"]),
        ("starved", {"count": 1}, {"starved": 1}, ["critical"]),
        ("overdue", {"grace": "1s"}, {"every": 10.0, "started_ago": 12.0}, ["critical"]),
        ("overdue", {"grace": "5s"}, {"every": 10.0, "started_ago": 12.0}, []),
        ("overdue", None, {"started_ago": 1e9}, []),
        ("failing", {"count": 1}, {"failures": 1}, ["critical"]),
        ("failing", {"count": 10 * MOST_FAILURES}, {"failures": MOST_FAILURES}, ["critical"]),
        ("stuck", None, {"expires_in": 9.0, "ttl": 10.0, "renewed_ago": 7.0}, ["critical"]),
        ("stuck", None, {"expires_in": 9.0, "ttl": 10.0, "renewed_ago": 6.0}, []),
        ("stuck", None, {"expires_in": float("inf"), "ttl": 10.0}, ["critical"]),
        ("stuck", None, {"expires_in": -9.0, "ttl": 10.0, "renewed_ago": 99.0}, []),
        ("ghost", None, {"expires_in": -9.0, "ttl": 10.0, "renewed_ago": 99.0}, ["warning"]),
    ],
)
def test_the_thresholds_decide(rule, keys, facts, severities):
    if rule == "overrun" and "started_ago" in facts:
        facts = {**facts, "expires_in": 1.0}
    others = dict.fromkeys(AlertKind.values, False)
    limits = thresholds(("test", {**others, rule: keys or True}))
    found = judge(Situation(name="a", **facts), limits)
    assert [one.severity.value for one in found] == severities


def test_there_is_one_rule_for_each_kind():
    assert list(RULES) == list(AlertKind)


def test_a_rule_that_is_off_finds_nothing():
    limits = thresholds(("test", dict.fromkeys(AlertKind.values, False)))
    assert judge(Situation(name="a", failures=9, lost_ago=1.0, uncertain=1), limits) == []


@pytest.mark.parametrize("name", ["two words", "it's", "a;b"])
def test_a_remedy_can_be_pasted_into_a_shell(name):
    (one,) = judge(Situation(name=name, uncertain=1), thresholds())
    command = re.search("`manage.py (.*)`", one.remedy)[1]
    words = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    )
    assert words.stdout.splitlines() == ["runlease", "effects", "--uncertain", name]


@pytest.mark.django_db
def test_a_remedy_for_a_name_that_looks_like_an_option_runs():
    RunLeaseFactory(name="--json")
    (one,) = judge(Situation(name="--json", uncertain=1), thresholds())
    _, *words = shlex.split(re.search("`manage.py (.*)`", one.remedy)[1])
    out = StringIO()
    call_command("runlease", *words, stdout=out)
    assert out.getvalue() == "No effect is uncertain.\n"


@pytest.mark.parametrize("name", ["clearsessions", NAME, "--json"])
@pytest.mark.parametrize(
    "situation", [{"expires_in": -5}, {"every": 60, "started_ago": 999}], ids=["ghost", "overdue"]
)
@pytest.mark.django_db(transaction=True)
def test_a_remedy_starts_only_what_runjob_knows_and_runs_for_others_too(name, situation):
    RunLeaseFactory(name=name)
    (one,) = judge(Situation(name=name, **situation), thresholds())
    action, *words = shlex.split(re.search("`manage.py (.*)`", one.remedy)[1])
    assert action == ("runjob" if name == "clearsessions" else "runlease")
    call_command(action, *words, stdout=StringIO())


def test_a_remedy_names_the_database_that_a_command_would_not_ask_by_itself(other, settings):
    RunLease.objects.using(other).create(name=NAME)
    for _ in range(3):
        Run.objects.using(other).create(
            lease_name=NAME, outcome=Outcome.FAILED, started_at=ago(60), finished_at=ago(50)
        )
    (one,) = evaluate(other)
    _, *words = shlex.split(re.search("`manage.py (.*)`", one.remedy)[1])
    out = StringIO()
    call_command("runlease", *words, "--json", stdout=out)
    assert len(json.loads(out.getvalue())) == 3
    (ghost,) = judge(Situation(name="clearsessions", using=other, expires_in=-5), thresholds())
    assert f"`manage.py runjob --using {other} clearsessions`" in ghost.remedy
    settings.RUNLEASE = {"DATABASE": other}
    (one,) = evaluate(other)
    assert "--using" not in one.remedy


def test_a_check_of_a_database_asks_nothing_of_the_one_that_is_used_by_default(other, settings):
    """Which may be none that can hold leases."""
    settings.RUNLEASE = {"DATABASE": "missing"}
    assert evaluate(other) == []


# -- whose thresholds


@pytest.fixture
def no_jobs(monkeypatch):
    jobs.registered()
    monkeypatch.setattr(jobs, "_registered", {})


@pytest.mark.django_db
def test_thresholds_come_from_the_decorator_else_the_entry_else_the_setting(settings, no_jobs):
    settings.RUNLEASE = {
        "ALERTS": {"failing": {"count": 1}, "contention": {"count": 2, "window": "2h"}},
        "JOBS": {
            "b": {"alerts": {"failing": {"count": 2}, "contention": {"window": "10m"}}},
            "c": {"alerts": {"failing": {"count": 2}, "contention": False}},
        },
    }
    job("c", alerts={"failing": {"count": 3}})(print)
    for name in "abc":
        RunLeaseFactory(name=name)
        RunFactory.create_batch(2, lease_name=name, outcome=Outcome.FAILED)
        RunFactory.create_batch(2, lease_name=name, declined=True, started_at=ago(3600))
    kinds = {name: set(found(name)) for name in "abc"}
    assert kinds == {"a": {"failing", "contention"}, "b": {"failing"}, "c": set()}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ALERTS": {"failling": {}}}, r'RUNLEASE\["ALERTS"\]: unknown rule .*"failing"'),
        ({"ALERTS": 3}, r'RUNLEASE\["ALERTS"\] is a dict'),
        ({"JOBS": {"x": {"alerts": 3}}}, r'RUNLEASE\["JOBS"\]\["x"\]\["alerts"\] is a dict'),
    ],
)
def test_a_mistake_in_the_settings_is_said_and_not_passed_over(settings, setting, message):
    settings.RUNLEASE = setting
    with pytest.raises(ValueError, match=message):
        evaluate("default")


def test_a_mistake_in_a_decorator_is_said_at_once(no_jobs):
    with pytest.raises(ValueError, match=r'job \'x\': alerts\["failing"\]\["count"\]: 0 is not'):
        job("x", alerts={"failing": {"count": 0}})


# -- how it is read


@pytest.mark.django_db
def test_all_leases_are_judged_in_one_statement(django_assert_num_queries):
    for rows in (1, 30):
        for lease_ in RunLeaseFactory.create_batch(rows):
            RunFactory.create_batch(3, lease_name=lease_.name, outcome=Outcome.FAILED)
        with django_assert_num_queries(1):
            assert evaluate("default")


@pytest.mark.django_db
def test_a_lease_alone_can_be_judged():
    for name in ("a", "b"):
        RunLeaseFactory(name=name)
        RunFactory.create_batch(3, lease_name=name, outcome=Outcome.FAILED)
    assert {one.lease_name for one in evaluate("default")} == {"a", "b"}
    assert {one.lease_name for one in evaluate("default", ["b"])} == {"b"}
    assert evaluate("default", ["c"]) == []


def plan_nodes(plan):
    yield plan
    for below in plan.get("Plans", []):
        yield from plan_nodes(below)


@pytest.mark.django_db
@pytest.mark.parametrize("name", [None, "job-7"])
def test_the_situation_is_read_by_indexes_whatever_the_history_holds(name):
    emptied("runlease_run", "runlease_runlease", "runlease_effect")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                                      started_at, finished_at, outcome, reason, error, output)
            SELECT 'job-' || n %% 20, NULL, n, 'h', 'h', 'api',
                   now() - make_interval(secs => 60 * (40000 - n)),
                   now() - make_interval(secs => 60 * (40000 - n) - 5),
                   (ARRAY['succeeded', 'failed', 'declined', 'lost'])[1 + n / 20 %% 4],
                   'held', '', ''
              FROM generate_series(1, 40000) AS n;
            INSERT INTO runlease_runlease (name, generation, holder, host, claimed_at, paused,
                                           paused_by, paused_reason)
            SELECT 'job-' || n, 1, '', '', now(), false, '', '' FROM generate_series(0, 19) AS n;
            INSERT INTO runlease_effect (lease_name, kind, key, idempotency_key, state, generation,
                                         attempts, reason, started_at)
            SELECT 'job-' || n %% 20, 'charge', n, gen_random_uuid(), 'confirmed', 1, 1, '', now()
              FROM generate_series(1, 20000) AS n;
            """,
            [],
        )
        cursor.execute("ANALYZE runlease_run; ANALYZE runlease_runlease; ANALYZE runlease_effect")
        with CaptureQueriesContext(connection) as captured:
            evaluate("default", [name])
        (query,) = captured
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + query["sql"])
        ((plan,),) = cursor.fetchall()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    reads = [node for node in plan_nodes(plan[0]["Plan"]) if "Relation Name" in node]
    of_runs = [node for node in reads if node["Relation Name"] != "runlease_runlease"]
    assert len(of_runs) >= 6
    for node in of_runs:
        assert "Index" in node["Node Type"] or "Bitmap" in node["Node Type"], node
        # For one lease, never its whole history.
        assert node["Actual Rows"] + node.get("Rows Removed by Filter", 0) < 200, node


@pytest.mark.django_db
def test_the_declines_since_the_last_start_are_not_searched_for_its_run_and_its_failures():
    emptied("runlease_run", "runlease_runlease")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runlease_run (lease_name, token, generation, holder, host, trigger,
                                      started_at, finished_at, outcome, reason, error, output)
            SELECT 'job', NULL, n, 'h', 'h', 'api', now() - make_interval(secs => 20000 - n),
                   now(), CASE WHEN n < 10 THEN 'failed' ELSE 'declined' END, 'paused', '', ''
              FROM generate_series(1, 20000) AS n;
            INSERT INTO runlease_runlease (name, generation, holder, host, claimed_at, paused,
                                           paused_by, paused_reason)
            SELECT 'job', 1, '', '', now() - make_interval(secs => 19990), false, '', '';
            """,
            [],
        )
        cursor.execute("ANALYZE runlease_run; ANALYZE runlease_runlease")
        with CaptureQueriesContext(connection) as captured:
            assert found() == {"failing": "critical"}
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + captured[0]["sql"])
        ((plan,),) = cursor.fetchall()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    newest = [node for node in plan_nodes(plan[0]["Plan"]) if node["Node Type"] == "Limit"]
    assert len(newest) == 5
    for node in plan_nodes({"Node Type": "", "Plans": newest}):
        assert node.get("Rows Removed by Filter", 0) < 10, node


@pytest.mark.django_db(transaction=True)
def test_the_decision_is_read_where_leases_are_decided(settings):
    """Its own statement, and no queryset that a router could send to a replica."""

    class Router:
        def db_for_read(self, model, **hints):
            raise AssertionError("a replica")

    settings.DATABASE_ROUTERS = [Router()]
    assert elsewhere(partial(alerts.evaluate, "default")) == []
