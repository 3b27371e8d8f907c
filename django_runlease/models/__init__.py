"""The rows. Only ``store`` changes a lease; everything here reads."""

from .alerts import Alert
from .choices import (
    UNSUCCESSFUL,
    ActionKind,
    AlertKind,
    EffectState,
    Measure,
    Outcome,
    Severity,
    State,
)
from .effects import Effect
from .leases import FenceMark, Run, RunLease, RunLeaseQuerySet
from .operators import OperatorAction
from .tallies import Tally, TallyMark

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
