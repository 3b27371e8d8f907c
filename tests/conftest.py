"""Fixtures that several modules share."""

import signal

from .databases import other, other_database, second

__all__ = ["other", "other_database", "second"]

# A test run under nohup ignores SIGHUP, and its children would.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
