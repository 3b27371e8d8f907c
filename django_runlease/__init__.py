"""draft"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .claiming import claim, lease, leased
    from .exceptions import Declined, JobTimeout, LeaseDeclined, LeaseLost, RunLeaseError
    from .held import HeldLease, current_lease
    from .jobs import job

__version__ = "0.1.0"

# Settings import this package before the apps are ready, so models must not be imported yet.
_HOMES = {
    "lease": "claiming",
    "claim": "claiming",
    "leased": "claiming",
    "job": "jobs",
    "current_lease": "held",
    "HeldLease": "held",
    "Declined": "exceptions",
    "RunLeaseError": "exceptions",
    "LeaseDeclined": "exceptions",
    "LeaseLost": "exceptions",
    "JobTimeout": "exceptions",
}

__all__ = [
    "Declined",
    "HeldLease",
    "JobTimeout",
    "LeaseDeclined",
    "LeaseLost",
    "RunLeaseError",
    "claim",
    "current_lease",
    "job",
    "lease",
    "leased",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
