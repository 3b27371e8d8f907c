"""One lease in two lines: who has it, and how it went last."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..holder import is_dead
from ..models import State
from . import breaks, words
from .figures import STALLED, Bar


def headline(lease: Any, last: Bar | None) -> SafeString:
    """What to know first; *last* is the newest run that has ended."""
    return words.lines(_lines(lease, last))


def _lines(lease: Any, last: Bar | None) -> Iterator[object]:
    badge, holder = words.view(lease.view), words.clear(lease.holder)
    if lease.view == State.PAUSED:
        yield _paused(badge, lease)
        if lease.token is not None and lease.expires_epoch > lease.now:
            text = _("Still held by {holder} for {length}")
            yield format_html(text, holder=holder, length=_held_for(lease))
    elif lease.view == State.HELD:
        text = _("{state} by {holder} for {length}")
        yield format_html(text, state=badge, holder=holder, length=_held_for(lease))
    elif lease.view == STALLED:
        late = words.age(lease.now - lease.renewed_epoch)
        text = _("{state} for {length}, held by {holder}")
        yield format_html(text, state=badge, length=late, holder=holder)
    elif lease.view == State.EXPIRED:
        ago = words.when(lease.expires_epoch, lease.now)
        text = _("{state} {ago}, held by {holder}")
        yield format_html(text, state=badge, ago=ago, holder=holder)
    else:
        yield badge
        if why := breaks.why_not_yet(lease):
            facts = {"when": words.exact(lease.due), "why": why}
            yield format_html(_("No run starts before {when}: {why}"), **facts)
    if lease.token is not None and is_dead(lease.host, lease.holder_process):
        yield _("Its process is gone: the next tick on its host takes over")
    yield from _last(lease, last)


def _held_for(lease: Any) -> str:
    return words.age(max(lease.now - (lease.claimed_epoch or lease.now), 0))


def _paused(badge: SafeString, lease: Any) -> SafeString:
    facts = {
        "state": badge,
        "who": words.name(lease.paused_by),
        "why": words.name(lease.paused_reason),
    }
    if not lease.paused_by:
        return badge
    if not lease.paused_reason:
        return format_html(_("{state} by {who}"), **facts)
    return format_html(_("{state} by {who}: {why}"), **facts)


def _last(lease: Any, last: Bar | None) -> Iterator[SafeString]:
    if last is not None:
        ended = words.when(last.end, lease.now)
        facts = {"outcome": words.outcome(last.outcome), "ago": ended}
        yield format_html(_("Last run: {outcome} {ago}"), **facts)
    elif lease.token is None:
        yield format_html(_("The history has no run of it. To start one: {}"), command(lease.name))


def command(name: str) -> SafeString:
    """What runs the job once."""
    return words.code(f"manage.py runjob {shlex.quote(name)}")
