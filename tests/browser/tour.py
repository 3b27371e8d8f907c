"""The addresses of all pages of the admin that are ours."""

from __future__ import annotations

from django.urls import reverse

from django_runlease.models import Outcome, Run, RunLease

LEASES = reverse("admin:runlease_runlease_changelist")
OVERVIEW = reverse("admin:runlease_runlease_overview")
RUNS = reverse("admin:runlease_run_changelist")

LOOKED_AT = {
    "leases": (LEASES,),
    "leases-filtered": (f"{LEASES}?alerts=open&q=r",),
    "leases-none": (f"{LEASES}?q=nowhere",),
    "overview": (OVERVIEW,),
    "runs": (RUNS,),
    "runs-of-one": (f"{RUNS}?lease=billing",),
    "run-failed": (Outcome.FAILED,),
    "run-declined": (Outcome.DECLINED,),
    "run-running": (Outcome.RUNNING,),
    "lease": ("billing", "change"),
    "lease-free": ("sync_crm", "change"),
    "lease-paused": ("send_reminders", "change"),
    "lease-stalled": ("import_rates", "change"),
    "lease-expired": ("nightly_report", "change"),
    "lease-new": ("year_end", "change"),
    "pause": ("billing", "pause"),
    "break": ("billing", "break"),
    "break-expired": ("nightly_report", "break"),
    "resume": ("send_reminders", "resume"),
    "silence": ("sync_crm", "silence", "failing"),
    "history": ("billing", "history"),
}
"""In the world, by a name that can be one of a file: an address, the outcome of a run, or a lease
and what is done to it."""

NAMES = tuple(LOOKED_AT)

HOSTILE = {
    "leases": (LEASES,),
    "leases-filtered": (f"{LEASES}?q={'W' * 100}",),
    "overview": (OVERVIEW,),
    "runs": (RUNS,),
    "runs-filtered": (f"{RUNS}?q={'W' * 100}",),
    "run-failed": (Outcome.FAILED,),
    "run-declined": (Outcome.DECLINED,),
    "run-running": (Outcome.RUNNING,),
    "lease": ("change",),
    "resume": ("resume",),
    "break": ("break",),
    "silence": ("silence", "failing"),
    "history": ("history",),
}
"""Those of a job whose name is hostile."""

SEEN = {
    "leases": ["held", "free", "expired", "paused", "not renewed", "contention", "(silenced)"],
    "overview": ["failing", "billing", "web1:", "not renewed"],
    "lease": [
        *("36 of 120", "web1:", "contention", "Takeovers", "Breaks", "Declined", "1017"),
        *("What operators did", "the provider hangs"),
    ],
    "lease-free": ["failing"],
    "lease-paused": ["the mail server is down"],
    "lease-stalled": ["not renewed", "stuck", "silenced until"],
    "lease-expired": ["expired", "ghost"],
    "break": ["holds it now", "renewed"],
    "run-failed": ["TimeoutError"],
}
"""What has to be there for the others to mean anything."""


def pages() -> dict[str, str]:
    """The addresses of those that are looked at. Asks the database."""
    return {name: _address(*given) for name, given in LOOKED_AT.items()}


def hostile_pages(job: str) -> dict[str, str]:
    """The addresses of those of *job*. Asks the database."""
    found = {}
    for name, given in HOSTILE.items():
        is_action = given[0] not in Outcome.values and "/" not in given[0]
        found[name] = _address(job, *given) if is_action else _address(*given, job=job)
    return found


def _address(what: str, *more: str, job: str = "") -> str:
    if more:
        key = RunLease.objects.values_list("pk", flat=True).get(name=what)
        return reverse(f"admin:runlease_runlease_{more[0]}", args=[key, *more[1:]])
    if what not in Outcome.values:
        return what
    runs = Run.objects.filter(outcome=what).order_by("-started_at")
    key = (runs.filter(lease_name=job) if job else runs).values_list("pk", flat=True)[0]
    return reverse("admin:runlease_run_change", args=[key])
