"""System checks: each rule has an id, a message and a hint, and none asks a database."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core import checks
from django.core.checks import run_checks
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_runlease import checks as runlease_checks
from django_runlease import jobs
from django_runlease.conf import _TYPES, KEYS
from django_runlease.jobs import job

from .support import DEADLINE, ROOT, spawn_manage, spawn_python

UNREACHABLE = "postgres://nobody@127.0.0.1:1/nothing"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    # The example's jobs are in it from their import on, so import them first.
    jobs.registered()
    monkeypatch.setattr(jobs, "_registered", {})


@pytest.fixture
def add_database(monkeypatch):
    """Configure another database for the test, without connecting to it."""
    added = []

    def add(alias, **settings):
        databases = {**connections.settings, alias: {**connections["default"].settings_dict}}
        databases[alias].update(settings)
        monkeypatch.setattr(connections, "settings", databases)
        added.append(alias)

    yield add
    for alias in added:
        if hasattr(connections._connections, alias):
            del connections[alias]


class Router:
    """Reads from one database, writes to another."""

    reads, writes = "default", "default"

    def db_for_read(self, model, **hints):
        return self.reads

    def db_for_write(self, model, **hints):
        return self.writes


class ReplicaRouter(Router):
    reads = "replica"


class ElsewhereRouter(Router):
    reads = writes = "elsewhere"


def found():
    """The messages of the checks of this package; each has an id, a message and a hint."""
    messages = run_checks(tags=[runlease_checks.TAG])
    for message in messages:
        assert re.fullmatch(r"runlease\.[EW]\d{3}", message.id)
        assert (message.level >= checks.ERROR) == (".E" in message.id)
        assert message.msg
        assert len(message.msg.splitlines()) == 1
        assert message.hint.endswith((".", "…"))
    return messages


def ids():
    return [message.id.removeprefix("runlease.") for message in found()]


def only():
    (message,) = found()
    return message.id.removeprefix("runlease."), message.msg, message.hint


def work(held):
    return held


# -- clean settings


@pytest.mark.parametrize(
    "setting",
    [
        {},
        {"DATABASE": "default", "TTL": 90, "RECORD_DECLINES": False, "CONFLICT_EXIT_CODE": 75},
        {
            "KEEP_RUNS": timedelta(days=900),
            "KEEP_DECLINES": "P1D",
            "ALERTS": {"failing": {"count": 3}},
        },
        {"JOBS": {"clearsessions": {"every": "1d", "ttl": "10m"}}},
        {"JOBS": {"sessions": {"command": ["clearsessions", "-v", "2"], "at_least": None}}},
        {"JOBS": {"backup": {"program": ["pg_dump", "-Fc"], "timeout": "1h"}}},
        {"JOBS": {"the lease of some lease() or claim()": {"ttl": "1h"}}},
        {"ALERTS": {"ghost": False, "contention": {"count": 5, "window": "10m"}}},
        {"JOBS": {"clearsessions": {"alerts": {"overrun": {"share": 0.5}, "overdue": None}}}},
    ],
)
def test_a_sound_setting_is_clean(settings, setting):
    settings.RUNLEASE = setting
    assert found() == []


def test_without_the_setting_all_is_clean(settings):
    del settings.RUNLEASE
    assert found() == []


def test_the_example_project_is_clean():
    process = spawn_manage("check", "--fail-level", "WARNING")
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
    assert "no issues" in out


def test_the_documented_ids_are_those_that_the_checks_give():
    source = Path(runlease_checks.__file__).read_text(encoding="utf-8")
    given = re.findall(r'id="(runlease\.[EW]\d{3})"', source)
    documented = re.findall(r"^(runlease\.[EW]\d{3})  ", runlease_checks.__doc__, re.MULTILINE)
    assert len(set(given)) == len(given)
    assert sorted(given) == documented


# -- no queries, no imports


WRONG_IN_MANY_WAYS = {
    "DATABSE": "x",
    "TTL": None,
    "JOBS": {
        "a": None,
        "b": {"command": "nothing"},
        "c": {"every": "soon"},
        "d": {"ttl": "1m", "every": "1m", "at_least": "1m"},
    },
}


@pytest.mark.django_db
@pytest.mark.parametrize("setting", [{}, WRONG_IN_MANY_WAYS])
def test_no_check_makes_a_query(settings, setting):
    settings.RUNLEASE = setting
    with CaptureQueriesContext(connections["default"]) as queries:
        run_checks(tags=[runlease_checks.TAG], databases=list(connections))
    assert queries.captured_queries == []


def test_the_checks_pass_while_the_database_cannot_be_reached():
    process = spawn_manage("check", "--tag", "runlease", env={"DATABASE_URL": UNREACHABLE})
    out, err = process.communicate(timeout=DEADLINE)
    assert (process.returncode, err) == (0, "")
    assert "no issues" in out


def test_the_checks_import_the_jobs_and_start_up_does_not():
    code = (
        "import sys\n"
        "from django.core.checks import run_checks\n"
        "assert 'example_project.billing.jobs' not in sys.modules\n"
        "assert run_checks() == []\n"
        "assert 'example_project.billing.jobs' in sys.modules\n"
    )
    process = spawn_python(code, env={"DATABASE_URL": UNREACHABLE})
    assert process.communicate(timeout=DEADLINE) == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("from django_runlease import job\njob(' x')", "ValueError: a lease's name has no space"),
    ],
)
def test_an_error_in_an_apps_jobs_rises(tmp_path, text, error):
    app = tmp_path / "broken_app"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "jobs.py").write_text(text, encoding="utf-8")
    (tmp_path / "broken_settings.py").write_text(
        "from example_project.settings import *\nINSTALLED_APPS += ['broken_app']\n",
        encoding="utf-8",
    )
    env = {
        "DJANGO_SETTINGS_MODULE": "broken_settings",
        "DATABASE_URL": UNREACHABLE,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
    }
    process = spawn_manage("check", env=env)
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert error in err
    assert "broken_app" in err


# -- wrong settings beside each other


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ["E002"]),
        ([], ["E002"]),
        ("TTL", ["E002"]),
        ({"JOBS": []}, ["E004"]),
        ({"JOBS": None, "DATABASE": 5}, ["E004", "E004"]),
        ({"TTL": "soon", "JOBS": {"x": {"every": "1m"}}}, ["E004"]),
        (
            {"TTL": [], "JOBS": {"x": {"ttl": "1m", "every": "1m", "at_least": "2m"}}},
            ["E004", "E009"],
        ),
        ({5: 5, "JOBS": {5: 5, ("x",): {}, "y": 5}}, ["E003", "E006", "E006", "E005"]),
        ({"DATABASE": "absent", "TTL": 0}, ["E004", "E001"]),
        (WRONG_IN_MANY_WAYS, ["E003", "E004", "E005", "E008", "E007", "E009"]),
    ],
)
def test_each_wrong_part_is_reported_once_whatever_else_is_wrong(settings, setting, expected):
    job("registered", every="5m")(work)
    settings.RUNLEASE = setting
    assert sorted(ids()) == sorted(expected)


# -- the setting


def test_e002_the_setting_is_no_dict(settings):
    settings.RUNLEASE = None
    ident, message, hint = only()
    assert (ident, message) == ("E002", "the setting RUNLEASE is a dict, not None")
    assert 'RUNLEASE = {"TTL": "5m"}' in hint


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("TLL", 'did you mean "TTL"?'),
        ("ttl", 'did you mean "TTL"?'),
        ("CONFLICT_EXITCODE", 'did you mean "CONFLICT_EXIT_CODE"?'),
        ("qqqqqq", f"write one of {', '.join(KEYS)}"),
        (5, f"write one of {', '.join(KEYS)}"),
    ],
)
def test_e003_an_unknown_key_is_told_the_nearest(settings, key, instead):
    settings.RUNLEASE = {key: 5}
    ident, message, _ = only()
    assert (ident, message) == ("E003", f"RUNLEASE has an unknown key {key!r}: {instead}")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("DATABASE", 5),
        ("TTL", None),
        ("TTL", "soon"),
        ("TTL", -1),
        ("KEEP_RUNS", "soon"),
        ("KEEP_RUNS", None),
        ("KEEP_DECLINES", True),
        ("JOBS", ["clearsessions"]),
        ("RECORD_DECLINES", "yes"),
        ("CONFLICT_EXIT_CODE", True),
        ("CONFLICT_EXIT_CODE", 256),
        ("ALERTS", []),
    ],
)
def test_e004_an_ill_typed_value_is_told_what_it_should_be(settings, key, value):
    settings.RUNLEASE = {key: value}
    ident, message, hint = only()
    assert ident == "E004"
    assert message.startswith(f'RUNLEASE["{key}"]')
    assert repr(value) in message
    assert f"without it, {key} is " in hint


def test_every_key_has_a_type():
    assert {*runlease_checks.DURATIONS, *_TYPES} == set(KEYS)


# -- the database


def test_e001_the_alias_is_not_configured(settings):
    settings.RUNLEASE = {"DATABASE": "absent"}
    ident, message, hint = only()
    assert ident == "E001"
    assert "there is no database 'absent'" in message
    assert 'RUNLEASE["DATABASE"]' in hint


def test_e001_the_database_is_not_postgresql(settings, add_database):
    add_database("file", ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={})
    settings.RUNLEASE = {"DATABASE": "file"}
    ident, message, _ = only()
    assert ident == "E001"
    assert "the database 'file' is not PostgreSQL" in message


def test_e001_the_router_chooses_a_database_that_is_not_postgresql(settings, add_database):
    add_database("elsewhere", ENGINE="django.db.backends.sqlite3", NAME=":memory:", OPTIONS={})
    settings.DATABASE_ROUTERS = [f"{__name__}.ElsewhereRouter"]
    assert ids() == ["E001"]
    settings.RUNLEASE = {"DATABASE": "default"}
    assert "E001" not in ids()


def test_w002_the_router_reads_elsewhere_than_it_writes(settings, add_database):
    add_database("replica")
    settings.DATABASE_ROUTERS = [f"{__name__}.ReplicaRouter"]
    ident, message, hint = only()
    assert ident == "W002"
    assert "RunLease from 'replica', Run from 'replica'" in message
    assert "decided in 'default'" in message
    assert "return 'default'" in hint


def test_w002_the_router_knows_nothing_of_the_database_in_the_setting(settings, add_database):
    add_database("leases")
    settings.RUNLEASE = {"DATABASE": "leases"}
    ident, message, _ = only()
    assert ident == "W002"
    assert "RunLease from 'default', Run from 'default'" in message


def test_a_router_that_sends_all_to_one_database_is_clean(settings, add_database):
    add_database("elsewhere")
    settings.DATABASE_ROUTERS = [f"{__name__}.ElsewhereRouter"]
    assert found() == []


@pytest.mark.parametrize(
    "pool", [{"max_size": 1}, {"min_size": 1}, {"min_size": 0, "max_size": 1}, {"max_size": 0}]
)
def test_w003_the_pool_holds_a_single_connection(settings, add_database, pool):
    add_database("elsewhere", OPTIONS={"pool": pool})
    settings.DATABASE_ROUTERS = [f"{__name__}.ElsewhereRouter"]
    ident, message, hint = only()
    assert ident == "W003"
    assert "the connection pool of 'elsewhere' holds one connection" in message
    assert 'DATABASES["elsewhere"]["OPTIONS"]["pool"]["max_size"] to at least 2' in hint


@pytest.mark.parametrize(
    "pool",
    [None, False, True, {}, {"max_size": 2}, {"min_size": 2}, {"min_size": 1, "max_size": 2},
     {"max_size": None}, {"timeout": 5}, {"max_size": "1"}, "pool"],
)  # fmt: skip
def test_no_pool_and_a_larger_one_are_clean(settings, add_database, pool):
    add_database("elsewhere", OPTIONS={"pool": pool})
    settings.DATABASE_ROUTERS = [f"{__name__}.ElsewhereRouter"]
    assert found() == []


# -- the jobs


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (None, "is a dict of terms, not None"),
        ("clearsessions", "is a dict of terms, not 'clearsessions'"),
        ({"tll": "5m"}, ": unknown key 'tll': did you mean \"ttl\"?"),
        ({"wait": "5m"}, ": unknown key 'wait': write one of ttl, every, "),
        ({"command": []}, ": command is a list of words"),
        ({"command": ["check", 5]}, ": command is a list of words"),
        ({"program": "pg_dump -Fc"}, ": program is a list of words"),
        ({"command": "check", "program": ["true"]}, "names a command and a program"),
    ],
)
def test_e005_an_ill_typed_entry(settings, entry, message):
    settings.RUNLEASE = {"JOBS": {"x": entry}}
    ident, text, hint = only()
    assert ident == "E005"
    assert text.startswith('RUNLEASE["JOBS"]["x"]')
    assert message in text
    assert "ttl, every, at_least, timeout, stall_after" in hint
    job("x")(work)
    assert ids() == ["E005"]


@pytest.mark.parametrize(
    ("setting", "place"),
    [
        ({"ALERTS": {"failing": {"count": 0}}}, 'RUNLEASE["ALERTS"]'),
        ({"JOBS": {"x": {"alerts": {"failing": {"count": 0}}}}}, 'RUNLEASE["JOBS"]["x"]["alerts"]'),
    ],
)
def test_e011_a_bad_rule_in_the_setting_or_of_a_job(settings, setting, place):
    settings.RUNLEASE = setting
    ident, message, hint = only()
    assert ident == "E011"
    assert message == f'{place}["failing"]["count"]: 0 is not a whole number from 1 on'
    assert hint.startswith(f"Correct {place}: ")


def test_e011_each_mistake_in_the_rules(settings):
    settings.RUNLEASE = {
        "ALERTS": {"failling": {}, "failing": 3},
        "JOBS": {"x": {"alerts": 3}, "y": {"alerts": {"ghost": {"count": 1}}}, "z": None},
    }
    assert sorted(ids()) == ["E005", *["E011"] * 4]


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 201, 5, None])
def test_e006_a_bad_name(settings, name):
    settings.RUNLEASE = {"JOBS": {name: {"every": "soon"}}}
    ident, message, _ = only()
    assert ident == "E006"
    assert message.startswith('RUNLEASE["JOBS"]: a lease\'s name ')


def test_e007_each_bad_duration(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"ttl": "soon", "every": "1h", "timeout": 0}}}
    ttl, timeout = found()
    assert (ttl.id, timeout.id) == ("runlease.E007", "runlease.E007")
    assert ttl.msg.startswith('RUNLEASE["JOBS"]["x"]: ttl: \'soon\' is not a duration')
    assert timeout.msg.startswith('RUNLEASE["JOBS"]["x"]: timeout: 0 is not a positive duration')
    assert ttl.hint == 'Correct RUNLEASE["JOBS"]["x"]["ttl"].'


@pytest.mark.parametrize("command", ["clearsesions", ["clearsesions", "-v", "2"]])
def test_e008_a_command_that_does_not_exist(settings, command):
    settings.RUNLEASE = {"JOBS": {"x": {"command": command}}}
    ident, message, hint = only()
    assert ident == "E008"
    assert message == (
        'RUNLEASE["JOBS"]["x"]: there is no management command \'clearsesions\': '
        'did you mean "clearsessions"?'
    )
    assert 'RUNLEASE["JOBS"]["x"]["command"]' in hint


CONTRADICTIONS = [
    ({"every": "5m", "at_least": "5m"}, "at_least (5m) must be shorter than every (5m)"),
    ({"timeout": "4m", "stall_after": "5m"}, "stall_after (5m) must be shorter than timeout (4m)"),
    ({"ttl": "50ms"}, "ttl: 50ms is too short to be renewed in time"),
]

RISKS = [
    ({"ttl": "900ms"}, "300ms between two renewals and 90ms of margin"),
    ({"ttl": "10m", "every": "5m"}, "ttl (10m) is longer than every (5m)"),
    ({"ttl": "5m", "every": "5m", "timeout": "6m"}, "timeout (6m) is longer than every (5m)"),
    ({"ttl": "5m", "at_least": "6m"}, "at_least (6m) is longer than ttl (5m)"),
]


@pytest.mark.parametrize(
    ("ident", "terms", "message"),
    [("E009", *case) for case in CONTRADICTIONS] + [("W001", *case) for case in RISKS],
)
def test_e009_and_w001_terms_of_an_entry(settings, ident, terms, message):
    settings.RUNLEASE = {"JOBS": {"clearsessions": terms, "a lease() somewhere": {"ttl": "1m"}}}
    given, text, hint = only()
    assert given == ident
    assert text.startswith("job 'clearsessions': ")
    assert message in text
    assert hint == 'Change the terms in RUNLEASE["JOBS"]["clearsessions"].'


@pytest.mark.parametrize(
    ("ident", "terms", "message"),
    [("E009", *case) for case in CONTRADICTIONS] + [("W001", *case) for case in RISKS],
)
def test_e009_and_w001_terms_of_a_function(ident, terms, message):
    job("x", **terms)(work)
    given, text, hint = only()
    assert given == ident
    assert message in text
    assert hint == 'Change the terms in @job("x", …) of tests.test_checks.work.'


def test_e009_terms_that_contradict_each_other_only_when_merged(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"every": "5m", "ttl": "1m"}}}
    job("x", at_least="10m", ttl="10m")(work)
    ident, message, hint = only()
    assert ident == "E009"
    assert "at_least (10m) must be shorter than every (5m)" in message
    assert '@job("x", …) of tests.test_checks.work or RUNLEASE["JOBS"]["x"]' in hint


def test_terms_that_agree_once_the_decorator_has_won_are_clean(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"every": "5m", "at_least": "10m"}}}
    job("x", at_least="1m")(work)
    assert found() == []


def test_w001_each_risk_has_its_message_and_the_default_ttl_counts(settings):
    settings.RUNLEASE = {"TTL": "10m", "JOBS": {"x": {"every": "5m", "timeout": "6m"}}}
    messages = found()
    assert [message.id for message in messages] == ["runlease.W001"] * 2
    assert "ttl (10m) is longer than every (5m)" in messages[0].msg
    assert "timeout (6m) is longer than every (5m)" in messages[1].msg


def test_e010_two_jobs_of_one_name(settings):
    def other(held):
        return held

    settings.RUNLEASE = {"JOBS": {"x": {"ttl": "1m"}}}
    job("x")(work)
    job("x")(other)
    ident, message, hint = only()
    assert ident == "E010"
    assert "tests.test_checks.work" in message
    assert "tests.test_checks.test_e010_two_jobs_of_one_name.<locals>.other" in message
    assert "another name" in hint


@pytest.mark.parametrize(("kind", "words"), [("command", "clearsessions"), ("program", ["true"])])
def test_w004_a_function_hides_a_command_or_program(settings, kind, words):
    settings.RUNLEASE = {"JOBS": {"x": {kind: words}}}
    assert found() == []
    job("x")(work)
    ident, message, hint = only()
    assert ident == "W004"
    assert message == (
        f'RUNLEASE["JOBS"]["x"] names a {kind}, but runjob x calls tests.test_checks.work'
    )
    assert f"Take the {kind} out" in hint
