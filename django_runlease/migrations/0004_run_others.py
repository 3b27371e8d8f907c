from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("runlease", "0003_monitoring"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="run",
            index=models.Index(
                condition=models.Q(
                    (
                        "outcome__in",
                        [
                            *("abandoned", "declined", "failed", "lost"),
                            *("stalled", "terminated", "timed_out"),
                        ],
                    )
                ),
                fields=["lease_name", "outcome", "started_at"],
                name="runlease_run_others",
            ),
        ),
    ]
