"""The jobs of the billing site, run by `manage.py runjob charge_due_invoices` from cron."""

from django.utils import timezone

from django_runlease import HeldLease, job

from .models import Invoice


@job("charge_due_invoices", ttl="1m", every="5m")
def charge_due_invoices(held: HeldLease) -> None:
    """Charge each invoice that is due, one fenced transaction each."""
    due = Invoice.objects.filter(charged_at=None, due_at__lte=timezone.now())
    total = due.count()
    for done, invoice in enumerate(due, start=1):
        with held.fence():
            invoice.charged_at = timezone.now()
            invoice.charged_by = f"generation {held.generation}"
            invoice.save(update_fields=["charged_at", "charged_by"])
        held.progress(done, total)
