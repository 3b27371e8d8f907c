"""For ``path("runlease/", include("django_runlease.urls"))``: the health endpoint."""

from __future__ import annotations

from django.urls import path

from . import views

app_name = "runlease"
urlpatterns = [path("health/", views.health, name="health")]
