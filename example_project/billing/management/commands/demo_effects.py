"""The story of an external effect: killed between the call and its confirmation, then repeated."""

import os
import time
from typing import Any
from unittest.mock import patch

from django.core.management import call_command

from ... import provider
from ...models import Invoice
from . import demo


class Command(demo.Command):
    help = "Show that a payment is not made twice, although a worker is killed right after it."

    def handle(self, *args: Any, **options: Any) -> None:
        self._began = time.monotonic()
        self._prepare()
        with provider.serving() as there, patch.dict(os.environ, PROVIDER_URL=there.url):
            self._charge(there)

    def _charge(self, there: provider.Provider) -> None:
        self.chapter("A worker is killed between the call to the provider and its confirmation")
        demo.Actor(self, "worker", "crashing_worker").end()
        call_command("runlease", "effects", "--uncertain", stdout=self.stdout)
        self.chapter("The next tick takes over, and asks again with the same idempotency key")
        demo.Actor(self, "next tick", "runjob", "charge_due_invoices", "-v2").end()
        call_command("runlease", "effects", "--limit", "6", stdout=self.stdout)
        self.tell(
            "provider",
            f"{there.requests} requests, {len(there.charges)} charges, "
            f"{Invoice.objects.count()} invoices",
        )
