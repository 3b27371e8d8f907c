"""The ledger of external actions: begun, confirmed, or uncertain."""

import math
import threading

import pytest
from django.db import connection, transaction

from django_runlease import LeaseLost, RunLeaseError, claim
from django_runlease.effects import KEY_LENGTH, KIND_LENGTH
from django_runlease.models import Effect, EffectState

from .factories import InvoiceFactory, RunLeaseFactory
from .support import DEADLINE, elsewhere, expire, granted, together

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


# -- where


def test_an_effect_in_an_open_transaction_or_fence_is_refused(held):
    for around in (transaction.atomic, held.fence):
        with around(), pytest.raises(RunLeaseError, match="within an open transaction"):
            with held.effect("charge", 7):
                raise AssertionError("entered")
    assert not Effect.objects.exists()


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
    "result", [object(), math.nan, {1: 2}, "a\0", {"a": ["\ud800"]}, {"\0": 1}]
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
    with django_assert_max_num_queries(16):
        with held.effect("charge", 5000):
            pass
