"""The registry of jobs: what a name stands for, and on which terms it runs."""

import functools
from datetime import timedelta

import pytest

from django_runlease import jobs
from django_runlease.exceptions import RunLeaseError, UnknownJob
from django_runlease.jobs import JobTerms, find, is_known, job, registered
from django_runlease.terms import TERM_NAMES
from example_project.billing.jobs import charge_due_invoices

from .support import DEADLINE, spawn_python


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch):
    monkeypatch.setattr(jobs, "_registered", dict(jobs._registered))


def run(held):
    return held


# -- registering


def test_the_terms_of_the_decorator_are_those_of_a_lease():
    assert tuple(JobTerms.__annotations__) == TERM_NAMES


def test_the_decorator_leaves_the_function_as_it_was():
    assert job("x", ttl="1m")(run) is run
    assert find("x").function is run


@pytest.mark.parametrize("name", ["", " x", "a\nb", None, run])
def test_a_bad_name_is_refused_at_once(name):
    with pytest.raises(ValueError, match="a lease's name"):
        job(name)


def test_a_bad_term_is_refused_at_once_and_the_message_names_the_job():
    with pytest.raises(ValueError, match=r"^job 'x': every: 'soon' is not a duration"):
        job("x", every="soon")


def test_an_unknown_term_is_refused_with_the_nearest():
    with pytest.raises(TypeError, match=r"""^job 'x': unknown term 'tll': did you mean "ttl"\?"""):
        job("x", tll="5m")


def test_what_is_decorated_must_be_callable():
    with pytest.raises(TypeError, match=r'write @job\("x", …\) above a function'):
        job("x")("run")


def test_callables_without_a_name_can_be_registered_and_told_apart():
    first, second = functools.partial(run, 1), functools.partial(run, 2)
    job("x")(first)
    assert find("x").function is first
    job("x")(second)
    with pytest.raises(RunLeaseError, match=r"functools\.partial.* and functools\.partial"):
        find("x")


def test_a_module_that_is_imported_again_replaces_its_jobs():
    source = compile("@job('x', ttl=ttl)\ndef work(held): ...", "work.py", "exec")
    for ttl in ("1m", "2m"):
        exec(source, {"job": job, "ttl": ttl, "__name__": "work"})
    assert find("x").terms == {"ttl": timedelta(minutes=2)}


def test_two_functions_of_one_name_are_both_named():
    job("charge_due_invoices")(run)
    with pytest.raises(RunLeaseError) as refusal:
        find("charge_due_invoices")
    assert not isinstance(refusal.value, UnknownJob)
    message = str(refusal.value)
    assert "two jobs are called 'charge_due_invoices'" in message
    assert f"example_project.billing.jobs.charge_due_invoices (line {line_of_example()})" in message
    assert f"tests.test_jobs.run (line {run.__code__.co_firstlineno})" in message


def line_of_example():
    return charge_due_invoices.__code__.co_firstlineno


def test_a_second_function_that_shadows_the_first_in_its_module_is_noticed():
    twice = "@job('x')\ndef work(held): ...\n" * 2
    exec(compile(twice, "work.py", "exec"), {"job": job, "__name__": "work"})
    with pytest.raises(RunLeaseError, match=r"work\.work \(line 1\) and work\.work \(line 3\)"):
        find("x")


# -- importing jobs.py


def test_jobs_are_imported_at_the_first_look_up_and_not_at_start_up():
    code = (
        "import sys\n"
        "from django_runlease import jobs\n"
        "assert 'example_project.billing.jobs' not in sys.modules\n"
        "print(*jobs.registered())\n"
    )
    out, err = spawn_python(code).communicate(timeout=DEADLINE)
    assert "charge_due_invoices" in out.split()
    assert not err


def test_the_jobs_of_every_app_are_found(make_app):
    make_app("runlease_test_a", "from django_runlease import job\n@job('a')\ndef work(held): ...\n")
    assert str(registered()["a"][0]) == "runlease_test_a.jobs.work"
    assert "charge_due_invoices" in registered()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("import runlease_test_absent", "ModuleNotFoundError: No module named"),
        ("from django_runlease import absent", "ImportError: cannot import name 'absent'"),
        ("from django_runlease import job\njob('a', ttl='soon')", "ValueError: job 'a': ttl"),
        ("import os\nos.environ['NO_SUCH_KEY']", "KeyError: 'NO_SUCH_KEY'"),
        ("absent", "NameError: name 'absent'"),
        ("1 +", "SyntaxError: invalid syntax"),
    ],
)
def test_whatever_an_apps_jobs_raise_is_one_error_that_names_them_at_every_look_up(
    make_app, text, error
):
    make_app("runlease_test_broken", text)
    for _ in range(2):
        with pytest.raises(RunLeaseError) as refusal:
            find("charge_due_invoices")
        assert not isinstance(refusal.value, UnknownJob)
        assert str(refusal.value).startswith("runlease_test_broken.jobs cannot be imported")
        assert error in str(refusal.value)
        assert f"line {text.count(chr(10)) + 1}" in str(refusal.value)
        assert type(refusal.value.__cause__).__name__ == error.partition(":")[0]


# -- finding


def test_the_decorators_terms_stand_before_those_of_the_settings(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"ttl": "1m", "every": "1h", "timeout": None}}}
    job("x", ttl="2m", every=None)(run)
    found = find("x")
    assert found.function is run
    assert found.terms == {"ttl": timedelta(minutes=2), "every": timedelta(hours=1)}


@pytest.mark.parametrize(
    ("entry", "command"),
    [
        ({"ttl": "1m"}, ("clearsessions",)),
        ({"ttl": "1m", "command": "check"}, ("check",)),
        ({"ttl": "1m", "command": ["check", "--tag", ""]}, ("check", "--tag", "")),
        ({"ttl": "1m", "command": ("check",)}, ("check",)),
    ],
)
def test_an_entry_names_a_management_command_or_has_its_name(settings, entry, command):
    settings.RUNLEASE = {"JOBS": {"clearsessions": entry}}
    found = find("clearsessions")
    assert (found.function, found.program, found.command) == (None, (), command)
    assert found.terms == {"ttl": timedelta(minutes=1)}
    assert str(found) == " ".join(("manage.py", *command))


def test_an_entry_names_a_program(settings):
    settings.RUNLEASE = {"JOBS": {"backup": {"ttl": "1m", "program": ["pg_dump", "-Fc"]}}}
    found = find("backup")
    assert (found.function, found.command, found.program) == (None, (), ("pg_dump", "-Fc"))
    assert found.terms == {"ttl": timedelta(minutes=1)}
    assert str(found) == "pg_dump -Fc"


def test_any_management_command_is_a_job():
    assert find("migrate").command == ("migrate",)
    assert find("migrate").terms == {}


@pytest.mark.parametrize("key", ["command", "program"])
@pytest.mark.parametrize("words", [None, 5, {}, [], (), [5], ["check", 5], ["check", None], [""]])
def test_what_is_to_run_is_a_list_of_words(settings, key, words):
    settings.RUNLEASE = {"JOBS": {"x": {key: words}}}
    with pytest.raises(ValueError, match=rf'^RUNLEASE\["JOBS"\]\["x"\]: {key} is a list of words'):
        find("x")


def test_a_program_is_never_split_at_its_spaces(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"program": "rm -rf /tmp/x"}}}
    with pytest.raises(ValueError, match="program is a list of words"):
        find("x")


def test_an_entry_cannot_name_both_a_command_and_a_program(settings):
    settings.RUNLEASE = {"JOBS": {"x": {"command": "check", "program": ["true"]}}}
    with pytest.raises(ValueError, match="names a command and a program: keep one"):
        find("x")


@pytest.mark.parametrize(
    "setting",
    [
        None,
        {"JOBS": None},
        {"JOBS": ["x"]},
        {"JOBS": {"x": None}},
        {"JOBS": {"x": "check"}},
        {"JOBS": {"x": {"tll": "5m"}}},
        {"JOBS": {"x": {"ttl": "soon"}}},
    ],
)
def test_a_wrong_setting_is_a_value_error_in_words_also_where_no_check_has_run(settings, setting):
    settings.RUNLEASE = setting
    with pytest.raises(ValueError, match=r"RUNLEASE.* is (not )?a |unknown key"):
        find("x")


@pytest.mark.parametrize("name", ["", " x", "a\nb", None, ["x"]])
def test_a_bad_name_is_not_an_unknown_job(name):
    with pytest.raises(ValueError, match="a lease's name"):
        find(name)


def test_an_unknown_job_is_told_how_to_become_one():
    with pytest.raises(UnknownJob, match=r"^there is no job 'qqq': register it with @job .*JOBS"):
        find("qqq")


@pytest.mark.parametrize(
    ("name", "near"),
    [("clearsesions", "clearsessions"), ("charge-due-invoices", "charge_due_invoices")],
)
def test_a_misspelt_job_is_told_the_nearest(name, near):
    with pytest.raises(
        UnknownJob, match=rf"""^there is no job '{name}': did you mean "{near}"\?"""
    ):
        find(name)


@pytest.mark.parametrize(
    ("command", "remedy"),
    [
        ("clearsesions", 'did you mean "clearsessions"?'),
        ("qqq --all --now", "write its arguments as a list"),
        (["qqq", "--all"], "is its app installed?"),
    ],
)
def test_a_declared_command_that_does_not_exist_is_an_unknown_job(settings, command, remedy):
    settings.RUNLEASE = {"JOBS": {"x": {"command": command}, 5: {}}}
    with pytest.raises(UnknownJob) as refusal:
        find("x")
    assert str(refusal.value).startswith('RUNLEASE["JOBS"]["x"]: there is no management command')
    assert str(refusal.value).endswith(remedy)


def test_a_name_is_known_if_it_is_registered_or_declared(settings):
    settings.RUNLEASE = {"JOBS": {"declared": {}}}
    job("registered")(run)
    assert is_known("declared")
    assert is_known("registered")
    assert not is_known("migrate")
