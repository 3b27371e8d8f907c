from django.contrib import admin

from .models import Invoice


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # generic for the checker only
    list_display = ["customer", "cents", "due_at", "charged_at", "charged_by"]
