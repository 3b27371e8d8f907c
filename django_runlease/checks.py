"""System checks: what is wrong with the settings and the jobs, said before one of them runs.

=============  =====================================================================
runlease.E001  the lease database is not configured, or not PostgreSQL
runlease.E002  RUNLEASE is not a dict
runlease.E003  RUNLEASE has an unknown key
runlease.E004  a value of RUNLEASE is of a wrong type, or a bad duration
runlease.E005  an entry of JOBS is not a dict, has an unknown key, or names no words
runlease.E006  a name in JOBS cannot name a lease
runlease.E007  a bad duration in JOBS
runlease.E008  JOBS names a management command that does not exist
runlease.E009  terms of a job contradict each other
runlease.E010  two jobs have one name
runlease.E011  ALERTS, or the alerts of a job in JOBS, have an unknown rule or key, or a bad value
runlease.W001  terms of a job work, but seldom as meant
runlease.W002  the router reads leases elsewhere than they are decided
runlease.W003  the connection pool holds a single connection
runlease.W004  JOBS names a command or program that a function of this name hides
runlease.W005  a trigger or function of RequireFence is missing, disabled or changed
=============  =====================================================================

The rules themselves stand where they are enforced; most checks only try them. Only W005 asks a
database, so it takes part in ``check --database``. The jobs of the apps are imported when the
checks run, not before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register  # noqa: A004  Django's own name
from django.db import DatabaseError, InterfaceError, connections, router

from . import jobs, triggers
from .conf import KEYS, Conf, conf, configured
from .exceptions import RunLeaseError, UnknownJob
from .store import write_alias
from .terms import (
    LONGEST,
    LONGEST_KEPT,
    TERM_NAMES,
    declaration,
    declared,
    duration,
    given,
    resolve,
)
from .text import check_name, nearest
from .thresholds import Layer, problems

TAG = "runlease"

DURATIONS = {"TTL": LONGEST, "KEEP_RUNS": LONGEST_KEPT, "KEEP_DECLINES": LONGEST_KEPT}
"""The settings that are lengths of time, and how long they may be."""
POOL_DEFAULT = 4
"""The size of a psycopg pool whose options do not say it."""


def _refusal(rule: Callable[[], object]) -> str | None:
    """What *rule* raises ValueError for; None if it accepts."""
    try:
        rule()
    except ValueError as error:
        return str(error)
    return None


# -- the setting


@register(TAG)
def check_setting(**kwargs: Any) -> list[CheckMessage]:
    """E002, E003, E004, E011."""
    if problem := _refusal(configured):
        hint = 'Write RUNLEASE = {"TTL": "5m"}, or take the setting away.'
        return [Error(problem, hint=hint, id="runlease.E002")]
    return [*_unknown_keys(), *_ill_typed_values(), *_bad_rules()]


def _unknown_keys() -> Iterator[CheckMessage]:
    for key in configured():
        if key not in KEYS:
            yield Error(
                f"RUNLEASE has an unknown key {key!r}: {nearest(key, KEYS)}",
                hint="Correct the key, or take it out of RUNLEASE.",
                id="runlease.E003",
            )


def _ill_typed_values() -> Iterator[CheckMessage]:
    for key in KEYS:
        if problem := _value_problem(key):
            hint = f"Correct the value; without it, {key} is {getattr(Conf, key)!r}."
            yield Error(problem, hint=hint, id="runlease.E004")


def _value_problem(key: str) -> str | None:
    if key in DURATIONS:
        problem = _refusal(lambda: duration(getattr(conf, key), DURATIONS[key]))
        return f'RUNLEASE["{key}"]: {problem}' if problem else None
    return _refusal(lambda: getattr(conf, key))


def _bad_rules() -> Iterator[CheckMessage]:
    layers: list[Layer] = []
    if not _refusal(lambda: conf.ALERTS):
        layers.append(('RUNLEASE["ALERTS"]', conf.ALERTS))
    if not _refusal(lambda: conf.JOBS):
        layers += [
            (f'{declaration(name)}["alerts"]', entry.get("alerts"))
            for name, entry in conf.JOBS.items()
            if isinstance(entry, Mapping)
        ]
    for layer in layers:
        for problem in problems(layer):
            hint = f"Correct {layer[0]}: the README's section on alerts has the rules and keys."
            yield Error(problem, hint=hint, id="runlease.E011")


# -- the database


@register(TAG)
def check_database(**kwargs: Any) -> list[CheckMessage]:
    """E001, W002, W003."""
    if _refusal(lambda: conf.DATABASE):
        return []
    try:
        alias = write_alias()
    except RunLeaseError as error:
        hint = 'Set RUNLEASE["DATABASE"] to the alias of a PostgreSQL database in DATABASES.'
        return [Error(str(error), hint=hint, id="runlease.E001")]
    return [*_reads_elsewhere(alias), *_small_pool(alias)]


def _reads_elsewhere(alias: str) -> Iterator[CheckMessage]:
    readers = {
        model._meta.object_name: router.db_for_read(model)
        for model in apps.get_app_config("runlease").get_models()
    }
    if elsewhere := {name: reader for name, reader in readers.items() if reader != alias}:
        reads = ", ".join(f"{name} from {reader!r}" for name, reader in elsewhere.items())
        yield Warning(
            f"the database router reads {reads}, but leases are decided in {alias!r}: the admin "
            "and your own queries may show leases and runs as they were, or none",
            hint=f"Let db_for_read() of the router return {alias!r} for the app label 'runlease'.",
            id="runlease.W002",
        )


def _small_pool(alias: str) -> Iterator[CheckMessage]:
    pool = connections[alias].settings_dict["OPTIONS"].get("pool")
    options: Mapping[str, Any] = pool if isinstance(pool, Mapping) else {}
    size = options.get("max_size")
    if size is None:
        size = options.get("min_size", POOL_DEFAULT)
    if pool and isinstance(size, int) and size < 2:
        yield Warning(
            f"the connection pool of {alias!r} holds one connection. Heartbeat and release have "
            "their own, outside the pool, but whatever else a job does at the same time, such as "
            "fenced blocks in several threads, waits for this one until the pool's timeout",
            hint=f'Set DATABASES["{alias}"]["OPTIONS"]["pool"]["max_size"] to at least 2.',
            id="runlease.W003",
        )


@register(Tags.database)
def check_triggers(*, databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W005, in those of *databases* that answer."""
    return [message for alias in databases or () for message in _trigger_messages(alias)]


def _trigger_messages(alias: str) -> list[CheckMessage]:
    if connections[alias].vendor != "postgresql":
        return []
    try:
        found = list(triggers.faults(connections[alias]))
    except (DatabaseError, InterfaceError):
        return []
    return [
        Warning(
            f"in the database {alias!r}, {fault.what}: writes outside of a fence may get through",
            hint=fault.remedy,
            id="runlease.W005",
        )
        for fault in found
    ]


# -- the jobs


@register(TAG)
def check_jobs(**kwargs: Any) -> list[CheckMessage]:
    """E005 to E010, W001 and W004. Raises RunLeaseError for an app's ``jobs.py`` that raises."""
    functions = jobs.registered()
    if _refusal(lambda: conf.JOBS):
        return []
    names = dict.fromkeys([*conf.JOBS, *functions])
    return [message for name in names for message in _job_messages(name)]


def _job_messages(name: str) -> Iterator[CheckMessage]:
    if problem := _refusal(lambda: check_name(name)):
        hint = 'Correct the key of this entry in RUNLEASE["JOBS"].'
        yield Error(f'RUNLEASE["JOBS"]: {problem}', hint=hint, id="runlease.E006")
        return
    bad_durations = list(_bad_durations(name))
    yield from bad_durations
    if not bad_durations:
        yield from _found_messages(name)


def _bad_durations(name: str) -> Iterator[CheckMessage]:
    entry: object = conf.JOBS.get(name)
    if not isinstance(entry, Mapping):
        return
    for term in TERM_NAMES:
        if problem := _refusal(partial(given, {term: entry.get(term)})):
            hint = f'Correct {declaration(name)}["{term}"].'
            yield Error(f"{declaration(name)}: {problem}", hint=hint, id="runlease.E007")


def _found_messages(name: str) -> Iterator[CheckMessage]:
    try:
        found = jobs.find(name)
    except UnknownJob as error:
        if "command" in declared(name):
            hint = f'Correct {declaration(name)}["command"], or install the command\'s app.'
            yield Error(str(error), hint=hint, id="runlease.E008")
        # Without a command the entry may give the terms of a lease() in some module.
        found = jobs.Job(name=name, terms=given(declared(name)))
    except RunLeaseError as error:
        hint = "Give one of the two another name: each name is one lease."
        yield Error(str(error), hint=hint, id="runlease.E010")
        return
    except ValueError as error:
        hint = (
            f"An entry gives terms ({', '.join(TERM_NAMES)}), alerts (a dict of rules), and "
            "at most one of command (a name, or a list of words) and program (a list of words)."
        )
        yield Error(str(error), hint=hint, id="runlease.E005")
        return
    yield from _hidden_work(found)
    yield from _term_messages(found)


def _hidden_work(found: jobs.Job) -> Iterator[CheckMessage]:
    for kind in ("command", "program"):
        if found.function and kind in declared(found.name):
            yield Warning(
                f"{declaration(found.name)} names a {kind}, but runjob {found.name} calls {found}",
                hint=f"Take the {kind} out of the entry, or rename the entry or the function.",
                id="runlease.W004",
            )


def _term_messages(found: jobs.Job) -> Iterator[CheckMessage]:
    if "ttl" not in found.terms and _value_problem("TTL"):
        return
    places = [f'@job("{found.name}", …) of {found}'] if found.function else []
    if declared(found.name):
        places.append(declaration(found.name))
    hint = f"Change the terms in {' or '.join(places)}."
    try:
        terms = resolve(found.terms)
    except ValueError as error:
        yield Error(f"job {found.name!r}: {error}", hint=hint, id="runlease.E009")
        return
    for risk in terms.risks():
        yield Warning(f"job {found.name!r}: {risk}", hint=hint, id="runlease.W001")
