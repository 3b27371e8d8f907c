"""Rules for text that reaches the database."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable

NAME_LENGTH = 200
TAIL_LENGTH = 8_000

_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")


def check_name(name: object) -> str:
    """Return *name* if it can name a lease.

    Raises ValueError otherwise: a name is never truncated or normalised, because two spellings of
    one name would be two leases, and two jobs would run at once.
    """
    if not isinstance(name, str):
        raise ValueError(f"a lease's name is a string, not {type(name).__name__}: {name!r}")
    if not name.strip():
        raise ValueError("a lease's name is empty: give it 1 to 200 characters")
    if len(name) > NAME_LENGTH:
        raise ValueError(
            f"a lease's name has at most {NAME_LENGTH} characters; this one has {len(name)}: "
            f"{name[:40]!r}…"
        )
    if not name.isprintable():
        odd = next(character for character in name if not character.isprintable())
        raise ValueError(f"a lease's name is printable text; {name!r} contains {odd!r}")
    if name != name.strip():
        raise ValueError(f"a lease's name has no space at either end: write {name.strip()!r}")
    if not unicodedata.is_normalized("NFC", name):
        composed = ascii(unicodedata.normalize("NFC", name))
        raise ValueError(f"a lease's name is in Unicode form NFC: write {composed}")
    return name


def storable(text: str) -> str:
    """Return *text* with what PostgreSQL cannot store (NUL, lone surrogates) replaced by U+FFFD."""
    return _NOT_STORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def tail(text: str, length: int = TAIL_LENGTH) -> str:
    """Return the end of *text*, at most *length* characters, ready to store."""
    return storable(text if len(text) <= length else "…" + text[len(text) - length + 1 :])


def nearest(word: object, known: Iterable[object]) -> str:
    """What to write instead of *word*, as a piece of a message: the most similar of *known*, or
    all of them where none is similar."""
    words = [str(each) for each in known]
    return did_you_mean(word, words) or f"write one of {', '.join(words)}"


def did_you_mean(word: object, known: Iterable[object]) -> str:
    """A question with the most similar of *known*; empty where none is similar."""
    # Settings shout, terms do not: a word in the wrong case is near.
    words = {str(each).casefold(): each for each in known}
    similar = difflib.get_close_matches(str(word).casefold(), words, n=1)
    return f'did you mean "{words[similar[0]]}"?' if similar else ""


def one_line(error: BaseException | str) -> str:
    """The first line of a message; the server's messages go on with details."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else ""


def summary(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    detail = getattr(error, "detail", None)
    if isinstance(detail, str):
        return detail
    line = one_line(error)
    return f"{type(error).__name__}: {line}"[:500] if line else type(error).__name__


def printable(text: str) -> str:
    """*text* on one line, without anything that could steer a terminal.

    White space becomes a space; control, formatting and unassigned characters become U+FFFD.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else " " if char.isspace() else "\N{REPLACEMENT CHARACTER}"
        for char in text
    )
