"""One lease in two lines: who has it, and how it went last."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import State
from . import words
from .figures import STALLED, Bar


def headline(lease: Any, last: Bar | None) -> SafeString:
    """What to know first; *last* is the newest run that has ended."""
    return words.lines(_lines(lease, last))


def _lines(lease: Any, last: Bar | None) -> Iterator[object]:
    badge, holder = words.view(lease.view), words.clear(lease.holder)
    if lease.view == State.PAUSED:
        yield _paused(badge, lease)
        if lease.token is not None and lease.expires_epoch > lease.now:
            yield words.fill(_("Still held by {} for {}"), holder, _held_for(lease))
    elif lease.view == State.HELD:
        yield words.fill(_("{} by {} for {}"), badge, holder, _held_for(lease))
    elif lease.view == STALLED:
        late = words.age(lease.now - lease.renewed_epoch)
        yield words.fill(_("{} for {}, held by {}"), badge, late, holder)
    elif lease.view == State.EXPIRED:
        ago = words.when(lease.expires_epoch, lease.now)
        yield words.fill(_("{} {}, held by {}"), badge, ago, holder)
    else:
        yield badge
    yield from _last(lease, last)


def _held_for(lease: Any) -> str:
    return words.age(max(lease.now - (lease.claimed_epoch or lease.now), 0))


def _paused(badge: SafeString, lease: Any) -> SafeString:
    by, reason = words.name(lease.paused_by), words.name(lease.paused_reason)
    if not lease.paused_by:
        return badge
    if not lease.paused_reason:
        return words.fill(_("{} by {}"), badge, by)
    return words.fill(_("{} by {}: {}"), badge, by, reason)


def _last(lease: Any, last: Bar | None) -> Iterator[SafeString]:
    if last is not None:
        ended = words.when(last.end, lease.now)
        yield words.fill(_("Last run: {} {}"), words.outcome(last.outcome), ended)
    elif lease.token is None:
        yield words.fill(_("The history has no run of it. To start one: {}"), command(lease.name))


def command(name: str) -> SafeString:
    """What runs the job once."""
    return format_html("<code><bdi>manage.py runjob {}</bdi></code>", shlex.quote(name))
