"""A worker for the demo: it claims, is frozen for a while, and then tries to write."""

import sys
from typing import Any

from django.core.management import BaseCommand
from django.core.management.base import CommandParser

from django_runlease import LeaseLost, lease

from ...jobs import charge
from ...models import Invoice

TTL = "2s"


class Command(BaseCommand):
    help = "Claim `month_end`, say so, wait for a line on standard input, then charge an invoice."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("invoice", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        invoice = Invoice.objects.get(pk=options["invoice"])
        try:
            with lease("month_end", ttl=TTL) as held:
                self.stdout.write(f"holds generation {held.generation}, ready to charge {invoice}")
                self.stdout.flush()
                sys.stdin.readline()
                charge(held, invoice)
                self.stdout.write(f"charged {invoice}")
        except LeaseLost as error:
            self.stdout.write(f"refused: {error}")
