"""How a run ends, for the history."""

from __future__ import annotations

import traceback

from .exceptions import JobTimeout, LeaseLost, Stopped
from .models import Outcome
from .store import Closing
from .text import summary


def closing_for(error: BaseException | None) -> Closing:
    """How a run that ended with *error* goes into the history."""
    if error is None:
        return Closing(outcome=Outcome.SUCCEEDED)
    if isinstance(error, LeaseLost):
        outcome = Outcome.LOST
    elif isinstance(error, JobTimeout):
        outcome = Outcome.STALLED if error.stalled else Outcome.TIMED_OUT
    elif isinstance(error, SystemExit) and not isinstance(error, Stopped):
        outcome = Outcome.FAILED if error.code else Outcome.SUCCEEDED
    else:
        outcome = Outcome.FAILED if isinstance(error, Exception) else Outcome.TERMINATED
    return Closing(
        outcome=outcome,
        reason=summary(error),
        error="".join(traceback.format_exception(error)),
    )
