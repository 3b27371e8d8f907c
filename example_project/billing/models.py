from django.db import models


class Invoice(models.Model):
    """What a customer owes, due at a moment, and charged once."""

    customer = models.CharField(max_length=100)
    cents = models.PositiveIntegerField()
    due_at = models.DateTimeField()
    charged_at = models.DateTimeField(null=True, blank=True)
    charged_by = models.CharField(max_length=100, blank=True)

    class Meta:
        ordering = ["due_at", "id"]

    def __str__(self) -> str:
        return f"{self.customer}: {self.cents / 100:.2f}"
