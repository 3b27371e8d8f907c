"""The rows. Only ``store`` changes a lease; everything here reads."""

from .actions import ActionKind, OperatorAction
from .rows import (
    Alert,
    AlertKind,
    Effect,
    EffectState,
    FenceMark,
    Measure,
    Outcome,
    Run,
    RunLease,
    RunLeaseQuerySet,
    Severity,
    State,
    Tally,
    TallyMark,
)

__all__ = [
    "ActionKind",
    "Alert",
    "AlertKind",
    "Effect",
    "EffectState",
    "FenceMark",
    "Measure",
    "OperatorAction",
    "Outcome",
    "Run",
    "RunLease",
    "RunLeaseQuerySet",
    "Severity",
    "State",
    "Tally",
    "TallyMark",
]
