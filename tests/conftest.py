"""Fixtures that several modules share."""

import gc
import signal
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from .databases import other, other_database, second
from .servers import fresh_server, server

__all__ = ["fresh_server", "other", "other_database", "second", "server"]

# How long an example takes says nothing on a machine with other work.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# A test run under nohup ignores SIGHUP, one in the background of a script the others, and its
# children would.
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """What a failing test still holds is let go, so that no other test fails for it."""
    from django_runlease import HeldLease, heartbeat

    if call.excinfo is not None:
        # Not isinstance(), which would wake Django's lazy objects.
        for held in [found for found in gc.get_objects() if type(found) is HeldLease]:
            heartbeat.stop(held)
            held._ended = True
