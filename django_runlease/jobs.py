"""The registry: which job a name stands for, and on which terms it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar, Unpack

from django.core.management import get_commands
from django.utils.module_loading import autodiscover_modules

from .exceptions import RunLeaseError, UnknownJob
from .held import HeldLease
from .terms import Duration, declared, given
from .text import check_name

Function = TypeVar("Function", bound=Callable[..., Any])


class JobTerms(TypedDict, total=False):
    """The terms that ``job()`` takes; see ``terms.Terms`` for their meaning."""

    ttl: Duration | None
    every: Duration | None
    at_least: Duration | None
    timeout: Duration | None
    stall_after: Duration | None


@dataclass(frozen=True, kw_only=True)
class Job:
    """What a name stands for: a registered function, or a management command with arguments."""

    name: str
    function: Callable[[HeldLease], Any] | None = None
    command: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
    terms: Mapping[str, object] = field(default_factory=dict)
    """The terms of its declaration, the decorator's before those of JOBS."""

    def __str__(self) -> str:
        if self.function is not None:
            return f"{self.function.__module__}.{self.function.__qualname__}"
        return " ".join(self.program or ("manage.py", *self.command))


_registered: dict[str, list[Job]] = {}


def job(name: str, **terms: Unpack[JobTerms]) -> Callable[[Function], Function]:
    """Register ``function(held)`` for ``manage.py runjob NAME``; the function stays as it was.

    Write it in an app's ``jobs.py``, which is imported at the first look-up. Raises ValueError for
    a bad name or term, TypeError for an unknown one.
    """
    check_name(name)
    if unknown := sorted(terms.keys() - JobTerms.__annotations__.keys()):
        known = ", ".join(JobTerms.__annotations__)
        raise TypeError(f"job {name!r}: unknown term {unknown[0]!r}: the terms are {known}")
    given(terms)

    def register(function: Function) -> Function:
        if not callable(function):
            raise TypeError(f'job {name!r}: write @job("{name}", …) above a function')
        entry = Job(name=name, function=function, terms=terms)
        # A module that is imported again replaces what it registered before.
        others = [other for other in _registered.get(name, []) if str(other) != str(entry)]
        _registered[name] = [*others, entry]
        return function

    return register


def registered() -> dict[str, list[Job]]:
    """All registered functions by name; two of one name are a mistake that the checks report."""
    autodiscover_modules("jobs")
    return dict(_registered)


def find(name: str) -> Job:
    """The job that *name* stands for: a registered function, else an entry of RUNLEASE["JOBS"],
    else a management command of that name, without arguments.

    Raises UnknownJob, and RunLeaseError where two functions share the name.
    """
    entry = declared(name)
    functions = registered().get(name, [])
    if len(functions) > 1:
        both = " and ".join(str(function) for function in functions)
        raise RunLeaseError(f"two jobs are called {name!r}: {both}; rename one")
    if functions:
        return Job(
            name=name, function=functions[0].function, terms={**entry, **given(functions[0].terms)}
        )
    if "program" in entry:
        return Job(name=name, program=_words(entry["program"]), terms=entry)
    command = _words(entry.get("command", name))
    if command[0] not in get_commands():
        raise UnknownJob(
            f"there is no job {name!r}: register it with @job in an app's jobs.py, declare it in "
            'RUNLEASE["JOBS"], or give the name of a management command'
        )
    return Job(name=name, command=command, terms=entry)


def is_known(name: str) -> bool:
    """Whether *name* is registered or declared, whether or not it has run yet."""
    return bool(declared(name)) or name in registered()


def _words(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)  # type: ignore[arg-type]
