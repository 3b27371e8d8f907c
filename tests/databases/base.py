"""A database engine: PostgreSQL's, on aliases that did not exist when a test's class was set up."""

from django.db.backends.postgresql import base


class DatabaseWrapper(base.DatabaseWrapper):
    def ensure_connection(self):
        # Django's tests put a guard in the place of this method, for the aliases they know.
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
