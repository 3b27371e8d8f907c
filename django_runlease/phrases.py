"""Sentences that are kept in English and shown in the language of whoever reads them.

A :class:`Phrase` is a str, and as such its English: so whatever is stored, mailed, logged, printed
or told as JSON is English, whatever language is active, and two checks in two languages write the
same row. Only the admin asks for its translation, with :func:`translated`.

The functions have the names of Django's, so that ``makemessages`` finds their texts. The facts fill
the ``%(names)s`` of a text; those that are phrases, or Django's lazy texts, are translated with it.
"""

from __future__ import annotations

from typing import Any, Self

from django.utils import translation
from django.utils.functional import Promise


class Phrase(str):
    """A sentence, or a piece of one. Its value is English."""

    __slots__ = ("_context", "_facts", "_plural", "_text")

    _text: str
    _plural: str | None
    _context: str | None
    _facts: dict[str, Any]

    def __new__(
        cls,
        text: str,
        plural: str | None = None,
        context: str | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Self:
        facts = facts or {}
        one = plural is None or facts["count"] == 1
        english = {key: _english(fact) for key, fact in facts.items()}
        self = super().__new__(cls, _filled(text if one else str(plural), english))
        self._text, self._plural, self._context, self._facts = text, plural, context, facts
        return self

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        # Another process gets the English.
        return str, (str(self),)

    def translated(self) -> str:
        """In the language that is active now."""
        if self._plural is not None:
            text = translation.ngettext(self._text, self._plural, self._facts["count"])
        elif self._context is not None:
            text = translation.pgettext(self._context, self._text)
        else:
            text = translation.gettext(self._text)
        return _filled(text, {key: translated(fact) for key, fact in self._facts.items()})


def _english(fact: Any) -> Any:
    if not isinstance(fact, Promise):
        return fact
    with translation.override(None):
        return str(fact)


def _filled(text: str, facts: dict[str, Any]) -> str:
    return text % facts if facts else text


def gettext(text: str, **facts: Any) -> Phrase:
    return Phrase(text, facts=facts)


def ngettext(text: str, plural: str, count: int, **facts: Any) -> Phrase:
    """With ``%(count)s`` among the facts."""
    return Phrase(text, plural, facts={**facts, "count": count})


def pgettext(context: str, text: str, **facts: Any) -> Phrase:
    return Phrase(text, context=context, facts=facts)


def translated(text: Any) -> Any:
    """*text* in the active language if it is a phrase, or an exception that says one; else as it
    is, but for an exception its text."""
    if isinstance(text, Exception):
        (said,) = text.args if len(text.args) == 1 else (text,)
        return translated(said) if isinstance(said, Phrase) else str(text)
    return text.translated() if isinstance(text, Phrase) else text
