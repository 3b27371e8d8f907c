"""A site whose admin has leases and nothing else."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_runlease.admin.leases import RunLeaseAdmin
from django_runlease.models import RunLease

site = AdminSite()
site.register(RunLease, RunLeaseAdmin)

urlpatterns = [path("admin/", site.urls)]
