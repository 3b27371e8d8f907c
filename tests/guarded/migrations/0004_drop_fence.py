from django.db import migrations

from django_runlease.triggers import DropFence, RequireFence


class Migration(migrations.Migration):
    dependencies = [("billing", "0003_rename")]

    operations = [
        RequireFence("Bill", lease="another"),
        DropFence("Bill", lease='charge 100% of "O\'Hara" \\ żółw'),
    ]
