"""Pages as a browser gets them: what they say, and that a strict policy lets all of it through."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from django.urls import reverse

from django_runlease.models import RunLease

HOSTILE = "<script>alert('x')</script> \"q\" & \u202egnp.exe \N{RECEIPT} " + "w" * 100
"""A name of a job, and other text from elsewhere, that wants to be more than text."""


def address(lease: RunLease, page: str = "change", *more: str) -> str:
    """Of a page about *lease* in the admin, or of an action on it."""
    return reverse(f"admin:runlease_runlease_{page}", args=[lease.pk, *more])


def send(client: Any, place: str, **given: Any) -> Any:
    """Answer the confirmation at *place* as a browser does, with *given* filled in."""
    shown = client.get(place)
    filled = Page(shown).form if shown.status_code == 200 else {}
    return client.post(place, {**filled, **given})


class Page(HTMLParser):
    """The text of a page, and what in it a Content-Security-Policy without 'unsafe-inline' and
    'nonce' refuses."""

    def __init__(self, response: Any) -> None:
        super().__init__()
        assert response.status_code == 200, response
        self.html = response.content.decode()
        self.words: list[str] = []
        self.refused: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        inline = tag == "style" or (tag == "script" and "src" not in found)
        if inline and found.get("type") != "application/json":
            self.refused.append(tag)
        self.refused += [key for key in found if key == "style" or key.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [
            found
            for name, found in self.tags
            if name == tag and all(found.get(key) == value for key, value in attributes.items())
        ]

    @property
    def form(self) -> dict[str, str]:
        """What its form sends if nobody changes anything in it."""
        fields = self.all("input")
        chosen = [f for f in fields if f.get("type") not in ("radio", "checkbox") or "checked" in f]
        return {str(field["name"]): field.get("value") or "" for field in chosen if "name" in field}

    @property
    def labels(self) -> list[str]:
        """What the pictures say to who cannot see them."""
        return [str(found.get("aria-label", "")) for found in self.all("svg", role="img")]
