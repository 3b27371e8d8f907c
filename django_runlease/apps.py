from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class RunLeaseConfig(AppConfig):
    name = "django_runlease"
    label = "runlease"
    verbose_name = _("Job leases")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from . import checks  # noqa: F401  registers them
