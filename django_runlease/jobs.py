"""The registry: which job a name stands for, and on which terms it runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from traceback import walk_tb
from types import FrameType
from typing import Any, TypedDict, TypeVar, Unpack

from django.apps import apps
from django.core.management import get_commands
from django.utils.module_loading import module_has_submodule

from .conf import conf
from .exceptions import RunLeaseError, UnknownJob
from .held import HeldLease
from .phrases import gettext as _
from .terms import Duration, declaration, declared, given
from .text import check_name, did_you_mean, nearest, summary
from .thresholds import problems

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
    terms: Mapping[str, timedelta] = field(default_factory=dict)
    """The terms of its declaration, the decorator's before those of JOBS."""
    alerts: Mapping[str, Any] | None = None
    """The rules of its alerts that the decorator gave."""

    def __str__(self) -> str:
        if self.function is not None:
            # A partial or another callable object has no name of its own.
            name = getattr(self.function, "__qualname__", None)
            return f"{self.function.__module__}.{name}" if name else repr(self.function)
        return " ".join(self.program or ("manage.py", *self.command))

    @property
    def what(self) -> str:
        """What it runs. Arguments are left out: they may be secret."""
        if self.function is not None:
            return _name_of(self.function)
        return self.program[0] if self.program else f"manage.py {self.command[0]}"

    @property
    def place(self) -> str:
        """The function and, if it can be told, the line of its module where it begins."""
        code = getattr(inspect.unwrap(self.function), "__code__", None) if self.function else None
        return f"{self} (line {code.co_firstlineno})" if code else str(self)


def _name_of(function: Callable[..., Any]) -> str:
    """Its own, or that of its class. The repr of a partial would tell its arguments."""
    while isinstance(function, partial):
        function = function.func
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}.{name}"


_registered: dict[str, list[Job]] = {}


def job(
    name: str, *, alerts: Mapping[str, Any] | None = None, **terms: Unpack[JobTerms]
) -> Callable[[Function], Function]:
    """Register ``function(held)`` for ``manage.py runjob NAME``; the function stays as it was.

    *alerts* are rules as in RUNLEASE["ALERTS"], for this job alone. Write it in an app's
    ``jobs.py``, which is imported at the first look-up. Raises ValueError for a bad name, term or
    rule, TypeError for an unknown term.
    """
    check_name(name)
    if unknown := sorted(terms.keys() - JobTerms.__annotations__.keys()):
        instead = nearest(unknown[0], [*JobTerms.__annotations__, "alerts"])
        raise TypeError(f"job {name!r}: unknown term {unknown[0]!r}: {instead}")
    try:
        own = given(terms)
    except ValueError as error:
        raise ValueError(f"job {name!r}: {error}") from None
    for problem in problems(("alerts", alerts)):
        raise ValueError(f"job {name!r}: {problem}")

    def register(function: Function) -> Function:
        if not callable(function):
            raise TypeError(f'job {name!r}: write @job("{name}", …) above a function')
        entry = Job(name=name, function=function, terms=own, alerts=alerts)
        # A module that is imported again replaces what it registered before.
        others = [other for other in _registered.get(name, []) if other.place != entry.place]
        _registered[name] = [*others, entry]
        return function

    return register


def registered() -> dict[str, list[Job]]:
    """All registered functions by name; two of one name are a mistake that the checks report.

    Imports each app's ``jobs.py`` at the first call. Raises RunLeaseError, which names the module
    and the cause, for whatever one of them raises.
    """
    for app in apps.get_app_configs():
        if module_has_submodule(app.module, "jobs"):
            _import(f"{app.name}.jobs")
    return dict(_registered)


def _import(module: str) -> None:
    try:
        import_module(module)
    except Exception as error:
        own = [n for frame, n in walk_tb(error.__traceback__) if _is_of(module, frame)]
        facts: dict[str, Any] = {"module": module, "problem": summary(error)}
        if own:
            facts["line"] = own[-1]
            text = _("%(module)s cannot be imported (line %(line)s): %(problem)s", **facts)
        else:
            # A SyntaxError tells the line itself.
            text = _("%(module)s cannot be imported: %(problem)s", **facts)
        raise RunLeaseError(text) from error


def _is_of(module: str, frame: FrameType) -> bool:
    return frame.f_globals.get("__name__") == module


def find(name: str) -> Job:
    """The job that *name* stands for: a registered function, else an entry of RUNLEASE["JOBS"],
    else a management command of that name, without arguments.

    Raises UnknownJob, RunLeaseError where two functions share the name or an app's ``jobs.py``
    cannot be imported, and ValueError for a bad name or entry.
    """
    check_name(name)
    entry = _entry(name)
    functions = registered().get(name, [])
    if len(functions) > 1:
        both = " and ".join(function.place for function in functions)
        raise RunLeaseError(f"two jobs are called {name!r}: {both}; rename one")
    terms = given(entry)
    if functions:
        return replace(functions[0], terms={**terms, **functions[0].terms})
    if "program" in entry:
        return Job(name=name, program=entry["program"], terms=terms)
    command = entry.get("command", (name,))
    if command[0] not in get_commands():
        raise _unknown(name, command[0] if "command" in entry else None)
    return Job(name=name, command=command, terms=terms)


def for_program(name: str, program: Sequence[str]) -> Job:
    """A program to run under the lease *name*, on the terms that RUNLEASE["JOBS"] has for it.

    Raises ValueError for a bad name or entry, an empty program, or a name that is registered for
    a function, RunLeaseError where an app's ``jobs.py`` cannot be imported.
    """
    check_name(name)
    if not program or not program[0]:
        raise ValueError("there is no program after --: write `runjob NAME -- PROGRAM ARG…`")
    if functions := registered().get(name):
        raise ValueError(
            f"{name!r} is registered for {functions[0]}, so no program can run under that name: "
            "leave out the program, or choose another name"
        )
    return Job(name=name, program=tuple(program), terms=given(_entry(name)))


def is_known(name: str) -> bool:
    """Whether *name* is registered or declared, whether or not it has run yet."""
    return name in conf.JOBS or name in registered()


def all_names() -> set[str]:
    """All that :func:`find` finds: registered, declared, or a management command."""
    return {*conf.JOBS, *registered(), *get_commands()}


def _unknown(name: str, command: str | None) -> UnknownJob:
    if command is not None:
        question = did_you_mean(command, get_commands()) or (
            "write its arguments as a list" if " " in command else "is its app installed?"
        )
        place = declaration(name)
        return UnknownJob(f"{place}: there is no management command {command!r}: {question}")
    similar = did_you_mean(name, [*get_commands(), *conf.JOBS, *registered()])
    return UnknownJob(
        f"there is no job {name!r}: "
        + (similar and f"{similar} Else ")
        + "register it with @job in an app's jobs.py, declare it in "
        'RUNLEASE["JOBS"], or give the name of a management command'
    )


def _entry(name: str) -> dict[str, Any]:
    """What the settings declare of *name*, its command and program as tuples of words."""
    entry = dict(declared(name))
    place = declaration(name)
    if "command" in entry and "program" in entry:
        raise ValueError(f"{place} names a command and a program: keep one of them")
    if "command" in entry:
        value = entry["command"]
        entry["command"] = _words([value] if isinstance(value, str) else value, f"{place}: command")
    if "program" in entry:
        entry["program"] = _words(entry["program"], f"{place}: program")
    return entry


def _words(value: object, place: str) -> tuple[str, ...]:
    words = value if isinstance(value, list | tuple) else []
    # Arguments may be empty, the name of what is run may not.
    if not words or not words[0] or not all(isinstance(word, str) for word in words):
        raise ValueError(f'{place} is a list of words such as ["name", "--option"], not {value!r}')
    return tuple(words)
