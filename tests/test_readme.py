"""What the README says is what the code does."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import tomllib
import unittest
from datetime import timedelta
from io import StringIO
from typing import Any
from unittest.mock import Mock

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import call_command, load_command_class
from django.db import DatabaseError, connection, transaction
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ProjectState
from django.dispatch import Signal
from django.test import override_settings
from django.utils import timezone

import django_runlease
from django_runlease import (
    alerts,
    clock,
    incidents,
    jobs,
    log,
    metrics,
    runner,
    signals,
    store,
    triggers,
)
from django_runlease.card import ACTIONS_SHOWN, DECLINES_SHOWN, RUNS_SHOWN
from django_runlease.claiming import Options
from django_runlease.conf import KEYS, Conf
from django_runlease.exceptions import DeclineReason
from django_runlease.history import RUNS_SHOWN as RUNS_READ
from django_runlease.holder import this_process
from django_runlease.models import ActionKind, Effect, Outcome, Run
from django_runlease.testing import take_over_now
from django_runlease.thresholds import RULES
from example_project.billing.models import Invoice

from .factories import AlertFactory, InvoiceFactory, RunFactory, RunLeaseFactory
from .support import ROOT, ago, manage

README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", README, re.M | re.S)
    assert found, f"the README has no section {title!r}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def rows(text: str, heading: str) -> list[list[str]]:
    """The rows of the table whose first column is called *heading*."""
    lines = text[text.index(f"| {heading} |") :].splitlines()[2:]
    table = lines[: [*map(bool, lines), False].index(False)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def words(text: str) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("title", ["Try it", "Run the tests"])
def test_setting_up_is_one_line_to_paste(title):
    (block,) = blocks(section(title), "sh")
    assert len(block.strip().splitlines()) == 1


def test_the_first_screen_says_what_is_not_promised():
    first_screen = README[: README.index("## Try it")]
    assert "It does not promise" in first_screen
    assert "Expiry is not cancellation" in first_screen
    assert not re.search("exactly once|bulletproof", README, re.I)


def test_the_versions_named_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == django_runlease.__version__
    python, django = project["requires-python"][2:], project["dependencies"][0][len("django>=") :]
    assert f"Needs Python {python}+, Django {django}+" in README


def test_the_options_of_runjob_are_those_in_the_table():
    parser = load_command_class("django_runlease", "runjob").create_parser("manage.py", "runjob")
    django_own = load_command_class("django.core", "check").create_parser("manage.py", "check")
    own = set(parser._option_string_actions) - set(django_own._option_string_actions)
    told = {
        word.split()[0]
        for first, _ in rows(section("Run a job from cron"), "Option of `runjob`")
        for word in words(first)
    }
    assert told == own


def test_the_exit_codes_are_those_in_the_table():
    told = {int(code) for first, _ in rows(README, "Exit code") for code in first.split(",")}
    own = (runner.FAILED, runner.USAGE, runner.UNAVAILABLE, runner.LOST, runner.CONFLICT)
    assert told == {0, *own, runner.TIMED_OUT, 130, 143}


def test_the_terms_are_those_in_the_table():
    told = {word for first, _ in rows(README, "Term") for word in words(first)}
    assert told == set(Options.__annotations__)


def test_the_settings_and_their_defaults_are_those_in_the_table():
    namespace: dict[str, Any] = {}
    told = {
        words(key).pop(): eval(words(default).pop(), namespace)
        for key, default, _ in rows(section("Settings"), "Key")
    }
    assert told == {key: getattr(Conf, key) for key in KEYS}


def test_all_reasons_of_a_decline_are_told():
    assert set(DeclineReason.__args__) <= words(section("Use a lease in code"))


def test_every_public_name_of_the_readme_is_public():
    for block in blocks(README, "python"):
        for names in re.findall(r"^from django_runlease import (.+)$", block, re.M):
            assert set(names.split(", ")) <= set(django_runlease.__all__)


@pytest.fixture
def no_jobs(monkeypatch):
    jobs.registered()
    monkeypatch.setattr(jobs, "_registered", {})


@pytest.mark.django_db
def test_the_job_of_the_readme_runs(no_jobs):
    (block, settings) = blocks(section("Run a job from cron"), "python")
    due = Mock()
    invoices = Mock(**{"objects.filter.return_value": [due]})
    exec(block, {"Invoice": invoices, "__name__": "readme"})
    ((entry,),) = jobs._registered.values()
    with django_runlease.lease("charge_due_invoices") as held:
        entry.function(held)
    due.mark_as_charged.assert_called_once_with()
    with override_settings(**_executed(settings)):
        assert run_checks(tags=["runlease"]) == []


@pytest.mark.django_db(transaction=True)
def test_a_program_runs_under_a_lease_as_written():
    (block,) = blocks(section("Run a job from cron"), "console")
    prompt, program, *arguments = shlex.split(block)
    assert (prompt, program) == ("$", "manage.py")
    done = manage(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "charging\n", "done\n")
    assert sorted(Run.objects.get().output.split()) == ["charging", "done"]


@pytest.mark.django_db
def test_the_lines_on_leases_in_code_work_as_written():
    (block,) = blocks(section("Use a lease in code"), "python")
    invoice = Mock()
    namespace = _executed(block, invoice=invoice)
    invoice.save.assert_called_once_with()
    assert namespace["build_reports"]() is None
    assert not namespace["held"].release(), "the block has released it"


OUTLIVED = "What happens when a worker outlives its lease"


@pytest.mark.django_db(transaction=True)
def test_the_tools_for_a_worker_that_outlives_its_lease_work_and_refuse_as_written():
    tools, _ = blocks(section(OUTLIVED), "python")
    invoice = InvoiceFactory()
    provider = Mock(**{"charge.return_value": "ch_1"})
    names = {"Invoice": Invoice, "invoice": invoice, "now": timezone.now(), "provider": provider}
    with django_runlease.lease("job", heartbeat=False) as held:
        for _ in range(2):
            _executed(tools, held=held, **names)
        provider.charge.assert_called_once_with(1250, key=Effect.objects.get().idempotency_key)
        invoice.refresh_from_db()
        assert (invoice.charged_by, invoice.charged_at) == ("the new worker", names["now"])
    late = django_runlease.claim("job", heartbeat=False)
    take_over_now(late)
    for tool in re.split(r"^\n", tools, flags=re.M):
        with pytest.raises(django_runlease.LeaseLost):
            _executed(tool, held=late, **names)
    assert late.release() is False
    told = {word for first, *_ in rows(section(OUTLIVED), "Tool") for word in words(first)}
    assert {name for name in dir(held) if name.startswith(("fence", "effect"))} == {
        re.split(r"[.(]", word)[1] for word in told if word.startswith("held.")
    }


@pytest.mark.django_db
def test_the_migration_and_the_correction_by_hand_work_as_written():
    _, migration = blocks(section(OUTLIVED), "python")
    (correction,) = blocks(section(OUTLIVED), "sql")
    migration = _executed(migration, __name__="readme")["Migration"]("0002_x", "billing")
    assert set(migration.dependencies) <= set(MigrationLoader(connection).graph.nodes)
    invoice = InvoiceFactory()
    state = ProjectState.from_apps(apps)
    with connection.schema_editor() as editor:
        migration.apply(state, editor)
    with connection.cursor() as cursor:
        begin, *statements, commit = correction.strip().splitlines()
        assert (begin, commit) == ("BEGIN;", "COMMIT;")
        with pytest.raises(DatabaseError, match='in a fence of the lease "charge_due_invoices"'):
            with transaction.atomic():
                cursor.execute(statements[-1])
        for statement in statements:
            cursor.execute(statement)
    invoice.refresh_from_db()
    assert invoice.cents == 1900
    assert Run.objects.get().reason == "a wrong amount"
    (drop,) = re.findall(r"`(DropFence\(.+?\))`", section(OUTLIVED))
    with connection.schema_editor() as editor:
        eval(drop, vars(triggers)).database_forwards("billing", editor, state, state)
    invoice.delete()


@pytest.mark.django_db(transaction=True)
def test_the_uncertain_effects_are_listed_as_written():
    (block,) = blocks(section(OUTLIVED), "console")
    with django_runlease.lease("charge_due_invoices", heartbeat=False) as held:
        with pytest.raises(ZeroDivisionError), held.effect("charge", 7):
            raise ZeroDivisionError
    done = manage(*shlex.split(block)[2:])
    assert "charge 7" in done.stdout


@pytest.mark.django_db
def test_the_test_case_of_the_readme_passes():
    (block,) = blocks(section("Test your jobs"), "python")
    namespace = _executed(block, __name__="readme")
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(namespace["ChargeTests"])
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 2
    assert result.wasSuccessful(), result.errors + result.failures


OPERATORS = "Who holds what"
WRONG = "Know when something is wrong"


def test_the_alerts_with_their_keys_and_defaults_are_those_in_the_table():
    told = {}
    for kind, _, _, keys in rows(section(WRONG), "Alert"):
        values = [part.split("`") for part in keys.split(":")[0].split(",") if part.strip()]
        told[words(kind).pop()] = {key: ast.literal_eval(value.strip()) for _, key, value in values}
    assert told == {
        rule: {key: known.default for key, known in keys.items()} for rule, keys in RULES.items()
    }


def test_the_rules_of_the_readme_are_sound(settings):
    thresholds_of_all, _ = blocks(section(WRONG), "python")
    settings.RUNLEASE = _executed(thresholds_of_all)["RUNLEASE"]
    assert run_checks(tags=["runlease"]) == []
    limits, own = alerts._limits()
    assert "ghost" not in limits
    assert own["clearsessions"]["overrun"] == {"share": 0.5}
    assert own["clearsessions"]["contention"] == {"count": 5, "window": 3600}
    (call,) = re.findall(r"`@(job\(.*alerts=.*\))`", section(WRONG))
    assert eval(call, {"job": django_runlease.job})


@pytest.mark.django_db(transaction=True)
def test_a_check_a_silence_and_the_endpoint_are_as_written(client):
    RunLeaseFactory(name="charge_due_invoices")
    RunFactory(lease_name="charge_due_invoices", started_at=ago(7800))
    RunFactory.create_batch(3, lease_name="charge_due_invoices", outcome=Outcome.FAILED)
    check, silences = blocks(section(WRONG), "console")
    command, line = check.strip().splitlines()
    done = manage(*shlex.split(command)[2:])
    assert (done.returncode, done.stdout.strip()) == (2, line)
    answer = json.loads(manage(*shlex.split(command)[2:], "--json").stdout)
    assert {*answer, *answer["alerts"][0], answer["status"]} <= words(section(WRONG))
    for silence, code in zip(silences.strip().splitlines(), (0, 2), strict=True):
        done = manage(*shlex.split(silence)[2:])
        assert (done.returncode, done.stderr) == (0, "")
        assert manage(*shlex.split(command)[2:]).returncode == code
    urls = _executed(blocks(section(WRONG), "python")[1], __name__="readme")
    with override_settings(ROOT_URLCONF=Mock(spec=[], **urls)):
        assert client.get("/runlease/health/").status_code == 503


LOGS = "Signals and logs"


@pytest.mark.django_db(transaction=True)
def test_the_signals_and_their_facts_are_those_in_the_table():
    told = {words(name).pop(): words(facts) for name, _, facts in rows(section(LOGS), "Signal")}
    told["alert_resolved"] |= told["alert_opened"]
    known = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(told) == known
    sent = {}

    def receive(signal, sender, **facts):
        sent[next(name for name in known if getattr(signals, name) is signal)] = set(facts)

    for name in known:
        getattr(signals, name).connect(receive)
    try:
        lost = django_runlease.claim("job", heartbeat=False)
        assert not django_runlease.claim("job")
        take_over_now("job")
        lost.release()
        django_runlease.claim("other", heartbeat=False).release()
        RunFactory.create_batch(3, lease_name="job", outcome=Outcome.FAILED)
        incidents.check("default", notify=True)
        Run.objects.all().delete()
        incidents.check("default", notify=True)
    finally:
        for name in known:
            getattr(signals, name).disconnect(receive)
    assert set(sent) == known
    for name, facts in sent.items():
        every = {"lease", "using"}
        if not name.startswith("alert"):
            every |= {"generation", "holder", "run_id"}
        assert facts == told[name] | every, name


@pytest.mark.django_db(transaction=True)
def test_the_receiver_of_the_readme_calls_for_help():
    pager = Mock()
    receiver, _ = blocks(section(LOGS), "python")
    own = _executed(receiver, pager=pager)["call_for_help"]
    try:
        with (
            pytest.raises(django_runlease.JobTimeout),
            django_runlease.lease("job", heartbeat=False),
        ):
            raise django_runlease.JobTimeout("job", "too long")
        django_runlease.claim("job", heartbeat=False).release()
    finally:
        assert signals.run_finished.disconnect(own)
    pager.call.assert_called_once_with("job: too long")


@pytest.mark.django_db(transaction=True)
def test_the_log_is_written_as_the_settings_of_the_readme_say(tmp_path):
    _, logging = blocks(section(LOGS), "python")
    settings = f"from example_project.settings import *\n{logging}"
    (tmp_path / "logged.py").write_text(settings, encoding="utf-8")
    env = {"DJANGO_SETTINGS_MODULE": "logged", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = manage("runjob", "clearsessions", env=env)
    events = [line.split()[3] for line in done.stderr.splitlines()]
    assert events == ["lease_claimed", "lease_released", "run_finished"]


def test_the_events_of_the_log_and_their_levels_are_those_of_its_own_list():
    told = {
        event: level.split(";")[0]
        for events, level, _ in rows(section(LOGS), "Event")
        for event in words(events)
    }
    table = log.__doc__[log.__doc__.index("event ") : log.__doc__.rindex("====")]
    lines = [line.split() for line in table.splitlines() if re.match("[a-z]+_", line)]
    assert told == {event: level for event, level, *_ in lines}


@pytest.mark.django_db(transaction=True)
def test_the_commands_for_operators_work_as_written():
    RunLeaseFactory(name="charge_due_invoices", held=True)
    RunFactory(lease_name="charge_due_invoices", outcome="failed", host="web1")
    (block,) = blocks(section(OPERATORS), "console")
    lines = block.strip().splitlines()
    assert len(lines) == 9
    for line in lines:
        prompt, program, *arguments = shlex.split(line)
        assert (prompt, program) == ("$", "manage.py")
        done = manage(*arguments)
        assert done.returncode == 0, done.stderr
        assert "charge" in done.stdout, line


@pytest.mark.django_db
def test_the_metrics_are_those_in_the_table_and_the_view_is_mounted_as_written(client):
    told = {
        words(name).pop(): tuple(re.findall(r"`(\w+)`", labels))
        for name, labels, _ in rows(section("Metrics"), "Metric")
    }
    declared = {**metrics.COUNTERS, **metrics.HISTOGRAMS, **metrics.GAUGES}
    assert told == {name: labels for name, (_, labels) in declared.items()}
    (block,) = blocks(section("Metrics"), "python")
    namespace = _executed(block)
    RunLeaseFactory(name="job")
    with override_settings(ROOT_URLCONF=Mock(urlpatterns=namespace["urlpatterns"])):
        assert b'runlease_held{lease="job"} 0.0' in client.get("/metrics").content


@pytest.mark.django_db(transaction=True)
def test_the_file_for_the_node_exporter_is_written_as_written(tmp_path):
    (block,) = blocks(section("Metrics"), "cron")
    words_of_line = shlex.split(block)
    arguments = words_of_line[words_of_line.index("manage.py") + 1 :]
    file = tmp_path / arguments.pop().rpartition("/")[2]
    assert manage(*arguments, str(file)).returncode == 0
    assert file.read_text().startswith("# HELP runlease_")


def test_the_files_for_monitoring_are_where_the_readme_says():
    folder = ROOT / re.search(r"`(django_runlease/monitoring/)`", section("Metrics"))[1]
    named = {each.name for each in folder.iterdir()}
    assert named == words(section("Metrics")) & {"prometheus-rules.yml", "grafana.json"}


@pytest.mark.django_db(transaction=True)
def test_the_history_is_pruned_and_an_unused_lease_removed_as_written():
    RunLeaseFactory(name="old_report", generation=7)
    (prune,), (unused, remove) = [
        block.strip().splitlines() for block in blocks(section("Retention"), "console")
    ]
    for line, expected in ((prune, "Removed 0 runs"), (unused, "old_report"), (remove, "above 7")):
        prompt, program, *arguments = shlex.split(line)
        assert (prompt, program) == ("$", "manage.py")
        done = manage(*arguments)
        assert (done.returncode, expected in done.stdout) == (0, True), done.stderr


@pytest.fixture
def charging(db: None) -> None:
    """The situation of the card in the README."""
    process = {"pid": 4711, "start": int((clock.local() - 131) * os.sysconf("SC_CLK_TCK"))}
    RunLeaseFactory(
        name="charge_due_invoices",
        held=True,
        generation=77,
        ttl=timedelta(minutes=1),
        every=timedelta(minutes=5),
        holder="web1:4711",
        host="web1",
        holder_process=this_process().process | process,
        claimed_at=ago(130),
        renewed_at=ago(3),
        expires_at=ago(-57),
        progress={"done": 36, "total": 120, "message": "invoice 1036"},
    )
    of = {"lease_name": "charge_due_invoices"}
    RunFactory(**of, running=True, started_at=ago(130), holder="web1:4711")
    RunFactory(
        **of,
        started_at=ago(430),
        finished_at=ago(418),
        outcome="failed",
        holder="web2:1147",
        reason="TimeoutError: no answer",
    )
    for seconds in (30, 90):
        RunFactory(**of, declined=True, started_at=ago(seconds), host="web2", holder="web1:4711")


def printed(*words: str) -> str:
    out = StringIO()
    call_command("runlease", *words, stdout=out)
    return out.getvalue()


def test_the_card_looks_as_it_does_in_the_readme(charging):
    """But for the ages, which go on."""

    def alike(text: str) -> list[str]:
        return [re.sub(r"[\d:]+| {2,}", "#", line) for line in text.strip().splitlines()]

    (block,) = blocks(section(OPERATORS), "text")
    shown = printed("show", "charge_due_invoices")
    assert alike(shown) == alike(block)
    assert "[#####-------------] 30%, 36 of 120, about 4m " in shown


def test_the_keys_of_the_json_are_those_in_the_tables(charging):
    def keys(heading: str) -> set[str]:
        return set().union(*(words(first) for first, _ in rows(section(OPERATORS), heading)))

    [lease] = json.loads(printed("list", "--json"))
    card = json.loads(printed("show", "charge_due_invoices", "--json"))
    run, *_ = json.loads(printed("history", "--json"))
    assert set(lease) == keys("Key of a lease")
    assert set(card) - set(lease) == keys("More keys in `show`") - {"show"}
    assert set(run) == keys("Key of a run")
    [figures] = json.loads(printed("history", "--stats", "--json"))
    call_command("runlease", "pause", "charge_due_invoices", stdout=StringIO())
    [action] = json.loads(printed("history", "--actions", "--json"))
    assert set(action) == keys("Key of an action")
    own = keys("Key of the figures")
    assert set(figures) == set(card["statistics"]) == own
    assert set(figures["share"]) <= words(section(OPERATORS))


def test_the_values_of_the_json_have_the_units_of_the_tables(charging):
    card = json.loads(printed("show", "charge_due_invoices", "--json"))
    assert (card["ttl"], card["every"], card["progress_share"]) == (60, 300, 0.3)
    assert card["held_for"] == pytest.approx(130, abs=30)
    assert card["process_age"] == pytest.approx(131, abs=30)
    assert card["estimated_left"] == pytest.approx(293, abs=30)
    instants = [card[key] for key in ("claimed_at", "renewed_at", "expires_at")]
    assert all(re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{6}Z", instant) for instant in instants)
    assert (len(card["runs"]), len(card["declines"])) == (2, 2)
    told = re.search(r"last (\d+) runs and, apart from them, the last (\d+)\s", section(OPERATORS))
    assert told.groups() == (str(RUNS_SHOWN), str(DECLINES_SHOWN))
    for times in re.findall(r"the last (\d+)\s+things that operators did", section(OPERATORS)):
        assert int(times) == ACTIONS_SHOWN


@pytest.mark.django_db
def test_the_kinds_of_actions_and_their_details_are_those_in_the_table():
    kinds, detail = (
        words(told)
        for key, told in rows(section(OPERATORS), "Key of an action")
        if key in ("`kind`", "`detail`")
    )
    assert kinds == set(ActionKind.values)
    RunLeaseFactory(name="job", held=True)
    AlertFactory(lease_name="job", kind="lost")
    for line in ("break job --yes --now", "silence job lost --for 1h", "silence job lost --lift"):
        call_command("runlease", *line.split(), stdout=StringIO())
    store.remove("job", "default", by="ann", unclaimed_for=timedelta(0))
    told = [each["detail"] for each in json.loads(printed("history", "--actions", "--json"))]
    assert set().union(*told) == detail
    assert f"up to\n{store.REASON_LENGTH} characters" in README


@pytest.mark.django_db
def test_the_forms_of_a_period_and_the_limit_of_the_history_are_as_written():
    RunFactory.create_batch(RUNS_READ + 1, lease_name="charge_due_invoices")
    text = section(OPERATORS)
    for form in ("2026-11-30T06:00:00+01:00", "2h"):
        assert f"`{form}`" in text
        assert printed("history", "--since", form, "--until", "1s").startswith(
            ("WHEN", "No run matches.")
        )
    (limit,) = re.findall(r"`--limit` \((\d+)\)", text)
    assert len(json.loads(printed("history", "--json"))) == int(limit)


def test_rich_is_an_extra_and_not_needed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert [each.partition(">")[0] for each in project["optional-dependencies"]["rich"]] == ["rich"]
    assert not [each for each in project["dependencies"] if "rich" in each]
    assert 'pip install "django-runlease[rich]"' in section(OPERATORS)


def test_the_license_is_the_one_that_is_declared():
    assert "BSD 3-Clause" in (ROOT / "LICENSE").read_text(encoding="utf-8")


def _executed(block: str, **names: Any) -> dict[str, Any]:
    namespace = dict(names)
    exec(block, namespace)
    return {name: value for name, value in namespace.items() if name != "__builtins__"}
