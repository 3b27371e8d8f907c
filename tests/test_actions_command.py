"""What operators did, as ``manage.py runlease`` takes it down and tells it."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from django_runlease.management.actions.console import operator
from django_runlease.models import OperatorAction, Run

from .factories import AlertFactory, RunFactory, RunLeaseFactory
from .past import ago

pytestmark = pytest.mark.django_db

HOSTILE = "a\x1b[2Jb\x07c\x9bd\u202ee\x7ff"
ACTION_KEYS = ["lease_name", "kind", "by", "reason", "at", "detail"]


def run(*words, **options):
    out = StringIO()
    call_command("runlease", *words, stdout=out, **options)
    return out.getvalue()


def run_json(*words):
    return json.loads(run(*words, "--json"))


def refused(*words):
    with pytest.raises(CommandError) as caught:
        run(*words)
    assert "\n" not in str(caught.value)
    return caught.value.returncode, str(caught.value)


def did(kind, days=0.0, name="billing", **more):
    fields = {"by": "ann@web1", "at": ago(days), **more}
    return OperatorAction.objects.create(lease_name=name, kind=kind, **fields)


def told(*words):
    """The outcomes and the kinds of actions that the history tells, the newest first."""
    return [line[16:].split()[1] for line in run("history", *words).splitlines()[1:]]


def test_each_action_of_the_command_line_stands_there_with_who_and_why():
    RunLeaseFactory(name="billing", held=True, generation=7, claimed_at=ago(1))
    AlertFactory(lease_name="billing", kind="failing")
    run("pause", "billing", "--reason", "disk full")
    run("resume", "billing", "--reason", "disk is empty")
    run("break", "billing", "--yes", "--now", "--reason", "it hangs")
    run("silence", "billing", "failing", "--for", "1h", "--reason", "known")
    run("silence", "billing", "failing", "--lift", "--reason", "not known")
    run("prune", "--remove", "billing", "--yes", "--keep-runs", "1s")
    found = run_json("history", "billing", "--actions")
    assert [list(each) for each in found] == [ACTION_KEYS] * 6
    assert [(each["kind"], each["reason"]) for each in found] == [
        ("removed", ""),
        ("unsilenced", "not known"),
        ("silenced", "known"),
        ("broken", "it hangs"),
        ("resumed", "disk is empty"),
        ("paused", "disk full"),
    ]
    assert {each["by"] for each in found} == {operator()}
    assert found[3]["detail"]["holder"] == "elsewhere:4711"


def test_the_run_that_was_broken_says_why():
    RunLeaseFactory(name="billing", held=True)
    RunFactory(lease_name="billing", running=True)
    run("break", "billing", "--yes", "--reason", "it hangs")
    assert Run.objects.get().reason == f"broken by {operator()}: it hangs"


@pytest.mark.parametrize(
    "words",
    [
        ["pause", "billing"],
        ["resume", "billing"],
        ["break", "billing", "--yes"],
        ["silence", "billing", "failing", "--for", "1h"],
    ],
)
def test_a_reason_that_is_too_long_is_exit_2_and_says_what_to_do(words):
    RunLeaseFactory(name="billing", held=True, paused=True)
    AlertFactory(lease_name="billing", kind="failing")
    code, message = refused(*words, "--reason", "x" * 501)
    assert (code, "at most 500 characters" in message, "say it shorter" in message) == (
        *(2, True, True),
    )
    assert not OperatorAction.objects.exists()


def test_what_changes_nothing_is_not_told():
    RunLeaseFactory(name="billing")
    assert run("resume", "billing") == "billing: it was not paused.\n"
    assert run("history", "billing", "--actions") == "No operator has done anything yet.\n"
    assert run_json("history", "--actions") == []


def test_history_tells_what_operators_did_between_the_runs_in_one_line_each():
    for days, outcome in ((5, "failed"), (3, "lost"), (1, "succeeded")):
        RunFactory(lease_name="billing", outcome=outcome, started_at=ago(days))
    did("paused", 4, reason="disk full")
    did("resumed", 2)
    did("paused", 0.5, name="audit", reason="audit")
    assert told() == ["paused", "succeeded", "resumed", "lost", "paused", "failed"]
    assert told("billing") == ["succeeded", "resumed", "lost", "paused", "failed"]
    line = run("history", "billing").splitlines()[4]
    assert line[14:].split() == ["billing", "paused", "ann@web1", "disk", "full"]


def test_history_as_json_is_an_array_of_runs_alone():
    RunFactory(lease_name="billing")
    did("paused")
    [run_told] = run_json("history", "billing")
    assert run_told["outcome"] == "succeeded"
    assert [each["outcome"] for each in run_json("history")] == ["succeeded"]


def test_the_limit_counts_lines_and_filters_of_runs_leave_the_actions_out():
    for days in (5, 3, 1):
        RunFactory(lease_name="billing", started_at=ago(days), host="web1")
        did("paused", days - 0.5)
    assert told("--limit", "3") == ["paused", "succeeded", "paused"]
    assert len(run("history").splitlines()) == 7
    assert told("--since", "64h") == ["paused", "succeeded", "paused"]
    assert told("--until", "64h") == ["succeeded", "paused", "succeeded"]
    assert told("--outcome", "succeeded") == ["succeeded"] * 3
    assert told("--host", "web1") == ["succeeded"] * 3
    assert len(run_json("history", "--actions", "--limit", "2")) == 2
    assert len(run_json("history", "--actions", "--since", "64h")) == 2
    assert run("history", "--actions", "--since", "1s") == "No action matches.\n"
    assert run("history", "--since", "1s") == "No run matches.\n"


def test_what_was_done_to_a_lease_that_is_gone_can_still_be_read():
    did("removed", name="gone", detail={"generation": 7})
    assert told("gone") == ["removed"]
    assert run_json("history", "gone") == []
    assert "at generation 7" in run("history", "gone", "--actions")


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--outcome", "failed"], "leave out --stats, --outcome and --host"),
        (["--host", "web1"], "leave out --stats, --outcome and --host"),
        (["--host", ""], "leave out --stats, --outcome and --host"),
        (["--stats"], "leave out --stats, --outcome and --host"),
        (["--since", "yesterday"], "--since: 'yesterday' is not a moment"),
        (["--since", "1h", "--until", "2h"], "exchange the two"),
        (["--limit", "0"], "not a positive whole number"),
        (["nobody"], "there is no lease 'nobody'"),
    ],
)
def test_actions_with_what_does_not_go_with_them_are_exit_2_with_the_remedy(words, remedy):
    code, message = refused("history", "--actions", *words)
    assert (code, remedy in message) == (2, True), message


def test_show_tells_the_last_five_actions():
    RunLeaseFactory(name="billing")
    for days in range(7):
        did("paused", days, reason=f"no. {days}")
    did("broken", name="other")
    shown = run_json("show", "billing")["actions"]
    assert [each["reason"] for each in shown] == [f"no. {days}" for days in range(5)]
    page = run("show", "billing")
    assert "\n\nWhat operators did\nWHEN (UTC)" in page
    assert page.count("ann@web1") == 5


@pytest.mark.parametrize("words", [["history"], ["history", "--actions"], ["show", "billing"]])
@pytest.mark.parametrize("json", [False, True])
def test_hostile_text_never_reaches_the_terminal(words, json):
    RunLeaseFactory(name="billing")
    did("silenced", by=HOSTILE, reason=HOSTILE, detail={"alert": HOSTILE, "until": HOSTILE})
    did("broken", detail={"was_held": True, "holder": HOSTILE, "connections_ended": HOSTILE})
    did(HOSTILE, detail=[HOSTILE])
    assert run(*words, json=json).replace("\n", "").isprintable()


def test_a_period_given_in_code_is_taken_too():
    did("paused", 1)
    shown = run("history", actions=True, since=timedelta(days=2), json=True)
    assert len(json.loads(shown)) == 1
