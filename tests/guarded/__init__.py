"""Tables that take fenced writes only, for the tests."""

from contextlib import contextmanager

from django.db import connections
from django.db.migrations.state import ProjectState

from django_runlease.triggers import RequireFence
from example_project.billing.models import Invoice


@contextmanager
def required(lease="job", table=Invoice, using="default"):
    """In the block, a table takes writes only in a fence of *lease*."""
    operation = RequireFence(table.__name__, lease)
    state = ProjectState.from_apps(table._meta.apps)
    app = table._meta.app_label
    with connections[using].schema_editor() as editor:
        operation.database_forwards(app, editor, state, state)
    try:
        yield operation
    finally:
        with connections[using].schema_editor() as editor:
            operation.database_backwards(app, editor, state, state)
