"""Rules for text that reaches the database."""

from __future__ import annotations

import unicodedata

NAME_LENGTH = 200
TAIL_LENGTH = 8_000


def check_name(name: object) -> str:
    """Return *name* if it can name a lease.

    Raises ValueError otherwise: a name is never truncated or normalised, because two spellings of
    one name would be two leases, and two jobs would run at once.
    """
    if not isinstance(name, str):
        raise ValueError(f"a lease's name is a string, not {type(name).__name__}: {name!r}")  # noqa: TRY004
    if not name:
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
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{REPLACEMENT CHARACTER}")


def tail(text: str, length: int = TAIL_LENGTH) -> str:
    """Return the end of *text*, at most *length* characters, ready to store."""
    return storable(text if len(text) <= length else "…" + text[-length + 1 :])
