"""One structured record an event, with nothing raw in it."""

import ast
import json
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

import django_runlease
from django_runlease import claim, log, store
from django_runlease.testing import held_by_another, take_over_now

PACKAGE = Path(django_runlease.__file__).parent


class JsonFormatter(logging.Formatter):
    """As most formatters for JSON do: what is not of every record is a fact of this one."""

    usual = {*vars(logging.makeLogRecord({})), "message"}

    def format(self, record):
        facts = {key: value for key, value in vars(record).items() if key not in self.usual}
        return json.dumps({"message": record.getMessage(), **facts})


@pytest.fixture
def events(caplog):
    """The records of this package, from INFO up, as dicts that went through JSON."""
    caplog.set_level(logging.INFO, logger="django_runlease")

    def read():
        records = [record for record in caplog.records if record.name == "django_runlease"]
        return [json.loads(JsonFormatter().format(record)) for record in records]

    return read


@pytest.mark.django_db(transaction=True)
def test_a_run_is_logged_as_records_with_facts(events):
    held = claim("job", ttl=60, heartbeat=False, tick=datetime(2026, 1, 1, tzinfo=UTC))
    held.release()
    claimed, released, finished = events()
    holder = claimed["holder"]
    common = {"lease": "job", "using": "default", "generation": 1, "run_id": held.run_id}
    assert claimed == {
        "message": f"job: claimed by {holder}, generation 1",
        "event": "lease_claimed",
        "holder": holder,
        "trigger": "api",
        "tick": "2026-01-01T00:00:00+00:00",
        "took_over_from": "",
        "because": "",
        **common,
    }
    assert released == {
        "message": "job: released",
        "event": "lease_released",
        "holder": holder,
        **common,
    }
    assert isinstance(finished.pop("duration_ms"), int)
    assert finished.pop("message").startswith("job: succeeded after ")
    assert finished == {
        "event": "run_finished",
        "holder": holder,
        "outcome": "succeeded",
        "reason": "",
        "exit_code": None,
        **common,
    }


@pytest.mark.django_db(transaction=True)
def test_a_decline_names_its_reason_and_the_holder(events):
    with held_by_another("job", holder="web2:7"):
        claim("job")
    (declined,) = events()
    assert declined["message"] == "job: declined, held by web2:7"
    assert (declined["event"], declined["reason"]) == ("lease_declined", "held")


@pytest.mark.django_db(transaction=True)
def test_a_takeover_and_a_loss_are_warnings(events, caplog):
    stale = claim("job", ttl=60, heartbeat=False)
    take_over_now("job")
    assert not stale.release()
    hers = claim("other", ttl=60, heartbeat=False)
    store.expire("other", "default")
    claim("other", ttl=60, heartbeat=False).release()
    assert not hers.release()
    warnings = {
        record.event: record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING
    }
    assert warnings.keys() == {"lease_lost", "lease_claimed"}
    assert "took over from" in warnings["lease_claimed"]
    assert "its lease had expired" in warnings["lease_claimed"]


@pytest.mark.django_db(transaction=True)
def test_what_an_operator_does_is_logged_with_who_and_why(events):
    with held_by_another("job"):
        store.pause("job", "default", by="alice@web1", reason="provider is down")
        store.resume("job", "default", by="bob@web1")
        store.break_lease("job", "default", by="carol@web1")
    told = {event["event"]: event for event in events()}
    assert told["lease_paused"]["by"] == "alice@web1"
    assert told["lease_paused"]["reason"] == "provider is down"
    assert told["lease_resumed"]["by"] == "bob@web1"
    assert told["lease_broken"]["by"] == "carol@web1"
    assert {told[name]["lease"] for name in told} == {"job"}


@pytest.mark.django_db(transaction=True)
def test_what_somebody_else_wrote_reaches_no_terminal_as_it_is(events):
    with held_by_another("job", holder="evil\x1b[2Jhost:1"):
        claim("job")
    (declined,) = events()
    assert "\x1b" not in declined["message"] + declined["holder"]


def test_every_event_is_in_the_list_and_the_list_names_no_other():
    logged = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("log.info", "log.warning"),
                *(("info", "warning") if path.name == "log.py" else ()),
            ):
                logged.add(ast.literal_eval(node.args[0]))
    table = log.__doc__.split("=\n")[2:-1]
    listed = {line.split()[0] for part in table for line in part.splitlines() if line[:1].islower()}
    assert logged == listed
    assert len(logged) > 10
