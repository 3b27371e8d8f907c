"""The jobs of the billing site, run from cron as `manage.py runjob NAME`."""

import time

from django.utils import timezone

from django_runlease import HeldLease, job

from . import provider
from .models import Invoice


@job("charge_due_invoices", ttl="1m", every="5m")
def charge_due_invoices(held: HeldLease) -> None:
    """Charge each invoice that is due, and write that down in one fenced transaction each."""
    due = Invoice.objects.filter(charged_at=None, due_at__lte=timezone.now())
    total = due.count()
    for done, invoice in enumerate(due, start=1):
        with held.effect("charge", invoice.pk) as effect:
            # An uncertain one needs no other care: the provider knows the key.
            if not effect.confirmed:
                effect.result = provider.charge(invoice.cents, key=effect.key)
        charge(held, invoice)
        held.progress(done, total, f"charged {invoice}")
    print(f"charged {total} invoices", flush=True)


@job("send_reminders", ttl="3s", every="1h")
def send_reminders(held: HeldLease) -> None:
    """Remind customers of what is overdue; the mail server is slow."""
    for done in range(10):
        held.check()
        print(f"reminder {done + 1} of 10", flush=True)
        held.progress(done + 1, 10)
        time.sleep(provider.LATENCY)


def charge(held: HeldLease, invoice: Invoice) -> None:
    """Write down that *invoice* is charged. Raises LeaseLost if somebody else has taken over."""
    with held.fence():
        invoice.charged_at = timezone.now()
        invoice.charged_by = f"generation {held.generation}"
        invoice.save(update_fields=["charged_at", "charged_by"])
