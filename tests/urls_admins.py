"""Two sites of the admin, of which the second knows the leases."""

from django.contrib import admin
from django.urls import path

from django_runlease.admin import RunAdmin, RunLeaseAdmin
from django_runlease.models import Run, RunLease

operations = admin.AdminSite(name="operations")
operations.register(RunLease, RunLeaseAdmin)
operations.register(Run, RunAdmin)

urlpatterns = [path("admin/", admin.site.urls), path("operations/", operations.urls)]
