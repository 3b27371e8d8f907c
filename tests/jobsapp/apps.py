import math
import os

from django.apps import AppConfig


class JobsAppConfig(AppConfig):
    name = "tests.jobsapp"
    label = "jobsapp"

    def ready(self):
        if os.environ.get("UNHURRIED"):
            leave_time(float(os.environ["UNHURRIED"]))


def leave_time(backstop):
    """Turn tenths of a second into seconds, for the tests of what has to happen in time.

    A lease is trusted for half of its ttl instead of nine tenths, so whoever ends its job before
    it expires has the other half for that; it is renewed ten times in the first half. *backstop*
    is how many seconds after the trusted time C code is ended.
    """
    from django_runlease import heartbeat, interrupts, terms, watch

    terms.MARGIN_SHARE = watch.MARGIN_SHARE = 2
    heartbeat.BEATS_PER_TTL = heartbeat.RETRIES_PER_TTL = 20
    interrupts.CANCEL_TIMEOUT = 10.0
    watch.HASTE, watch.LAST_WORDS = 2.0, 5.0
    watch.BACKSTOP, watch.BACKSTOP_SHARE = backstop, math.inf
