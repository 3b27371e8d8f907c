"""A language in which every text that goes through gettext is in brackets, and the facts in it are
not; and whatever a page says besides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from gettext import NullTranslations
from html.parser import HTMLParser
from typing import Any
from unittest.mock import patch

from django.utils import translation
from django.utils.translation import trans_real

from django_runlease.holder import this_process

CODE = "de"
"""Any language that Django knows stands for it."""

DATA = re.compile(rf"DATA[\w:@./,-]*|{re.escape(this_process().host)}")
"""What a test gives as names, holders, reasons and the like, which nobody translates."""

_INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z+\d]{3,5}")
_LETTER = re.compile(r"[^\W\d_]")
_FACT = re.compile(r"%\(\w+\)[sd]|%[sd]|\{\w*\}")
_CODE_WORDS = re.compile(r"`manage\.py [^`]*`|'\w+'|idle in transaction|postgres|\bSIG[A-Z]+\b")
"""Commands, words of commands in quotes, what the database says of its processes, and signals."""
_PLACE = re.compile(r"%\(\w+\)|%[sd]|\{\w*\}")
_SPOKEN = ("aria-label", "title", "alt", "placeholder")
_VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}


class Brackets(NullTranslations):
    def gettext(self, message: str) -> str:
        _context, _, text = message.rpartition("\x04")
        # The facts stand outside: each has to be translated by itself, or be data.
        return "⟦" + _FACT.sub("⟧\\g<0>⟦", text) + "⟧"

    def ngettext(self, singular: str, plural: str, number: int) -> str:
        return self.gettext(singular if number == 1 else plural)

    def to_language(self) -> str:
        return CODE


@contextmanager
def brackets() -> Iterator[None]:
    """Let that language be the one that is active."""
    with patch.dict(trans_real._translations, {CODE: Brackets()}), translation.override(CODE):
        yield


def wrong(text: str) -> str:
    """What of *text* has not been translated as a whole: words outside all brackets, a bracket too
    few or too many, a fact that was not filled in."""
    outside, depth = "", 0
    for char in text:
        depth += (char == "⟦") - (char == "⟧")
        if depth < 0:
            return text
        outside += char if depth == 0 and char != "⟧" else " " * (char == "⟦")
    left = _CODE_WORDS.sub("", _INSTANT.sub("", DATA.sub("", outside)))
    return text if depth or _LETTER.search(left) or _PLACE.search(text) else ""


class Spoken(HTMLParser):
    """All that a page says to somebody, but for what it marks as being in English, for commands,
    and for the names of the other models of the site."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._hidden: list[bool] = []
        self._line = ""
        self.feed(html)
        self.close()
        self._end_line()
        assert not self._hidden, "all elements are closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        given = dict(attrs)
        if tag not in _INLINE:
            self._end_line()
        if tag not in _VOID:
            self._hidden.append(self._is_hidden(tag, given))
        if not self._hidden or not self._hidden[-1]:
            self._tell(tag, given)

    def handle_endtag(self, tag: str) -> None:
        if tag not in _INLINE:
            self._end_line()
        if tag not in _VOID:
            self._hidden.pop()

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._hidden.pop()

    def handle_data(self, data: str) -> None:
        if not self._hidden or not self._hidden[-1]:
            self._line += data

    def _is_hidden(self, tag: str, given: dict[str, str | None]) -> bool:
        if given.get("lang"):
            return given["lang"] == "en"
        above = bool(self._hidden) and self._hidden[-1]
        return above or tag in ("code", "script", "style") or given.get("id") == "nav-sidebar"

    def _tell(self, tag: str, given: dict[str, str | None]) -> None:
        told = [given.get(key) for key in _SPOKEN if (tag, given.get(key)) != _OF_DJANGO]
        if tag == "input" and given.get("type") in ("submit", "button"):
            told.append(given["value"])
        told += [v for k, v in given.items() if k.startswith("data-runlease-") and k not in _CODE]
        self.found += [text for text in told if text]

    def _end_line(self) -> None:
        if self._line.strip():
            self.found.append(" ".join(self._line.split()))
        self._line = ""


_INLINE = {"a", "bdi", "b", "code", "em", "span", "strong", "time"}
_OF_DJANGO = ("img", "Search")
_CODE = ("data-runlease-refresh", "data-runlease-left", "data-runlease-of", "data-runlease-units")


def untranslated(html: str) -> list[str]:
    """What a page says without having translated it."""
    return sorted({text for text in Spoken(html).found if wrong(text)})
