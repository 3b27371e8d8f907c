"""Tables that refuse what is not fenced, whatever code or person writes there.

The functions live in the lease's database; ``RequireFence`` installs a trigger that calls them.
Both trust no setting: a token is looked up in the lease's row, a bypass in the history.
"""

from __future__ import annotations

import hashlib
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

_REQUIRE_BODY = """
DECLARE
    wanted constant text := TG_ARGV[0];
BEGIN
    PERFORM 1 FROM runlease_runlease
      WHERE name = wanted
        AND token::text = ANY (string_to_array(current_setting('runlease.fence', true), ' '))
        FOR KEY SHARE;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM runlease_run
      WHERE lease_name = wanted AND trigger = 'bypass'
        AND id::text = ANY (string_to_array(current_setting('runlease.bypass', true), ' '))
        AND output = pg_current_xact_id()::text;
    IF FOUND THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'table "%" takes writes only in a fence of the lease "%"', TG_TABLE_NAME, wanted
        USING ERRCODE = 'object_not_in_prerequisite_state',
              HINT = 'Write inside held.fence(); a holder that lost the lease cannot. '
                     'By hand: SELECT runlease_bypass(lease, reason) in the same transaction.';
END
"""

_BYPASS_BODY = """
DECLARE
    run bigint;
BEGIN
    IF coalesce(trim(reason), '') = '' THEN
        RAISE EXCEPTION 'a bypass needs a reason' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO runlease_run (lease_name, holder, host, trigger, started_at, finished_at, outcome,
                              reason, error, output)
    VALUES (lease, session_user, coalesce(host(inet_client_addr()), 'local'), 'bypass',
            clock_timestamp(), clock_timestamp(), 'succeeded', reason, '',
            pg_current_xact_id()::text)
    RETURNING id INTO run;
    PERFORM set_config('runlease.bypass',
        trim(coalesce(current_setting('runlease.bypass', true), '') || ' ' || run), true);
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


class RequireFence(Operation):
    """A migration operation: *model_name*'s table takes writes only in a fence of *lease*.

    Raw SQL and ``psql`` included. Not covered: TRUNCATE, direct writes to partitions, sessions
    with ``session_replication_role = replica``, and an owner who disables the trigger. Its cost
    is one row lookup for each statement, however many rows that writes.

    The migration depends on ``("runlease", "0002_fencing")``.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, model_name: str, lease: str) -> None:
        self.model_name = model_name
        self.lease = lease

    @property
    def trigger(self) -> str:
        """The trigger's name: one for each lease that a table asks for."""
        return f"runlease_fence_{hashlib.sha256(self.lease.encode()).hexdigest()[:12]}"

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The models stay as they are."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = to_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            schema_editor.execute(self._create(schema_editor, model))

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        model = from_state.apps.get_model(app_label, self.model_name)
        if self.allow_migrate_model(schema_editor.connection.alias, model):
            table = schema_editor.quote_name(model._meta.db_table)
            schema_editor.execute(f"DROP TRIGGER IF EXISTS {self.trigger} ON {table}")

    def _create(self, schema_editor: Any, model: Any) -> str:
        table = schema_editor.quote_name(model._meta.db_table)
        lease = "'" + self.lease.replace("'", "''") + "'"
        # schema_editor.execute() without parameters leaves a % as it is.
        return (
            f"CREATE TRIGGER {self.trigger} BEFORE INSERT OR UPDATE OR DELETE ON {table} "
            f"FOR EACH STATEMENT EXECUTE FUNCTION runlease_require_fence({lease})"
        )

    def describe(self) -> str:
        return f"Require a fence of the lease {self.lease!r} for writes to {self.model_name}"

    @property
    def migration_name_fragment(self) -> str:
        return f"require_fence_{self.model_name.lower()}"
