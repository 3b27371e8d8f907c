"""Fixtures that several modules share."""

from .databases import other, other_database, second

__all__ = ["other", "other_database", "second"]
