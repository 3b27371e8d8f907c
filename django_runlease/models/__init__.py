"""The rows. Only ``store`` changes a lease; everything here reads."""

from .alerts import Alert, AlertKind, Severity
from .effects import Effect, EffectState
from .leases import UNSUCCESSFUL, FenceMark, Outcome, Run, RunLease, RunLeaseQuerySet, State
from .operators import ActionKind, OperatorAction
from .tallies import Measure, Tally, TallyMark

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
