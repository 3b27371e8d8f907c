import asyncio
import inspect
from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings

from django_runlease import LeaseDeclined, current_lease, lease, leased
from django_runlease.models import Outcome, Run, RunLease

from . import aio
from .factories import RunLeaseFactory

pytestmark = pytest.mark.django_db(transaction=True)


def is_free():
    return not RunLease.objects.filter(name="job", token__isnull=False).exists()


def outcomes():
    return list(Run.objects.order_by("id").values_list("outcome", flat=True))


@leased("job")
def report(*args, **kwargs):
    """Say under which lease it runs."""
    held = current_lease()
    assert RunLease.objects.get(name="job").token == held.token
    return held.generation, args, kwargs


@leased("job")
async def report_async(*args, **kwargs):
    """Say it from a coroutine."""
    held = current_lease()
    assert not await sync_to_async(is_free)()
    return held.generation, args, kwargs


def test_each_call_runs_under_the_lease_and_returns_what_the_function_does():
    for generation in (1, 2):
        assert report(1, b=2) == (generation, (1,), {"b": 2})
        assert is_free()
    assert current_lease() is None
    assert outcomes() == [Outcome.SUCCEEDED] * 2


def test_each_call_of_an_async_function_does():
    async def main():
        assert await report_async(1, b=2) == (1, (1,), {"b": 2})
        assert await report_async() == (2, (), {})
        assert current_lease() is None

    aio.run(main)
    assert is_free()


def test_the_function_keeps_its_name_its_docstring_and_its_kind():
    assert (report.__name__, report.__doc__) == ("report", "Say under which lease it runs.")
    assert (report_async.__name__, report_async.__doc__) == (
        "report_async",
        "Say it from a coroutine.",
    )
    assert inspect.iscoroutinefunction(report_async)
    assert not inspect.iscoroutinefunction(report)
    assert report.__wrapped__.__name__ == "report"


def test_a_declined_call_returns_none_and_does_not_run_the_function():
    RunLeaseFactory(name="job", held=True)
    assert report() is None
    assert aio.run(report_async) is None
    assert outcomes() == [Outcome.DECLINED] * 2


def test_a_declined_call_raises_where_that_is_asked_for():
    RunLeaseFactory(name="job", held=True)
    with pytest.raises(LeaseDeclined, match="job: held by elsewhere:4711"):
        leased("job", on_declined="raise")(report.__wrapped__)()
    with pytest.raises(LeaseDeclined, match="job: held by elsewhere:4711"):
        aio.run(leased("job", on_declined="raise")(report_async.__wrapped__))


def test_a_decline_of_another_lease_inside_is_not_taken_for_its_own():
    RunLeaseFactory(name="other", held=True)

    @leased("job")
    def nested():
        with lease("other"):
            raise AssertionError

    @leased("job")
    async def nested_async():
        async with lease("other"):
            raise AssertionError

    with pytest.raises(LeaseDeclined, match="other: held") as caught:
        nested()
    assert caught.value.name == "other"
    with pytest.raises(LeaseDeclined, match="other: held"):
        aio.run(nested_async)
    assert Run.objects.filter(lease_name="job", outcome=Outcome.FAILED).count() == 2
    assert is_free()


def test_an_exception_passes_and_is_recorded():
    @leased("job")
    def fail():
        raise ZeroDivisionError

    @leased("job")
    async def fail_async():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with pytest.raises(ZeroDivisionError):
        aio.run(fail_async)
    assert outcomes() == [Outcome.FAILED] * 2
    assert is_free()


def test_a_function_that_calls_itself_is_declined_inside():
    @leased("job")
    def again():
        return "inner" if again() else "outer"

    assert again() == "outer"


@pytest.mark.parametrize(("options", "ttl"), [({}, 120), ({"ttl": "1m"}, 60)])
def test_its_terms_are_the_decorators_else_the_settings_at_the_moment_of_the_call(options, ttl):
    @leased("job", **options)
    def ttl_of_it():
        return current_lease().ttl

    with override_settings(RUNLEASE={"JOBS": {"job": {"ttl": "2m"}}}):
        assert ttl_of_it() == timedelta(seconds=ttl)


def test_calls_of_one_process_that_wait_run_one_after_the_other():
    running = []

    @leased("job", wait=20)
    async def alone():
        running.append(1)
        assert len(running) == 1
        await asyncio.sleep(0.05)
        running.pop()
        return True

    async def main():
        return await asyncio.gather(alone(), alone(), alone())

    assert aio.run(main) == [True] * 3


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((" job",), {}, ValueError, "no space"),
        (("job",), {"ttl": "soon"}, ValueError, "ttl: 'soon'"),
        (("job",), {"wait": "never"}, ValueError, "'never'"),
        (("job",), {"on_declined": "ignore"}, ValueError, 'neither "skip" nor "raise"'),
        (("job",), {"tll": 5}, TypeError, "'tll'"),
    ],
)
def test_bad_arguments_are_refused_where_the_decorator_stands(arguments, options, error, message):
    with pytest.raises(error, match=message):
        leased(*arguments, **options)


def test_a_decorator_without_a_name_is_refused():
    with pytest.raises(ValueError, match="string"):
        leased(report.__wrapped__)


@pytest.mark.parametrize("kind", ["generator", "async generator"])
def test_a_generator_is_refused_because_its_body_would_run_after_the_release(kind):
    def generator():
        yield

    async def async_generator():
        yield

    function = {"generator": generator, "async generator": async_generator}[kind]
    with pytest.raises(TypeError, match="generator"):
        leased("job")(function)
