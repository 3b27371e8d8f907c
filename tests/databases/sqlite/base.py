"""SQLite, on aliases that did not exist when a test's class was set up."""

from django.db.backends.sqlite3 import base


class DatabaseWrapper(base.DatabaseWrapper):
    def ensure_connection(self):
        if self.connection is None:
            with self.wrap_database_errors:
                self.connect()
