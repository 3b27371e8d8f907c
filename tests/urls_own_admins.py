"""A site whose admin has leases as the project itself shows them."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_runlease.models import RunLease

site = AdminSite()
site.register(RunLease)

urlpatterns = [path("admin/", site.urls)]
