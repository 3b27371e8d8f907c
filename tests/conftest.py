"""Fixtures that several modules share."""

import gc
import signal
import sys
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
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


@pytest.fixture
def ops(client: Client, db: None) -> Client:
    """The browser of a superuser of the admin."""
    client.force_login(get_user_model().objects.create_superuser("ops"))
    return client


@pytest.fixture
def make_app(tmp_path: Any, monkeypatch: Any, settings: Any) -> Any:
    """Install an app of the given name whose ``jobs.py`` has the given text."""

    def make(name: str, text: str) -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "jobs.py").write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, name]

    yield make
    for module in [module for module in sys.modules if module.startswith("runlease_test_")]:
        del sys.modules[module]


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    """What a failing test still holds is let go, so that no other test fails for it."""
    from django_runlease import HeldLease, heartbeat

    if call.excinfo is not None:
        # Not isinstance(), which would wake Django's lazy objects.
        for held in [found for found in gc.get_objects() if type(found) is HeldLease]:
            heartbeat.stop(held)
            held._ended = True
