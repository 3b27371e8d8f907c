"""A site whose admin has runs and nothing else."""

from django.contrib.admin import AdminSite
from django.urls import path

from django_runlease.admin.runs import RunAdmin
from django_runlease.models import Run

site = AdminSite()
site.register(Run, RunAdmin)

urlpatterns = [path("admin/", site.urls)]
