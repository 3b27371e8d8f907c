"""A billing company's day: leases in all states. The store does it; then it is set back in time."""

from __future__ import annotations

import json
import math
import uuid
from datetime import timedelta
from typing import Any

from django.db.models import F
from django.utils import timezone

from django_runlease import incidents, silences, store
from django_runlease.holder import Holder
from django_runlease.models import Alert, Effect, OperatorAction, Outcome, Run, RunLease
from django_runlease.store import Claimed, Closing, Refusal

from ..support import ago, wish

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

_ODD = "<b title='\"x'>&amp;</b> \u05e9\u05dc\u05d5\u05dd \N{RECEIPT} "

NAME = (_ODD + "W" * 200)[:200]
"""The longest name: markup, quotes, right to left, and no place to break the line at."""

HOSTILE = "\u202e" + NAME
"""Text that may be more than a name may: it would turn around what follows it."""

TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/app/shop/jobs.py", line 58, in {job}
    answer = client.send(batch)
             ^^^^^^^^^^^^^^^^^^
TimeoutError: no answer from {job}.example.com within 30 s
"""


def host(name: str, pid: int) -> Holder:
    """A process on another machine, so that nobody here can say if it lives."""
    process = {"pid": pid, "start": 1, "boot_id": name, "pid_namespace": name}
    return Holder(name=f"{name}:{pid}", host=name, process=process)


class Job:
    """One job, whose story is told from the oldest tick to the newest."""

    def __init__(self, name: str, **terms: Any) -> None:
        self.name = name
        self.terms = {"ttl": 60.0, **terms}
        self._pid = 4_000

    def request(self, where: str) -> Any:
        self._pid += 7
        holder = host(where, self._pid)
        return wish(
            self.name, trigger="runjob", runs=f"shop.jobs.{self.name}", holder=holder, **self.terms
        )

    def begin(self, age: float, where: str = "web1") -> Claimed:
        """A claim, so many seconds ago, that is not released."""
        claimed = store.claim(self.request(where), "default")
        assert isinstance(claimed, Claimed), claimed
        runs = Run.objects.filter(pk=claimed.run_id)
        late = timedelta(seconds=wave(claimed.generation, 0.2, 2.5))
        runs.update(started_at=ago(age), tick=ago(age + late.total_seconds()), lag=late)
        self.row(claimed_at=runs.values_list("started_at", flat=True).get())
        return claimed

    def ran(
        self,
        age: float,
        length: float,
        where: str = "web1",
        outcome: Outcome = Outcome.SUCCEEDED,
        **closing: Any,
    ) -> None:
        """A run that began so many seconds ago and took that long."""
        claimed = self.begin(age, where)
        assert store.release(claimed, Closing(outcome=outcome, **closing)) is None
        self._end(claimed, age - length)

    def _end(self, claimed: Claimed, age: float) -> None:
        Run.objects.filter(pk=claimed.run_id).update(finished_at=ago(age))

    def declined(self, age: float, where: str = "web2") -> None:
        """A tick that was declined so many seconds ago."""
        request = self.request(where)
        refusal = store.claim(request, "default")
        assert isinstance(refusal, Refusal), refusal
        pk = store.record_decline(request, refusal, "default")
        Run.objects.filter(pk=pk).update(started_at=ago(age), finished_at=ago(age))

    def crashed(self, age: float, length: float, where: str = "web2") -> None:
        """A run whose holder was never heard of again; its lease has expired."""
        claimed = self.begin(age, where)
        store.expire(self.name, "default")
        self._end_when_closed = (claimed, age - length)

    def taken_over(self, age: float, length: float, where: str = "web1") -> None:
        """A run that took over from the one that crashed."""
        self.ran(age, length, where)
        self._end(*self._end_when_closed)

    def broken(self, age: float, length: float, by: str, reason: str) -> None:
        """A run that an operator ended."""
        claimed = self.begin(age)
        store.break_lease(self.name, "default", by=by, reason=reason, at_once=True)
        OperatorAction.objects.filter(lease_name=self.name).update(at=ago(age - length))
        self._end(claimed, age - length)

    def row(self, **values: Any) -> None:
        RunLease.objects.filter(name=self.name).update(**values)


def build(days: float = 0.5) -> None:
    """All of it, with the histories of so many days."""
    billing(days)
    crm(days)
    quiet(days)
    trouble()
    number_by_time()
    incidents.check("default")
    Alert.objects.update(opened_at=ago(12 * MINUTE))
    Alert.objects.filter(kind="contention").update(opened_at=ago(80))
    silences.silence("import_rates", "stuck", "default", by="grace", length=timedelta(hours=4))


def number_by_time() -> None:
    """The runs of all jobs in one order, as they would have begun."""
    began = list(Run.objects.order_by("started_at").values_list("id", flat=True))
    Run.objects.update(id=-F("id"))
    for new, old in zip(sorted(began), began, strict=True):
        Run.objects.filter(id=-old).update(id=new)


def wave(n: int, low: float, high: float) -> float:
    """A length between two others, odd and always the same."""
    return low + (high - low) * (0.5 + 0.32 * math.sin(n * 1.7) + 0.18 * math.sin(n * 0.31))


def billing(days: float) -> None:
    """Held, with progress; its day has had a crash, a takeover, a break, and ticks declined."""
    job = Job("billing", ttl=600.0, every=5 * MINUTE)
    last = int(days * DAY / (5 * MINUTE))
    for n in range(last, 0, -1):
        age = n * 5 * MINUTE + 130
        if n == last // 2:
            job.crashed(age, 70)
        elif n == last // 2 - 1:
            job.taken_over(age, 95)
        elif n == last // 3:
            job.broken(age, 280, "grace", "the provider hangs")
        elif n == last // 3 - 1:
            job.ran(age, 31, outcome=Outcome.FAILED, exit_code=1, **failure("billing"))
        else:
            job.ran(age, wave(n, 40, 190), where=f"web{n % 2 + 1}")
    claimed = job.begin(130)
    for age in (90.0, 30.0):
        job.declined(age)
    progress = store.progress(36, 120, "invoice 1036")
    assert store.renew(claimed, timedelta(minutes=10), progress) is None
    job.row(renewed_at=ago(20), expires_at=ago(-580))
    for n in (1017, 1018):
        effect(job.name, "charge", n, claimed.generation - 1)


def crm(days: float) -> None:
    """Free, and it fails since an hour."""
    job = Job("sync_crm", every=10 * MINUTE)
    for n in range(int(days * DAY / (10 * MINUTE)), 0, -1):
        if n <= 4:
            job.ran(n * 600 - 200, 34, outcome=Outcome.FAILED, exit_code=1, **failure("crm"))
        else:
            job.ran(n * 600 - 200, wave(n, 60, 420), where="web2", output="pushed 120 contacts\n")


def quiet(days: float) -> None:
    """What is well: free; free and never run; paused."""
    job = Job("clearsessions", ttl=600.0, every=DAY)
    for n in range(13, -1, -1):
        job.ran(n * DAY + 5 * HOUR, wave(n, 4, 9), "batch1")
    reminders = Job("send_reminders", every=HOUR)
    for n in range(int(days * 24), 1, -1):
        outcome = Outcome.TERMINATED if n in (6, 13) else Outcome.SUCCEEDED
        reminders.ran(n * HOUR, wave(n, 200, 700), outcome=outcome)
    store.pause("send_reminders", "default", by="grace", reason="the mail server is down")
    OperatorAction.objects.filter(lease_name="send_reminders").update(at=ago(1.5 * HOUR))
    reminders.declined(HOUR, "web1")
    store.pause("year_end", "default", by="grace")
    store.resume("year_end", "default", by="grace")


def trouble() -> None:
    """A holder that is frozen, and one that is gone."""
    rates = Job("import_rates", ttl=HOUR, every=2 * HOUR)
    for n in range(9, 0, -1):
        rates.ran(n * 2 * HOUR + 3_000, wave(n, 200, 600), "batch1")
    rates.begin(3_000, "batch1")
    rates.row(renewed_at=ago(2_900), expires_at=ago(-700))
    report = Job("nightly_report", ttl=120.0, every=DAY)
    for n in range(12, 0, -1):
        report.ran(n * DAY + 2 * HOUR, wave(n, 900, 1500), "batch2")
    report.begin(2 * HOUR, "batch2")
    report.row(renewed_at=ago(6_600), expires_at=ago(6_480))


def hostile() -> None:
    """A job and a user who fill every field with what a page has to bear."""
    job = Job(NAME, every=5 * MINUTE)
    texts = {"error": HOSTILE + "\n" + HOSTILE * 3, "output": HOSTILE * 5 + "\n" + HOSTILE}
    for n in range(6, 0, -1):
        job.ran(n * 300.0, 30 * n, outcome=Outcome.FAILED, reason=HOSTILE, **texts)
    claimed = job.begin(100)
    job.declined(50)
    job.row(
        holder=HOSTILE,
        host=HOSTILE,
        progress={"done": 3, "total": 4, "message": HOSTILE * 2},
        holder_process={"pid": 2**31, "group": 2**31, "group_start": 1, "runs": HOSTILE},
    )
    store.pause(NAME, "default", by=HOSTILE, reason=HOSTILE)
    Run.objects.update(holder=HOSTILE, host=HOSTILE, took_over_from=HOSTILE, trigger=HOSTILE[:50])
    Run.objects.filter(outcome=Outcome.DECLINED).update(reason="held")
    effect(job.name, HOSTILE[:100], HOSTILE, claimed.generation - 1)
    incidents.check("default")


def failure(job: str) -> dict[str, str]:
    error = TRACEBACK.format(job=job)
    return {"reason": error.splitlines()[-1], "error": error, "output": "sent 40 of 120\n"}


def effect(name: str, kind: str, key: object, generation: int) -> None:
    """An external action that was begun and not confirmed."""
    Effect.objects.create(
        lease_name=name,
        kind=kind,
        key=json.dumps([key]),
        idempotency_key=uuid.uuid5(uuid.NAMESPACE_OID, f"{name} {kind} {key}"),
        state="started",
        generation=generation,
        attempts=1,
        started_at=timezone.now() - timedelta(hours=2),
    )
