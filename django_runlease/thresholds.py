"""When an alert's rule applies: the defaults, ``RUNLEASE["ALERTS"]``, and what each job says.

==========  ======  =======  ======================================================================
rule        key     default  meaning
==========  ======  =======  ======================================================================
overrun     share   0.8      of ``every``, above which a run is too long
contention  count   1        ticks that were declined as held or busy
            window  "1h"     in which they were
starved     count   3        ticks declined as held or busy since the last start
overdue     grace   None     after ``every``; None is a tenth of it, and a minute at least
failing     count   3        failures in a row
==========  ======  =======  ======================================================================

The rules stuck, ghost, lost and uncertain have no keys. A rule is given as a dict of its keys, as
False, which turns it off, or as True, which turns it on again. What is said nearer to the job is
stronger, key by key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .models import AlertKind
from .terms import duration
from .text import nearest

Thresholds = Mapping[str, Mapping[str, Any]]
"""The keys of each rule that is on, checked; lengths of time in seconds."""

Layer = tuple[str, object]
"""How messages call the place where rules are given, and what is given there."""


def _share(value: object) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{value!r} is not a share such as 0.8")
    return float(number)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is not a whole number from 1 on")
    return value


def _length(value: object) -> float:
    return duration(value).total_seconds()


def _length_or_none(value: object) -> float | None:
    return None if value is None else _length(value)


@dataclass(frozen=True)
class _Key:
    default: Any
    read: Callable[[object], Any]
    """Gives the value as the rule takes it; raises ValueError."""


RULES: Mapping[str, Mapping[str, _Key]] = {
    AlertKind.OVERRUN.value: {"share": _Key(0.8, _share)},
    AlertKind.CONTENTION.value: {"count": _Key(1, _count), "window": _Key("1h", _length)},
    AlertKind.STARVED.value: {"count": _Key(3, _count)},
    AlertKind.OVERDUE.value: {"grace": _Key(None, _length_or_none)},
    AlertKind.FAILING.value: {"count": _Key(3, _count)},
    AlertKind.STUCK.value: {},
    AlertKind.GHOST.value: {},
    AlertKind.LOST.value: {},
    AlertKind.UNCERTAIN.value: {},
}


def thresholds(*layers: Layer) -> Thresholds:
    """The rules that are on, by name, with their keys; of *layers* the weakest comes first.

    Raises ValueError naming the place of the first mistake.
    """
    for layer in layers:
        for problem in problems(layer):
            raise ValueError(problem)
    result = {}
    for rule, keys in RULES.items():
        on = True
        values = {key: known.default for key, known in keys.items()}
        for _, given in layers:
            said = given.get(rule) if isinstance(given, Mapping) else None
            on = on if said is None else said is not False
            values.update(said if isinstance(said, Mapping) else {})
        if on:
            result[rule] = {key: keys[key].read(value) for key, value in values.items()}
    return result


def problems(layer: Layer) -> Iterator[str]:
    """Each mistake in what *layer* gives, as a message that names its place and what to write."""
    place, given = layer
    if given is None:
        return
    if not isinstance(given, Mapping):
        yield f"{place} is a dict of rules, not {given!r}"
        return
    for rule, said in given.items():
        if rule not in RULES:
            yield f"{place}: unknown rule {rule!r}: {nearest(rule, RULES)}"
        else:
            yield from _rule_problems(f'{place}["{rule}"]', RULES[rule], said)


def _rule_problems(place: str, keys: Mapping[str, _Key], said: object) -> Iterable[str]:
    if said is None or isinstance(said, bool):
        return
    if not isinstance(said, Mapping):
        example = {key: known.default for key, known in keys.items()}
        yield f"{place} is a dict such as {example!r}, True or False, not {said!r}"
        return
    for key, value in said.items():
        if key not in keys:
            instead = nearest(key, keys) if keys else "this rule has no keys; write True or False"
            yield f"{place}: unknown key {key!r}: {instead}"
            continue
        try:
            keys[key].read(value)
        except ValueError as error:
            yield f'{place}["{key}"]: {error}'
