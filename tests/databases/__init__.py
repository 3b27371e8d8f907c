"""Further databases for the tests: another one on the same server, another way to the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, connections


@contextmanager
def further_alias(alias: str, **settings: Any) -> Iterator[str]:
    """In the block, *alias* leads to the test's database, or wherever *settings* say."""
    connections.settings[alias] = {
        **connection.settings_dict,
        "ENGINE": "tests.databases",
        **settings,
    }
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


@pytest.fixture(scope="session")
def other_database(django_db_setup, django_db_blocker):
    """The name of a database on the same server, with the tables of leases and invoices."""
    with django_db_blocker.unblock():
        name = f"{connection.settings_dict['NAME']}_other"
        with connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" (FORCE)')
            cursor.execute(f'CREATE DATABASE "{name}"')
        with further_alias("other", NAME=name):
            for app in ("runlease", "billing"):
                call_command("migrate", app, database="other", verbosity=0)
    yield name
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{name}" (FORCE)')


@pytest.fixture
def other(transactional_db, other_database):
    """The alias of that database, without rows."""
    with further_alias("other", NAME=other_database) as alias:
        with connections[alias].cursor() as cursor:
            tables = connections[alias].introspection.django_table_names(only_existing=True)
            names = [table for table in tables if table != "django_migrations"]
            cursor.execute(f"TRUNCATE {', '.join(names)}")
        yield alias


@pytest.fixture
def second(transactional_db):
    """A second alias of the test's own database, with connections of its own."""
    with further_alias("second") as alias:
        yield alias
