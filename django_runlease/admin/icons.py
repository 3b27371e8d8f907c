"""The signs that stand before words."""

from __future__ import annotations

from django.utils.html import format_html
from django.utils.safestring import SafeString

_CHECK = '<path d="M2 6.5 5 9.5 10.5 3" fill="none" stroke="currentColor" stroke-width="2"/>'
_CROSS = '<path d="M2.5 2.5 9.5 9.5 M9.5 2.5 2.5 9.5" stroke="currentColor" stroke-width="2"/>'
_PLAY = '<path d="M3 1.5 10.5 6 3 10.5Z" fill="currentColor"/>'
_PAUSE = '<path d="M2.5 2h2.5v8H2.5z M7 2h2.5v8H7z" fill="currentColor"/>'
_RING = '<circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="1.8"/>'
_ALARM = (
    '<path d="M6 .8 11.6 11H.4Z" fill="currentColor"/>'
    '<path d="M5.3 4.2h1.4v3.4H5.3z M5.3 8.4h1.4v1.4H5.3z" class="runlease-cut"/>'
)
_OCTAGON = (
    '<path d="M3.7.4h4.6l3.3 3.3v4.6l-3.3 3.3H3.7L.4 8.3V3.7Z" fill="currentColor"/>'
    '<path d="M5.3 2.6h1.4v4H5.3z M5.3 7.8h1.4v1.5H5.3z" class="runlease-cut"/>'
)
_CLOCK = (
    '<circle cx="6" cy="6" r="4.6" fill="none" stroke="currentColor" stroke-width="1.6"/>'
    '<path d="M6 3.2V6L8 7.4" fill="none" stroke="currentColor" stroke-width="1.4"/>'
)
_DASH = '<path d="M2 5h8v2H2z" fill="currentColor"/>'
_STOP = '<path d="M2.5 2.5h7v7h-7z" fill="currentColor"/>'

# What differs in its colour differs in its shape, too.
_ICONS = {
    "free": _RING,
    "held": _PLAY,
    "expired": _CLOCK,
    "paused": _PAUSE,
    "stalled": _OCTAGON,
    "running": _PLAY,
    "succeeded": _CHECK,
    "declined": _DASH,
    "terminated": _STOP,
    "timed_out": _CLOCK,
    "warning": _ALARM,
    "critical": _OCTAGON,
}


def icon(word: str) -> SafeString:
    """The sign of a state, an outcome or a severity; what it says stands beside it in words."""
    shape = SafeString(_ICONS.get(word, _CROSS))
    return format_html(
        '<svg class="runlease-icon" width="12" height="12" viewBox="0 0 12 12" aria-hidden="true"'
        ' focusable="false">{}</svg>',
        shape,
    )
