"""What a project would write to have its table take fenced writes only."""

from django.db import migrations

from django_runlease.triggers import RequireFence


class Migration(migrations.Migration):
    dependencies = [("billing", "0001_initial"), ("runlease", "0002_fencing")]

    operations = [RequireFence("Invoice", lease='charge 100% of "O\'Hara" \\ żółw')]
