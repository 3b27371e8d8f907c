from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("billing", "0002_require_fence")]

    operations = [migrations.RenameModel("Invoice", "Bill")]
