"""Tables that refuse what is not fenced, whatever code or person writes there.

The functions live in the lease's database; ``RequireFence`` installs a trigger that calls them.
Both trust no setting: a token is looked up in the lease's row, a bypass in the history.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations import DeleteModel, RenameModel, RunSQL, SeparateDatabaseAndState
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from .text import check_name

_REQUIRE_BODY = """
DECLARE
    wanted constant text := TG_ARGV[0];
BEGIN
    PERFORM 1 FROM runlease_runlease
      WHERE name::text = wanted
        AND token::text = ANY (string_to_array(current_setting('runlease.fence', true), ' '))
        FOR KEY SHARE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- A table in another database than the lease: what its fences there go by.
    PERFORM 1 FROM runlease_fencemark
      WHERE lease_name::text = wanted
        AND token::text = ANY (string_to_array(current_setting('runlease.fence', true), ' '))
        AND NOT EXISTS (SELECT FROM runlease_runlease WHERE name::text = wanted)
        FOR SHARE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    -- The setting only says which run to look at; that the run is of this transaction lets through.
    PERFORM 1 FROM runlease_run
      WHERE lease_name::text = wanted AND trigger::text = 'bypass'
        AND started_at >= transaction_timestamp()
        AND id::text = ANY (string_to_array(current_setting('runlease.bypass', true), ' '))
        AND token = lpad(to_hex(pg_current_xact_id()::text::bigint), 32, '0')::uuid;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'table "%" takes writes only in a fence of the lease "%"', TG_TABLE_NAME, wanted
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = CASE WHEN EXISTS (
                  SELECT FROM runlease_fencemark
                   WHERE lease_name::text = wanted AND token::text = ANY (
                         string_to_array(current_setting('runlease.fence', true), ' '))
              ) THEN format(
                  'The fence is of a lease in another database, but a lease of that name in this '
                  'one counts before it. If it is left over from earlier: '
                  'DELETE FROM runlease_runlease WHERE name = %L', wanted)
              ELSE
                  'Write inside held.fence(); a holder that lost the lease cannot. '
                  'By hand: SELECT runlease_bypass(lease, reason) in the same transaction.'
              END;
END
"""

_BYPASS_BODY = """
DECLARE
    run bigint;
BEGIN
    IF coalesce(reason, '') !~ '[^[:space:]]' THEN
        RAISE EXCEPTION 'a bypass needs a reason' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO runlease_run (lease_name, token, holder, host, trigger, started_at, finished_at,
                              outcome, reason, error, output)
    VALUES (lease, lpad(to_hex(pg_current_xact_id()::text::bigint), 32, '0')::uuid, session_user,
            coalesce(host(inet_client_addr()), 'local'), 'bypass', clock_timestamp(),
            clock_timestamp(), 'succeeded', reason, '', '')
    RETURNING id INTO run;
    PERFORM set_config('runlease.bypass',
        trim(coalesce(current_setting('runlease.bypass', true), '') || ' ' || run::text), true);
END
"""

# The search_path is fixed to the schema where this is run, with pg_temp last: a temporary table
# of the same name would otherwise stand in for the leases.
INSTALL = f"""
CREATE OR REPLACE FUNCTION runlease_require_fence() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER AS $body${_REQUIRE_BODY}$body$;
CREATE OR REPLACE FUNCTION runlease_bypass(lease text, reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $body${_BYPASS_BODY}$body$;
DO $path$ BEGIN
    EXECUTE format('ALTER FUNCTION runlease_require_fence() SET search_path = %I, pg_temp',
                   current_schema());
    EXECUTE format('ALTER FUNCTION runlease_bypass(text, text) SET search_path = %I, pg_temp',
                   current_schema());
END $path$;
"""
UNINSTALL = """
DROP FUNCTION IF EXISTS runlease_require_fence();
DROP FUNCTION IF EXISTS runlease_bypass(text, text);
"""


FUNCTIONS = {
    "runlease_require_fence()": _REQUIRE_BODY,
    "runlease_bypass(text,text)": _BYPASS_BODY,
}
MIGRATION = ("runlease", "0002_fencing")
"""The migration that installs them."""


class InstallFunctions(RunSQL):
    """The functions, in a PostgreSQL database; the app's tables may be migrated into others too."""

    def _run_sql(self, schema_editor: BaseDatabaseSchemaEditor, sqls: Any) -> None:
        if schema_editor.connection.vendor == "postgresql":
            super()._run_sql(schema_editor, sqls)  # type: ignore[misc]  # the stubs lack it


class _FenceOperation(Operation):
    """What makes or takes away the trigger of one table for one lease."""

    reversible = True
    reduces_to_sql = True

    def __init__(self, model_name: str, lease: str) -> None:
        check_name(lease)
        self.model_name = model_name
        self.lease = lease

    @property
    def trigger(self) -> str:
        """The trigger's name: one for each lease that a table asks for."""
        return f"runlease_fence_{hashlib.sha256(self.lease.encode()).hexdigest()[:12]}"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay as they are."""

    def _execute(self, statement: str, app_label: str, editor: Any, state: ProjectState) -> None:
        model = state.apps.get_model(app_label, self.model_name)
        if _belongs(editor.connection, model):
            table, lease = editor.quote_name(model._meta.db_table), _literal(self.lease)
            sql = statement.format(trigger=self.trigger, table=table, lease=lease)
            editor.execute(sql, None)


_CREATE_TRIGGER = (
    "CREATE TRIGGER {trigger} BEFORE INSERT OR UPDATE OR DELETE ON {table} "
    "FOR EACH STATEMENT EXECUTE FUNCTION runlease_require_fence({lease})"
)


class RequireFence(_FenceOperation):
    """A migration operation: *model_name*'s table takes writes only in a fence of *lease*.

    Raw SQL and ``psql`` included. Not covered: TRUNCATE, direct writes to partitions, sessions
    with ``session_replication_role = replica``, and an owner who disables the trigger. Its cost
    is one row lookup for each statement, however many rows that writes.

    The migration depends on ``("runlease", "0002_fencing")``. A later one ends it with DropFence.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._execute(_CREATE_TRIGGER, app_label, schema_editor, to_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        statement = "DROP TRIGGER IF EXISTS {trigger} ON {table}"
        self._execute(statement, app_label, schema_editor, from_state)

    def describe(self) -> str:
        return f"Require a fence of the lease {self.lease!r} for writes to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"require_fence_{self.model_name.lower()}"


class DropFence(_FenceOperation):
    """A migration operation that ends what ``RequireFence(model_name, lease)`` has begun.

    Backwards it requires the fence again. Migrating raises Django's DatabaseError where no fence
    of *lease* is required for the table, as after a slip in its name.
    """

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        # Without IF EXISTS: the table would stay as it is, and nobody would be told.
        self._execute("DROP TRIGGER {trigger} ON {table}", app_label, schema_editor, from_state)

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        self._execute(_CREATE_TRIGGER, app_label, schema_editor, to_state)

    def describe(self) -> str:
        return (
            f"No longer require a fence of the lease {self.lease!r} for writes to {self.model_name}"
        )

    @property
    def migration_name_fragment(self) -> str:
        return f"drop_fence_{self.model_name.lower()}"


def _belongs(connection: BaseDatabaseWrapper, model: Any) -> bool:
    # Not Operation.allow_migrate_model, which leaves proxies and unmanaged tables out silently.
    return connection.vendor == "postgresql" and router.allow_migrate_model(connection.alias, model)


def _literal(text: str) -> str:
    """*text* as a string of SQL, whatever standard_conforming_strings says."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


# -- what is there, against what the migrations have asked for


class Fault(NamedTuple):
    """A trigger or function that is not as a migration has left it."""

    what: str
    remedy: str


def faults(connection: BaseDatabaseWrapper) -> Iterator[Fault]:
    """The triggers and functions that are missing, disabled or changed in this database.

    Asked for by the migrations applied to it. Raises Django's database errors.
    """
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    if MIGRATION not in loader.applied_migrations:
        return
    for signature, body in FUNCTIONS.items():
        if state := _function_state(connection, signature, body):
            yield Fault(f"the function {signature} is {state}", _as_in(MIGRATION))
    for table, operation, node in _required(loader, connection.alias):
        if state := _trigger_state(connection, table, operation):
            what = f"the trigger {operation.trigger} of the table {table!r}, which requires a fence"
            quoted = connection.ops.quote_name(table)
            remedy = _REMEDIES[state].format(
                table=quoted, trigger=operation.trigger, as_in=_as_in(node)
            )
            yield Fault(f"{what} of the lease {operation.lease!r}, is {state}", remedy)


_REMEDIES = {
    "missing": "{as_in}",
    "changed": "Drop it: DROP TRIGGER {trigger} ON {table}; {as_in}",
    "disabled": "Enable it: ALTER TABLE {table} ENABLE TRIGGER {trigger};",
}


def _as_in(node: Node) -> str:
    return f"Put it back by its SQL, which `manage.py sqlmigrate {' '.join(node)}` shows."


def _function_state(connection: BaseDatabaseWrapper, signature: str, body: str) -> str | None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT prosrc, prosecdef,
                   proconfig = ARRAY['search_path=' || quote_ident(nspname) || ', pg_temp']
              FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace
             WHERE pg_proc.oid = to_regprocedure(%s)
            """,
            [signature],
        )
        row = cursor.fetchone()
    if row is None:
        return "missing"
    # The body, that it runs as its creator, and that its search_path is the one it was given.
    return None if row == (body, True, True) else "changed"


_BEFORE_STATEMENT = 2 | 4 | 8 | 16
"""pg_trigger.tgtype: BEFORE INSERT OR DELETE OR UPDATE, FOR EACH STATEMENT."""

_TRIGGER = """
    SELECT tgenabled IN ('O', 'A'),
           tgtype = %s AND tgargs = %s AND tgattr::text = '' AND tgqual IS NULL
             AND tgfoid = to_regprocedure('runlease_require_fence()')
      FROM pg_trigger
     WHERE tgrelid = to_regclass(%s) AND tgname = %s
"""


def _trigger_state(
    connection: BaseDatabaseWrapper, table: str, operation: RequireFence
) -> str | None:
    arguments = operation.lease.encode() + b"\0"
    quoted = connection.ops.quote_name(table)
    with connection.cursor() as cursor:
        cursor.execute(_TRIGGER, [_BEFORE_STATEMENT, arguments, quoted, operation.trigger])
        row = cursor.fetchone()
    if row is None:
        return "missing"
    enabled, unchanged = row
    if not unchanged:
        return "changed"
    return None if enabled else "disabled"


Node = tuple[str, str]
Wanted = dict[tuple[str, str], list[tuple[RequireFence, Node]]]


def _required(loader: MigrationLoader, alias: str) -> Iterator[tuple[str, RequireFence, Node]]:
    """The table, the operation and its migration, for all that is applied."""
    state, wanted = ProjectState(real_apps=loader.unmigrated_apps), Wanted()
    plan = [loader.graph.forwards_plan(leaf) for leaf in loader.graph.leaf_nodes()]
    for node in dict.fromkeys(node for nodes in plan for node in nodes):
        if node in loader.applied_migrations:
            for operation in loader.graph.nodes[node].operations:
                _follow(operation, node, wanted)
                operation.state_forwards(node[0], state)
    for (app_label, model_name), operations in wanted.items():
        model = state.apps.get_model(app_label, model_name)
        for operation, node in operations:
            if _belongs(connections[alias], model):
                yield model._meta.db_table, operation, node


def _follow(operation: Operation, node: Node, wanted: Wanted) -> None:
    app_label = node[0]
    if isinstance(operation, RequireFence):
        wanted.setdefault((app_label, operation.model_name.lower()), []).append((operation, node))
    elif isinstance(operation, DropFence):
        there = wanted.get((app_label, operation.model_name.lower()), [])
        there[:] = [each for each in there if each[0].lease != operation.lease]
    elif isinstance(operation, RenameModel):
        if moved := wanted.pop((app_label, operation.old_name_lower), None):
            wanted[app_label, operation.new_name_lower] = moved
    elif isinstance(operation, DeleteModel):
        wanted.pop((app_label, operation.name_lower), None)
    elif isinstance(operation, SeparateDatabaseAndState):
        for each in (*operation.database_operations, *operation.state_operations):
            _follow(each, node, wanted)
