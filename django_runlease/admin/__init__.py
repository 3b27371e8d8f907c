"""The leases and their history in the Django admin. Imported by the admin, if it is installed."""

from django.contrib import admin

from ..models import Run, RunLease
from .leases import RunLeaseAdmin
from .runs import RunAdmin

admin.site.register(RunLease, RunLeaseAdmin)
admin.site.register(Run, RunAdmin)
