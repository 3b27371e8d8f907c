"""The ledger of external actions: begun, confirmed, or uncertain."""

import json
import math
import re
import threading
import uuid
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from io import StringIO
from signal import SIGKILL
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from django_runlease import LeaseLost, RunLeaseError, claim, history, store
from django_runlease.effects import KEY_LENGTH, KIND_LENGTH, _written_down
from django_runlease.holder import this_process
from django_runlease.models import Effect, EffectState, RunLease
from example_project.billing import provider
from example_project.billing.models import Invoice

from .databases import further_alias
from .factories import InvoiceFactory, RunLeaseFactory
from .support import DEADLINE, cut_at_commit, elsewhere, expire, granted, manage, together

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def held():
    held = claim("job", ttl=60, heartbeat=False)
    yield held
    held.release()


def row(**fields):
    return Effect.objects.values(*fields or ("state", "attempts", "generation", "result")).get()


def state():
    return Effect.objects.get().state


class Crash(BaseException):
    """What ends a block as the end of its process would: without any confirmation."""


def crash(held, *key):
    with pytest.raises(Crash), held.effect("charge", *key) as effect:
        raise Crash
    return effect


# -- begun and confirmed


def test_the_intention_is_committed_before_the_block_and_confirmed_with_its_result_after_it(held):
    with held.effect("charge", 7) as effect:
        seen = elsewhere(lambda: Effect.objects.get())
        assert (seen.lease_name, seen.kind, seen.key) == ("job", "charge", "[7]")
        assert (seen.state, seen.attempts, seen.finished_at) == (EffectState.STARTED, 1, None)
        assert seen.idempotency_key == effect.key
        assert seen.generation == effect.generation == held.generation
        assert (effect.confirmed, effect.uncertain, effect.result) == (False, False, None)
        effect.result = {"id": "ch_1"}
    done = Effect.objects.get()
    assert (done.state, done.result) == (EffectState.CONFIRMED, {"id": "ch_1"})
    assert done.finished_at >= done.started_at


@pytest.mark.parametrize("failed", [False, True])
def test_an_effect_is_ended_although_its_connection_was_cut_during_the_action(held, failed):
    with held.effect("charge", 7) as effect:
        effect.result = "ch_1"
        if failed:
            effect.failed("declined")
        elsewhere(cut_all_others)
    ended = Effect.objects.values_list("state", "attempts", "result", "reason").get()
    assert ended == (("failed", 1, None, "declined") if failed else ("confirmed", 1, "ch_1", ""))


@pytest.mark.parametrize("when", ["before", "during", "after"])
def test_a_confirmation_whose_commit_was_cut_is_written_once_more(held, when):
    connection.close()
    with cut_at_commit(when, skip=1) as cut, closing(connection):
        with held.effect("charge", 7) as effect:
            effect.result = "ch_1"
    assert cut.is_set()
    assert row() == {"state": "confirmed", "attempts": 1, "generation": 1, "result": "ch_1"}


def cut_all_others():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )


def test_what_was_confirmed_is_told_with_its_result_and_stays_as_it_is(held):
    with held.effect("charge", 7) as first:
        first.result = ["ch_1"]
    before = row()
    with held.effect("charge", 7) as again:
        assert (again.confirmed, again.uncertain, again.result) == (True, False, ["ch_1"])
        assert again.key == first.key
    with pytest.raises(Crash), held.effect("charge", 7):
        raise Crash
    with held.effect("charge", 7) as again:
        again.result = "another"
        again.failed("no")
    assert row() == before


def test_what_was_confirmed_needs_no_lease_at_the_end_of_the_block(held):
    with held.effect("charge", 7):
        pass
    with held.effect("charge", 7) as again:
        expire()
        elsewhere(granted)
    assert again.confirmed


def test_a_block_that_raises_leaves_it_uncertain_and_the_next_attempt_has_the_same_key(held):
    first = crash(held, 7)
    assert state() == EffectState.STARTED
    with held.effect("charge", 7) as second:
        assert (second.confirmed, second.uncertain) == (False, True)
        assert second.key == first.key
        assert second.attempt == 2
    assert row() == {
        "state": EffectState.CONFIRMED, "attempts": 2, "generation": 1, "result": None
    }  # fmt: skip


def test_the_next_holder_sees_what_a_crashed_one_left_uncertain_with_its_key(held):
    first = crash(held, 7)
    expire()
    successor = elsewhere(lambda: claim("job", ttl=60, heartbeat=False))
    with successor.effect("charge", 7) as second:
        assert (second.uncertain, second.key) == (True, first.key)
        assert (first.generation, second.generation) == (1, 2)
    assert row()["generation"] == 2
    successor.release()


@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_failed_says_that_it_was_not_done_so_the_next_attempt_is_like_a_first_one(held, ending):
    def attempt():
        with held.effect("charge", 7) as effect:
            effect.failed("card declined\0")
            if ending == "raises":
                raise ZeroDivisionError
        return effect

    if ending == "raises":
        with pytest.raises(ZeroDivisionError):
            attempt()
    else:
        attempt()
    failed = Effect.objects.get()
    assert failed.state == EffectState.FAILED
    assert failed.reason == "card declined\N{REPLACEMENT CHARACTER}"
    assert failed.finished_at is not None
    with held.effect("charge", 7) as second:
        assert (second.uncertain, second.key) == (False, failed.idempotency_key)
        assert Effect.objects.get().reason == ""


# -- by whom


def test_a_holder_that_was_taken_over_before_the_block_does_not_begin(held):
    expire()
    elsewhere(granted)
    with pytest.raises(LeaseLost), held.effect("charge", 7):
        raise AssertionError("entered")
    assert not Effect.objects.exists()


def test_a_holder_that_was_taken_over_in_the_block_does_not_confirm(held):
    with pytest.raises(LeaseLost), held.effect("charge", 7) as effect:
        effect.result = "late"
        expire()
        elsewhere(granted)
    assert row() == {
        "state": EffectState.STARTED, "attempts": 1, "generation": 1, "result": None
    }  # fmt: skip


def test_a_late_holder_leaves_what_the_new_one_has_confirmed(held):
    with pytest.raises(LeaseLost), held.effect("charge", 7) as effect:
        expire()
        successor = elsewhere(lambda: claim("job", ttl=60, heartbeat=False))
        with successor.effect("charge", 7) as second:
            second.result = "new"
        effect.failed("late")
    assert (row()["state"], row()["result"]) == (EffectState.CONFIRMED, "new")
    successor.release()


def test_two_first_attempts_at_once_are_one_effect_of_one_key(held):
    barrier = threading.Barrier(4)

    def attempt():
        with held.effect("charge", 7) as effect:
            barrier.wait(DEADLINE)
        return effect

    made = together(*[attempt] * 4)
    assert len({effect.key for effect in made}) == 1
    assert [effect.uncertain for effect in made].count(False) == 1
    assert sorted(effect.attempt for effect in made) == [1, 2, 3, 4]
    assert row()["state"] == EffectState.CONFIRMED


def test_an_attempt_that_failed_does_not_hide_that_another_one_was_confirmed_or_goes_on(held):
    with held.effect("charge", 7) as first:
        with held.effect("charge", 7) as second:
            second.failed("declined")
        assert state() == EffectState.FAILED
    assert state() == EffectState.CONFIRMED
    with held.effect("charge", 8):
        with held.effect("charge", 8) as later, held.effect("charge", 8):
            pass
        assert later.attempt == 2
    with pytest.raises(Crash), held.effect("charge", 9) as first:
        with pytest.raises(Crash), held.effect("charge", 9):
            raise Crash
        first.failed("of the first")
        raise Crash
    assert Effect.objects.get(key="[9]").state == EffectState.STARTED


def test_what_one_attempt_has_confirmed_stays_whatever_a_later_one_says(held):
    with held.effect("charge", 7) as first:
        with held.effect("charge", 7) as second:
            second.result = "second"
        first.result = "first"
    assert row()["result"] == "second"
    with ExitStack() as later:
        with held.effect("charge", 8):
            failing = later.enter_context(held.effect("charge", 8))
            failing.failed("declined")
        assert Effect.objects.get(key="[8]").state == EffectState.CONFIRMED
    assert Effect.objects.get(key="[8]").state == EffectState.CONFIRMED


# -- where


def test_an_effect_in_an_open_transaction_or_fence_is_refused(held):
    told = "an effect cannot begin within an open transaction of its lease's database: "
    for around in (transaction.atomic, held.fence):
        with around(), pytest.raises(RunLeaseError, match=told):
            with held.effect("charge", 7):
                raise AssertionError("entered")
    assert not Effect.objects.exists()


@pytest.mark.parametrize("around", ["transaction", "failed transaction", "fence"])
def test_an_effect_in_an_open_transaction_of_another_alias_of_its_database_is_refused(
    held, second, around
):
    with held.fence(second) if around == "fence" else transaction.atomic(using=second):
        if around == "failed transaction":
            with pytest.raises(IntegrityError), connections[second].cursor() as cursor:
                cursor.execute("INSERT INTO billing_invoice (id) VALUES (1)")
        with pytest.raises(RunLeaseError, match="open transaction of its lease's database"):
            with held.effect("charge", 7):
                raise AssertionError("entered")
        transaction.set_rollback(True, using=second)
    assert not Effect.objects.exists()


def test_a_transaction_in_another_database_is_no_obstacle_to_an_effect(held, other, tmp_path):
    # Django would leave one in memory open.
    name = tmp_path / "file.sqlite3"
    with further_alias("file", ENGINE="tests.databases.sqlite", NAME=name, OPTIONS={}):
        with transaction.atomic(using=other), transaction.atomic(using="file"):
            with held.effect("charge", 7):
                Invoice.objects.using(other).update(cents=1)
    assert state() == EffectState.CONFIRMED


def test_an_alias_without_an_open_transaction_costs_an_effect_nothing(
    held, second, django_assert_num_queries
):
    with CaptureQueriesContext(connection) as without, held.effect("charge", 7):
        pass
    connections[second].ensure_connection()
    with django_assert_num_queries(len(without)), held.effect("charge", 8):
        pass


def test_no_transaction_is_open_in_the_block(held):
    with held.effect("charge", 7):
        assert not connection.in_atomic_block
        with held.fence():
            InvoiceFactory()


def test_an_effect_does_not_depend_on_the_isolation_that_the_site_has_chosen(held):
    """Under SERIALIZABLE, attempts at once would fail one another."""

    def attempt():
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation = 'serializable'")
        for key in range(10):
            with held.effect("charge", key):
                pass

    together(*[attempt] * 3)
    assert Effect.objects.filter(state=EffectState.CONFIRMED).count() == 10


# -- what


def test_1_is_not_the_text_1_nor_is_another_lease_or_kind_the_same_effect(held):
    RunLeaseFactory(name="audit")
    audit = claim("audit", ttl=60, heartbeat=False)
    keys = [(1,), ("1",), (1.5,), (True,), (None,), (), ([1],), ({"a": 1},), (1, 1), ("é\0\ud800",)]
    effects = [lambda key=key: held.effect("charge", *key) for key in keys]
    effects += [lambda: held.effect("refund", 1), lambda: audit.effect("charge", 1)]
    made = []
    for begin in effects:
        with begin() as effect:
            made.append(effect)
    assert not any(effect.confirmed for effect in made)
    assert len({effect.key for effect in made}) == len(effects) == Effect.objects.count()
    audit.release()


ID = uuid.UUID("0b1bd2a4-2b30-4f2c-8f0b-3f6c5b1f6d2e")
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (ID, str(ID)),
        (date(2026, 11, 30), "2026-11-30"),
        (NOON, "2026-11-30T12:00:00.000000Z"),
        (NOON.astimezone(ZoneInfo("America/New_York")), "2026-11-30T12:00:00.000000Z"),
        (Decimal("19.50"), "19.5"),
        (Decimal("1E+2"), "100"),
        (Decimal("-0.00"), "0"),
        (Decimal("1") / 3, "0.3333333333333333333333333333"),
    ],
    ids=repr,
)
def test_what_json_does_not_know_is_the_same_key_as_its_text_and_no_other(held, given, text):
    with held.effect("charge", given, [{"a": given}]) as effect:
        pass
    with held.effect("charge", text, [{"a": text}]) as again:
        assert again.confirmed
    with held.effect("charge", {"given": given}) as another:
        assert another.key != effect.key


@pytest.mark.parametrize("numbers", [("1.50", "1.5"), ("100", "1E+2"), ("0", "-0.000")])
def test_equal_decimals_are_one_key_however_they_are_written(held, numbers):
    for number in numbers:
        with held.effect("charge", Decimal(number)) as effect:
            pass
    assert effect.confirmed


def test_an_instant_is_one_key_in_the_hour_that_a_zone_has_twice(held):
    zone = ZoneInfo("Europe/Berlin")
    for fold in (0, 1):
        with held.effect("charge", datetime(2026, 10, 25, 2, 30, tzinfo=zone, fold=fold)) as effect:
            assert not effect.confirmed


def test_the_order_of_a_dicts_keys_does_not_matter(held):
    with held.effect("charge", {"a": 1, "b": 2}), held.effect("charge", {"b": 2, "a": 1}) as second:
        assert second.uncertain


CIRCLE = []
CIRCLE.append(CIRCLE)
DEEP = []
for _ in range(100_000):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (object(), "not JSON serializable"),
        (b"1", "not JSON serializable"),
        ({1}, "not JSON serializable"),
        (math.nan, "not JSON compliant"),
        (math.inf, "not JSON compliant"),
        ({1: "a"}, "a dict's keys are text"),
        ([{"a": {None: 1}}], "a dict's keys are text"),
        (CIRCLE, "recursion"),
        (DEEP, "recursion"),
        (10**5000, "4300 digits"),
        (datetime(2026, 11, 30), "has no UTC offset: give an aware datetime"),  # noqa: DTZ001  refused
        (timedelta(1), "a value of the type timedelta is not JSON serializable: give its text"),
        (Invoice(pk=7), "of the type Invoice .*, or the primary key of a model's instance"),
        (Decimal("NaN"), "the Decimal NaN is not finite"),
        (Decimal("sNaN"), "is not finite"),
        (Decimal("-Infinity"), "is not finite"),
        (Decimal("1E+1000000"), "is not finite, or too long"),
        (Decimal("1E-1000000"), "is not finite, or too long"),
        (Decimal(7).scaleb(-KEY_LENGTH), "is not finite, or too long|at most"),
        ("x" * KEY_LENGTH, f"at most {KEY_LENGTH} characters as JSON"),
        ("é" * (KEY_LENGTH // 6 + 1), f"at most {KEY_LENGTH} characters as JSON"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_key_that_cannot_be_kept_is_refused(held, key, message):
    with pytest.raises(ValueError, match=message), held.effect("charge", key):
        raise AssertionError("entered")
    assert not Effect.objects.exists()


@pytest.mark.parametrize(
    "kind", ["", " charge", "a\nb", "k" * (KIND_LENGTH + 1), "e\u0301", 5, None]
)
def test_a_kind_that_cannot_be_kept_is_refused(held, kind):
    with pytest.raises(ValueError, match="an effect's kind is a string"), held.effect(kind, 1):
        raise AssertionError("entered")


def test_the_longest_name_kind_and_key_fit_the_index():
    name, kind = "\U0001f4b6" * 200, "\U0001f4b6" * KIND_LENGTH
    held = claim(name, ttl=60, heartbeat=False)
    noise = "".join(chr(33 + (i * i * 7 + i // 3) % 90) for i in range(3 * KEY_LENGTH))
    key = noise.replace("\\", "").replace('"', "")[: KEY_LENGTH - 4]
    with held.effect(kind, key):
        pass
    assert Effect.objects.get().lease_name == name
    held.release()


@pytest.mark.parametrize(
    "result", [object(), ID, math.nan, {1: 2}, "a\0", {"a": ["\ud800"]}, {"\0": 1}]
)
def test_a_result_that_cannot_be_kept_is_refused_where_it_is_set(held, result):
    with held.effect("charge", 7) as effect:
        with pytest.raises(ValueError, match="an effect's result"):
            effect.result = result
        effect.result = "kept"
    assert row()["result"] == "kept"


def test_a_result_is_as_it_was_when_it_was_set(held):
    with held.effect("charge", 7) as effect:
        answer = {"ids": (1, 2)}
        effect.result = answer
        answer["ids"] = None
        assert effect.result == {"ids": [1, 2]}
    assert row()["result"] == {"ids": [1, 2]}


def test_an_effect_costs_two_transactions_of_a_bounded_number_of_statements(
    held, django_assert_max_num_queries
):
    Effect.objects.bulk_create(
        Effect(
            lease_name="job", kind="charge", key=f"[{n}]", idempotency_key=f"{n:032x}",
            state="confirmed", generation=1, started_at="2030-01-01T00:00:00Z",
        )
        for n in range(1000)
    )  # fmt: skip
    with django_assert_max_num_queries(18):
        with held.effect("charge", 5000):
            pass


# -- read by people and programs


def run(*words, **options):
    out = StringIO()
    call_command("runlease", "effects", *words, stdout=out, **options)
    return out.getvalue()


@pytest.fixture
def some(held):
    """One effect of each state, and an uncertain one of another lease."""
    with held.effect("charge", 7, "eu") as effect:
        effect.result = {"id": "ch_7"}
    with held.effect("charge", 8) as effect:
        effect.failed("card declined")
    crash(held, 9)
    other = claim("other", ttl=60, heartbeat=False)
    crash(other, {"a": None})
    other.release()
    held.release()


def test_the_effects_are_listed_newest_first_with_what_they_gave(some):
    titles, *lines = run().splitlines()
    assert titles.split() == ["BEGUN", "(UTC)", "NAME", "EFFECT", "STATE", "ATTEMPTS", "RESULT"]
    assert [re.split(r"  +", line)[1:] for line in lines] == [
        ["other", 'charge {"a": null}', "started", "1"],
        ["job", "charge 9", "started", "1"],
        ["job", "charge 8", "failed", "1", "card declined"],
        ["job", 'charge 7 "eu"', "confirmed", "1", '{"id": "ch_7"}'],
    ]


def test_the_uncertain_ones_are_what_somebody_must_look_at(some):
    keys = [each["key"] for each in json.loads(run("--uncertain", "--json"))]
    assert keys == [[{"a": None}], [9]]
    assert [each["key"] for each in json.loads(run("job", "--uncertain", "--json"))] == [[9]]
    assert [each["key"] for each in json.loads(run("--limit", "1", "--json"))] == [[{"a": None}]]


def test_as_json_an_effect_has_the_models_fields_with_its_key_as_it_was_given(some):
    effect = json.loads(run("job", "--json"))[-1]
    row = Effect.objects.get(key='[7,"eu"]')
    assert effect == {
        "lease_name": "job",
        "kind": "charge",
        "key": [7, "eu"],
        "idempotency_key": str(row.idempotency_key),
        "state": "confirmed",
        "generation": 1,
        "attempts": 1,
        "result": {"id": "ch_7"},
        "reason": "",
        "started_at": f"{row.started_at:%Y-%m-%dT%H:%M:%S.%fZ}",
        "finished_at": f"{row.finished_at:%Y-%m-%dT%H:%M:%S.%fZ}",
    }
    assert json.loads(run("job", "--uncertain", "--json"))[0]["finished_at"] is None


def uncertain():
    return [each["key"] for each in json.loads(run("--uncertain", "--json"))]


def test_an_attempt_that_goes_on_is_not_for_a_person_to_look_at(held):
    with held.effect("charge", 7):
        assert uncertain() == []
        assert [each["state"] for each in json.loads(run("--json"))] == ["started"]
        assert run("--uncertain") == "No effect is uncertain.\n"
    crash(held, 8)
    held.release()
    assert uncertain() == [[8]]


@pytest.mark.parametrize("gone", ["expired", "taken over", "broken", "dead", "deleted"])
def test_an_attempt_whose_holder_is_gone_is_for_a_person_to_look_at(held, gone):
    crash(held, 7)
    row = RunLease.objects.filter(name="job")
    if gone in ("expired", "taken over"):
        expire()
    if gone == "taken over":
        elsewhere(granted)
    elif gone == "broken":
        store.break_lease("job", "default", by="ann")
    elif gone == "dead":
        row.update(holder_process={**this_process().process, "start": 1})
    elif gone == "deleted":
        row.delete()
    assert uncertain() == [[7]]


@pytest.mark.parametrize("told", [None, {"pid": None}, {"pid": 1, "boot_id": "another"}])
def test_a_holder_that_cannot_be_judged_from_here_counts_as_at_work(held, told):
    crash(held, 7)
    RunLease.objects.update(holder_process=told)
    assert uncertain() == []


@pytest.mark.django_db
def test_without_effects_the_list_says_so():
    assert run() == "No effect yet: see held.effect().\n"
    assert run("--uncertain") == "No effect is uncertain.\n"
    assert run("--json") == "[]\n"
    assert run("charge_due_invoices", "--json") == "[]\n"
    for words in (["no such"], ["--limit", "0"]):
        with pytest.raises(CommandError) as caught:
            run(*words)
        assert caught.value.returncode == 2


def test_hostile_and_long_text_stays_in_80_columns_and_steers_no_terminal(held):
    hostile = "a\x1b[2Jb\x9bd\u202e\x7f" * 20
    with held.effect("charge", hostile, 1) as effect:
        effect.result = hostile
    with held.effect("refund", "ü" * 100) as effect:
        effect.failed(hostile)
    shown = run()
    assert shown.replace("\n", "").isprintable()
    assert max(map(len, shown.splitlines())) <= 80
    assert run("--json").isascii()


@pytest.mark.django_db
def test_a_list_is_one_query_and_one_more_for_the_holders(django_assert_num_queries):
    with django_assert_num_queries(1):
        run()
    with django_assert_num_queries(2):
        run("--uncertain")


def test_a_holder_is_judged_once_for_all_its_effects(held, monkeypatch):
    judged = []

    def is_dead(*holder):
        judged.append(holder)
        return len(judged) > 1

    monkeypatch.setattr(history, "is_dead", is_dead)
    for number in range(5):
        crash(held, number)
    assert uncertain() == []
    assert history.uncertain_effects("default", "job") == 5
    assert len(judged) == 2


def test_no_more_of_the_uncertain_effects_are_read_than_are_shown(held):
    for number in range(5):
        crash(held, number)
    held.release()
    with CaptureQueriesContext(connection) as captured:
        assert len(history.effects("default", "job", uncertain=True, limit=2)) == 2
        assert history.uncertain_effects("default", "job") == 5
    assert sum(rows_given(query["sql"]) for query in captured) == 3


def rows_given(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return len(cursor.fetchall())


# -- the example


def test_a_worker_killed_between_call_and_confirmation_and_every_invoice_is_charged_once():
    InvoiceFactory.create_batch(3)
    with provider.serving() as there:
        url = {"PROVIDER_URL": there.url}
        killed = manage("crashing_worker", env=url)
        assert killed.returncode == -SIGKILL, killed.stderr
        assert [each["state"] for each in json.loads(run("--uncertain", "--json"))] == ["started"]
        assert len(there.charges) == 1
        assert not Invoice.objects.exclude(charged_at=None).exists()
        done = manage("runjob", "charge_due_invoices", env=url)
        assert (done.returncode, done.stdout) == (0, "charged 3 invoices\n")
        assert "took over" in done.stderr
        again = manage("runjob", "charge_due_invoices", env=url)
        assert again.stdout == "charged 0 invoices\n"
    assert there.requests == 4
    assert len(there.charges) == 3
    effects = Effect.objects.order_by("pk")
    assert [each.state for each in effects] == [EffectState.CONFIRMED] * 3
    assert [each.attempts for each in effects] == [2, 1, 1]
    assert {str(each.idempotency_key) for each in effects} == set(there.charges)
    assert [each.result for each in effects] == ["ch_1", "ch_2", "ch_3"]
    assert not Invoice.objects.filter(charged_at=None).exists()


def test_without_a_provider_the_job_of_the_example_runs_too():
    InvoiceFactory()
    done = manage("runjob", "charge_due_invoices")
    assert (done.returncode, done.stdout) == (0, "charged 1 invoices\n")
    assert Effect.objects.get().state == EffectState.CONFIRMED


def test_the_demo_of_effects_tells_its_story_and_ends_by_itself():
    done = manage("demo_effects")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed by SIGKILL" in done.stdout
    assert "took over from" in done.stdout
    assert done.stdout.rstrip().endswith("7 requests, 6 charges, 6 invoices")


def test_of_the_uncertain_effects_none_is_left_out(held):
    for number in range(25):
        with pytest.raises(ZeroDivisionError), held.effect("charge", number):
            raise ZeroDivisionError
    held.release()
    assert len(json.loads(run("--uncertain", "--json"))) == 25
    assert len(json.loads(run("--json"))) == 20


def test_what_an_effect_writes_down_survives_a_crash_of_the_server(held):
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = off")
        try:
            with _written_down(held):
                cursor.execute("SHOW synchronous_commit")
                assert cursor.fetchone() == ("on",)
            cursor.execute("SHOW synchronous_commit")
            assert cursor.fetchone() == ("off",)
        finally:
            cursor.execute("RESET synchronous_commit")
