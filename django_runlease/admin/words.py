"""Words of the pages: states, lengths of time, instants in the reader's zone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import datetime

from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from ..clock import utc
from ..models import AlertKind, Outcome, Severity, State
from ..terms import in_unit, pair, spoken
from .charts import Scale
from .figures import STALLED
from .icons import icon

DAY = 86_400

SHORT = 40
"""How many characters of a name are always seen."""

VIEWS = {**dict(State.choices), STALLED: gettext_lazy("not renewed")}
"""What the views of a lease are called."""

TRIGGERS = {
    "api": gettext_lazy("code"),
    "bypass": gettext_lazy("a bypass of the fence"),
    "testing": gettext_lazy("a test"),
}
"""What runs and declined ticks came by, besides commands and what others name."""

TONES = {
    State.HELD.value: "active",
    State.FREE.value: "quiet",
    State.EXPIRED.value: "bad",
    State.PAUSED.value: "warn",
    STALLED: "bad",
    Outcome.RUNNING.value: "active",
    Outcome.SUCCEEDED.value: "good",
    Outcome.DECLINED.value: "quiet",
    Outcome.TERMINATED.value: "warn",
    Severity.WARNING.value: "warn",
    Severity.CRITICAL.value: "bad",
}
"""Which colour goes with a word; failures have that of what is bad."""


def tone(word: str) -> str:
    return TONES.get(word, "bad")


def badge(word: str, label: object) -> SafeString:
    """*label* with the icon and in the colour of *word*."""
    return format_html(
        '<span class="runlease-badge runlease-{}">{} {}</span>', tone(word), icon(word), label
    )


def alert(severity: str, label: object) -> SafeString:
    """The kind of an alert; its severity, which sign and colour tell, also in words that are
    read out."""
    said = dict(Severity.choices).get(severity, severity)
    hidden = format_html('<span class="visually-hidden"> ({})</span>', said)
    return badge(severity, format_html("{}{}", label, hidden))


def view(word: str) -> SafeString:
    return badge(word, VIEWS.get(word, word))


def outcome(word: str) -> SafeString:
    return badge(word, dict(Outcome.choices).get(word, word))


def at_least(count: int, *, cut: bool) -> str:
    """A number that may be higher if what was counted was *cut*."""
    return _("%(count)s or more") % {"count": count} if cut else str(count)


def trigger(word: str) -> object:
    """What a run or a declined tick came by."""
    return TRIGGERS.get(word) or (code(word) if word == "runjob" else name(word))


def kind(word: str) -> str:
    """What a kind of alert is called."""
    return str(dict(AlertKind.choices).get(str(word), word))


def length(seconds: float | None) -> str:
    """A length of time, to the second from one minute on; ``?`` for one without end."""
    if seconds is None:
        return ""
    return spoken(max(seconds, 0.0)).translated() if math.isfinite(seconds) else "?"


def age(seconds: float) -> str:
    """As :func:`length`, in whole seconds."""
    return spoken(int(abs(seconds))).translated() if math.isfinite(seconds) else "?"


def units() -> str:
    """What the script that counts down says: two units, days, hours, minutes and seconds; as JSON,
    with ``{}`` for each number."""
    forms = [pair("{}", "{}"), *(in_unit("{}", unit) for unit in "dhms")]
    return json.dumps([form.translated() for form in forms])


def listed(parts: Iterable[object]) -> str:
    """*parts* in one line."""
    between = pgettext("between the parts of a list", ", ")
    return between.join(str(part) for part in parts if part)


def ago(seconds: float) -> str:
    if abs(seconds) < 1:
        return _("just now")
    if seconds < 0:
        return _("in %(length)s") % {"length": age(seconds)}
    return _("%(length)s ago") % {"length": age(seconds)}


def exact(epoch: float | None) -> str:
    """An instant to the second, in the reader's zone, which is named."""
    instant = utc(epoch)
    if instant is None:
        return ""
    return str(formats.date_format(local(instant), "Y-m-d H:i:s T"))


def local(instant: datetime) -> datetime:
    """*instant* in the reader's zone; the ends of the calendar stay in theirs."""
    try:
        return timezone.localtime(instant)
    except OverflowError:
        return instant


def when(epoch: float | None, now: float) -> SafeString:
    """How long ago, with the exact instant on hover."""
    if epoch is None:
        return SafeString("")
    return _time(epoch, ago(now - epoch), exact(epoch))


def at(epoch: float | None) -> SafeString:
    """The exact instant."""
    return SafeString("") if epoch is None else _time(epoch, exact(epoch), "")


def _time(epoch: float, text: str, title: str) -> SafeString:
    hint = format_html(' title="{}"', title) if title else ""
    iso = utc(epoch).isoformat()
    return format_html('<time datetime="{}"{}>{}</time>', iso, hint, text)


def percent(share: float | None) -> str:
    """*share* of 1 as a percentage that is 100 only if all of it is meant, and 0 only if nothing
    is."""
    if share is None:
        return ""
    if not math.isfinite(share):
        return "?"
    if 0 < share < 0.01:
        return pgettext("a share", "<1%%") % ()
    return pgettext("a share", "%(number)s%%") % {"number": int(share * 100 + 1e-9)}


def name(text: object) -> SafeString:
    """A name from elsewhere, whatever its direction of writing."""
    return format_html('<bdi class="runlease-name">{}</bdi>', text)


def code(text: object) -> SafeString:
    """What is typed somewhere."""
    return format_html("<code><bdi>{}</bdi></code>", text)


def prose(text: object) -> SafeString:
    """A sentence, with what stands in backticks as :func:`code`."""
    parts = str(text).split("`")
    if len(parts) % 2 == 0:
        # One of them has no other, as in the name of a job.
        return format_html("{}", text)
    shown = (code(part) if n % 2 else part for n, part in enumerate(parts))
    return format_html_join("", "{}", ((part,) for part in shown))


def clear(text: object) -> SafeString:
    """As :func:`name`, where there is room for some lines only; the whole of it on hover."""
    hint = format_html(' title="{}"', text) if len(str(text)) > SHORT else ""
    return format_html('<bdi class="runlease-name runlease-short"{}>{}</bdi>', hint, text)


def lines(parts: Iterable[object]) -> SafeString:
    """One under the other."""
    return format_html_join("", '<span class="runlease-line">{}</span>', ((x,) for x in parts))


def nothing() -> SafeString:
    return format_html('<span class="runlease-none" title="{}">{}</span>', _("none"), "\N{EN DASH}")


_STEPS = (60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY, 2 * DAY, 7 * DAY, 14 * DAY)


def scale(since: float, until: float) -> Scale:
    """A period with at most seven labels, at whole hours or days as the reader's clocks show them,
    also where these are changed."""
    span = until - since
    step = next((step for step in _STEPS if span / step <= 7), span)
    shape = "H:i" if step < DAY else "j M"
    instants = sorted({at for at in _instants(since, until, step) if since <= at <= until})
    ticks = [(at, formats.date_format(local(utc(at)), shape)) for at in instants]
    return Scale(since=since, until=until, ticks=ticks)


def _instants(since: float, until: float, step: float) -> Iterator[float]:
    """When the reader's clocks show a multiple of *step*, from about *since* to about *until*."""
    zone = timezone.get_current_timezone()
    # They are aware.
    offsets = [local(utc(at)).utcoffset().total_seconds() for at in (since, until)]  # type: ignore[union-attr]
    first, last = (since + min(offsets)) / step, (until + max(offsets)) / step
    for n in range(math.ceil(first), math.floor(last) + 1):
        shown = utc(n * step).replace(tzinfo=zone)
        instant, again = (shown.replace(fold=fold).timestamp() for fold in (0, 1))
        yield instant
        # An hour may be there twice, but no day begins twice.
        if step < DAY:
            yield max(instant, again)
