"""What operators do, written down in the transaction that does it."""

from __future__ import annotations

from typing import Any

from ..clock import Now
from ..models import ActionKind, OperatorAction
from ..text import storable

REASON_LENGTH = 500


def checked_reason(reason: str) -> str:
    """Return *reason*, ready to store. Raises ValueError if it is too long."""
    if len(reason) > REASON_LENGTH:
        raise ValueError(
            f"a reason has at most {REASON_LENGTH} characters, and this one has {len(reason)}: "
            "say it shorter, or name the place where more is written"
        )
    return storable(reason)


def note_action(
    kind: ActionKind, name: str, alias: str, *, by: str, reason: str = "", **detail: Any
) -> None:
    """Write down what is being done to *name*, after its row is locked, so that the order of the
    times is that of the changes. *detail* is what :class:`.OperatorAction` has of this kind."""
    OperatorAction.objects.using(alias).create(
        lease_name=name, kind=kind, by=storable(by), reason=reason, at=Now(), detail=detail
    )
