"""For ``django_runlease.testing`` alone: what otherwise takes a crash and some patience."""

from __future__ import annotations

from datetime import timedelta

from ..clock import Now, Seconds
from ..models import RunLease
from .connection import in_transaction


def expire(name: str, alias: str) -> bool:
    """Let the lease expire as if its ttl had passed; False if nobody holds it."""
    held = RunLease.objects.using(alias).filter(name=name, token__isnull=False)
    moment_ago = Now() - Seconds(timedelta(milliseconds=1))
    return bool(in_transaction(alias, lambda: held.update(expires_at=moment_ago)))
