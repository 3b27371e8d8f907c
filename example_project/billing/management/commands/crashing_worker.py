"""A worker for the demo: it is killed after a call to the provider, before it can confirm it."""

import os
import signal
from typing import Any
from unittest.mock import patch

from django.core.management import BaseCommand

from django_runlease import lease

from ... import jobs, provider


class Command(BaseCommand):
    help = "Run charge_due_invoices, and be killed after the first call to the provider."

    def handle(self, *args: Any, **options: Any) -> None:
        call = provider.charge

        def charge_and_die(*args: Any, **options: Any) -> None:
            self.stdout.write(f"charged as {call(*args, **options)}, and gone")
            self.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        with (
            patch.object(provider, "charge", charge_and_die),
            lease("charge_due_invoices", ttl="1m") as held,
        ):
            jobs.charge_due_invoices(held)
