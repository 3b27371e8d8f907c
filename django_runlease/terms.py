"""The terms of a lease: durations, and timings that check themselves."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from django.utils.dateparse import parse_duration as parse_iso_duration

from .conf import conf
from .phrases import Phrase, pgettext
from .text import nearest

Duration = timedelta | float | str

LONGEST = timedelta(days=366)
LONGEST_KEPT = timedelta(days=3_660)
"""The longest that a history is kept, or looked back at."""
SHORTEST_RENEWABLE = timedelta(milliseconds=100)
MARGIN_SHARE = 10
"""A holder stops trusting its lease ttl/10 before the database would let anybody else have it."""

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1, "ms": 0.001}
_PART = r"(?P<{0}>\d+(?:\.\d+)?){0}"
_COMPACT = re.compile("".join(rf"(?:{_PART.format(unit)}\s*)?" for unit in _UNITS), re.ASCII)
_SECONDS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_ISO_WEEKS = re.compile(r"P(\d+(?:\.\d+)?)W", re.ASCII)
_FORMS = 'write seconds (90) or a length such as "90s", "5m", "1h30m" or "PT5M"'


def duration(value: object, longest: timedelta = LONGEST) -> timedelta:
    """Return *value* as a positive timedelta, not above *longest* (366 days).

    Takes a timedelta, a number of seconds, or a string: seconds (``"90"``), units from weeks to
    milliseconds in falling order (``"1h30m"``), or ISO 8601 (``"PT5M"``).
    Raises ValueError, naming the accepted forms, for anything else.
    """
    length = _to_timedelta(value)
    if length is None:
        raise ValueError(f"{value!r} is not a duration: {_FORMS}")
    if length <= timedelta(0):
        raise ValueError(f"{value!r} is not a positive duration: {_FORMS}")
    if length > longest:
        raise ValueError(f"{value!r} is longer than {longest.days} days: {_FORMS}")
    return length


def _to_timedelta(value: object) -> timedelta | None:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _seconds(value)
    if not isinstance(value, str) or not (text := value.strip()):
        return None
    if _SECONDS.fullmatch(text):
        return _seconds(float(text))
    if match := _COMPACT.fullmatch(text):
        return _seconds(sum(float(n) * _UNITS[u] for u, n in match.groupdict().items() if n))
    return _iso(text)


def _seconds(number: float) -> timedelta | None:
    # Anything longer is refused anyway, and timedelta overflows.
    clamped = max(min(number, 1e9), -1e9)
    return None if math.isnan(clamped) else timedelta(seconds=clamped)


def _iso(text: str) -> timedelta | None:
    if not text.startswith("P") or not text.isascii():
        return None
    # Weeks stand alone in ISO 8601. Django's parser knows none, or takes them beside others.
    if "W" in text:
        weeks = _ISO_WEEKS.fullmatch(text)
        return _seconds(float(weeks[1]) * _UNITS["w"]) if weeks else None
    try:
        return parse_iso_duration(text)
    except OverflowError:
        return timedelta.max


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a lease is claimed on. Lengths of time; None where there is none.

    Raises ValueError if two of them contradict each other, one message for each combination.
    """

    ttl: timedelta
    """How long the lease lasts without renewal. A crashed holder on another host blocks the job
    for at most this long."""
    every: timedelta | None = None
    """The declared interval between ticks. It never gates a claim; warnings refer to it."""
    at_least: timedelta | None = None
    """Minimum hold, counted from the claim: after a release the next claim waits for its end."""
    timeout: timedelta | None = None
    """The longest a run may take before it is stopped."""
    stall_after: timedelta | None = None
    """The longest a run may go on without calling ``progress`` before it is stopped, or its lease
    is lost."""

    def __post_init__(self) -> None:
        for problem in self._contradictions():
            raise ValueError(problem)

    def _contradictions(self) -> Iterator[str]:
        if self.every and self.at_least and self.at_least >= self.every:
            yield (
                f"at_least ({short(self.at_least)}) must be shorter than every "
                f"({short(self.every)}), else every second tick declines as not due"
            )
        if self.timeout and self.stall_after and self.stall_after >= self.timeout:
            yield (
                f"stall_after ({short(self.stall_after)}) must be shorter than timeout "
                f"({short(self.timeout)}), else it can never act"
            )

    def risks(self) -> Iterator[str]:
        """Combinations that work, but seldom as meant: what the system checks warn of."""
        if self.ttl < timedelta(seconds=1):
            yield (
                f"ttl ({short(self.ttl)}) leaves {short(self.ttl / 3)} between two renewals and "
                f"{short(self.ttl / MARGIN_SHARE)} of margin: one slow query loses the lease; "
                "set ttl to a few seconds at least"
            )
        if self.every and self.ttl > self.every:
            yield (
                f"ttl ({short(self.ttl)}) is longer than every ({short(self.every)}): after a "
                "crash, ticks on other hosts decline until it has passed; set ttl to at most every"
            )
        if self.every and self.timeout and self.timeout > self.every:
            yield (
                f"timeout ({short(self.timeout)}) is longer than every ({short(self.every)}): a "
                "run that hangs makes the next tick decline; set timeout to at most every"
            )
        if self.at_least and self.at_least > self.ttl:
            yield (
                f"at_least ({short(self.at_least)}) is longer than ttl ({short(self.ttl)}): after "
                "a crash the next claim comes after ttl already; set ttl to at least at_least"
            )

    @property
    def margin(self) -> timedelta:
        return self.ttl / MARGIN_SHARE


TERM_NAMES = tuple(field.name for field in fields(Terms))
ENTRY_KEYS = (*TERM_NAMES, "command", "program", "alerts")
"""What an entry of ``RUNLEASE["JOBS"]`` may say."""


def resolve(*layers: Mapping[str, object], renewed: bool = True) -> Terms:
    """Build terms from *layers*, the strongest first; a None in a layer leaves the choice open.

    Below them all stands ``RUNLEASE["TTL"]``. Raises ValueError for a bad duration, terms that
    contradict each other, or (if *renewed*) a ttl too short to be renewed in time.
    """
    values: dict[str, timedelta] = {}
    for layer in reversed(layers):
        values.update(given(layer))
    if "ttl" not in values:
        values["ttl"] = named_duration('RUNLEASE["TTL"]', conf.TTL)
    if renewed and values["ttl"] < SHORTEST_RENEWABLE:
        raise ValueError(
            f"ttl: {short(values['ttl'])} is too short to be renewed in time: give it "
            f"{short(SHORTEST_RENEWABLE)} or more, or claim with heartbeat=False"
        )
    return Terms(**values)


def given(layer: Mapping[str, object]) -> dict[str, timedelta]:
    """The terms that *layer* sets, as lengths of time. Raises ValueError naming the bad one."""
    return {
        term: named_duration(term, layer[term])
        for term in TERM_NAMES
        if layer.get(term) is not None
    }


def declared(name: str) -> Mapping[str, Any]:
    """What ``RUNLEASE["JOBS"]`` says of *name*, its terms as lengths of time; empty where it says
    nothing.

    Raises ValueError if the entry is not a dict, has an unknown key or a bad duration.
    """
    entry: object = conf.JOBS.get(name, {})
    place = declaration(name)
    if not isinstance(entry, Mapping):
        raise ValueError(f"{place} is a dict of terms, not {entry!r}")
    if unknown := [key for key in entry if key not in ENTRY_KEYS]:
        raise ValueError(f"{place}: unknown key {unknown[0]!r}: {nearest(unknown[0], ENTRY_KEYS)}")
    try:
        return {**entry, **given(entry)}
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def declaration(name: str) -> str:
    """How messages refer to the place where the settings declare *name*."""
    return f'RUNLEASE["JOBS"]["{name}"]'


def named_duration(term: str, value: object, longest: timedelta = LONGEST) -> timedelta:
    """As :func:`duration`; the error begins with the name of the *term*."""
    try:
        return duration(value, longest)
    except ValueError as error:
        raise ValueError(f"{term}: {error}") from None


def short(length: timedelta | float) -> str:
    """A length of time for people: ``450ms``, ``12s``, ``2m 10s``, ``1h 30m``, ``3d 4h``."""
    sign, parts = _parts(length)
    return sign + " ".join(f"{count}{unit}" for count, unit in parts)


def spoken(length: timedelta | float) -> Phrase:
    """As :func:`short`, for readers of other languages."""
    sign, parts = _parts(length)
    first, *more = [in_unit(count, unit) for count, unit in parts]
    text = pair(first, *more) if more else first
    return pgettext("a length of time", "-%(length)s", length=text) if sign else text


def pair(larger: object, smaller: object) -> Phrase:
    """Two units of a length of time."""
    return pgettext("a length of time", "%(larger)s %(smaller)s", larger=larger, smaller=smaller)


_IN_UNITS: Mapping[str, Callable[[str], Phrase]] = {
    "d": lambda count: pgettext("days", "%(count)sd", count=count),
    "h": lambda count: pgettext("hours", "%(count)sh", count=count),
    "m": lambda count: pgettext("minutes", "%(count)sm", count=count),
    "s": lambda count: pgettext("seconds", "%(count)ss", count=count),
    "ms": lambda count: pgettext("milliseconds", "%(count)sms", count=count),
}


def in_unit(count: str, unit: str) -> Phrase:
    """So many of days (``d``), hours, minutes, seconds or milliseconds (``ms``)."""
    return _IN_UNITS[unit](count)


def _parts(length: timedelta | float) -> tuple[str, list[tuple[str, str]]]:
    """A sign, and one or two counts with their units."""
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
    sign = "-" if seconds < 0 else ""
    size = abs(seconds)
    if size < 0.9995:
        return sign, [(f"{size * 1000:.3g}", "ms") if size else ("0", "s")]
    if size < 10 and size != int(size):
        return sign, [(f"{size:.1f}".removesuffix(".0"), "s")]
    whole = int(size)
    parts: list[tuple[int, str]] = []
    for unit in ("d", "h", "m", "s"):
        count, whole = divmod(whole, int(_UNITS[unit]))
        if count or parts:
            parts.append((count, unit))
    return sign, [(str(count), unit) for count, unit in parts[:2] if count]
