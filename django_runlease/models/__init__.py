"""The rows. Only ``store`` changes a lease; everything here reads."""

from .leases import (
    UNSUCCESSFUL,
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
from .operators import ActionKind, OperatorAction

__all__ = [
    "UNSUCCESSFUL",
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
