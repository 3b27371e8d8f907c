"""The story of django-runlease in under a minute, told by real processes."""

import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, Any

from django.contrib.auth import get_user_model
from django.core.management import BaseCommand, CommandError, call_command
from django.utils import timezone

from django_runlease.clock import Now
from django_runlease.models import RunLease

from ...models import Invoice

DEADLINE = 30.0
LOGIN = "demo"


class Actor:
    """A process of the story, whose lines are printed under its name as they come."""

    def __init__(self, command: "Command", name: str, *arguments: str) -> None:
        self.name = name
        self._command = command
        self._process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=[self._process.stdout])
        self._reader.start()
        command.tell(name, f"$ manage.py {' '.join(arguments)}   (process {self._process.pid})")

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line.rstrip())
            self._command.tell(self.name, line.rstrip())

    def wait_for_line(self) -> None:
        """Wait until it has said something."""
        self._command.wait_for(lambda: self.lines or self._process.poll() is not None)

    def send(self, number: signal.Signals) -> None:
        self._command.tell("demo", f"{number.name} to {self.name}")
        self._process.send_signal(number)

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; return and tell its exit code."""
        code = self._process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._command.tell(self.name, f"({how})")
        return code


class Command(BaseCommand):
    help = "Show overlapping ticks, a killed worker, and a stale one, with real processes."

    def handle(self, *args: Any, **options: Any) -> None:
        self._began = time.monotonic()
        self._prepare()
        self._overlap()
        self._crash()
        self._stale()
        self.chapter("What the history says")
        call_command("runlease", "history", "--limit", "10", stdout=self.stdout)
        call_command("runlease", "list", stdout=self.stdout)
        self.chapter("Look around in the admin")
        self.stdout.write(
            f"  {sys.executable} manage.py runserver\n"
            f"  http://127.0.0.1:8000/admin/   user {LOGIN}, password {LOGIN}\n"
        )

    def chapter(self, title: str) -> None:
        self.stdout.write("\n" + self.style.MIGRATE_HEADING(title))

    def tell(self, who: str, line: str) -> None:
        self.stdout.write(f"{time.monotonic() - self._began:5.1f}s  {who:<12} {line}")
        self.stdout.flush()

    def wait_for(self, condition: Any) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > end:
                raise CommandError("the demo waited in vain; please report what is above")
            time.sleep(0.05)

    def _prepare(self) -> None:
        call_command("migrate", verbosity=0)
        users = get_user_model()._default_manager
        if not users.filter(username=LOGIN).exists():
            users.create_superuser(username=LOGIN, password=LOGIN)
        Invoice.objects.all().delete()
        now = timezone.now()
        names = ["Ada", "Blaise", "Charles", "Dorothy", "Edsger", "Frances"]
        Invoice.objects.bulk_create(
            [
                Invoice(customer=name, cents=1250 + 300 * i, due_at=now)
                for i, name in enumerate(names)
            ]
        )

    def _overlap(self) -> None:
        self.chapter("1. Two hosts tick at the same moment: one runs, the other declines")
        ticks = [
            Actor(self, f"host {letter}", "runjob", "charge_due_invoices", "-v2") for letter in "AB"
        ]
        for tick in ticks:
            tick.end()
        charged = Invoice.objects.exclude(charged_at=None).count()
        self.tell("demo", f"{charged} invoices are charged, each of them once")

    def _crash(self) -> None:
        self.chapter("2. A worker is killed in the middle: the next tick takes over")
        worker = Actor(self, "worker", "runjob", "send_reminders")
        worker.wait_for_line()
        worker.send(signal.SIGKILL)
        worker.end()
        Actor(self, "next tick", "runjob", "send_reminders", "--wait", "10s", "-v2").end()

    def _stale(self) -> None:
        self.chapter("3. A worker is frozen past its ttl, and replaced; its last write is refused")
        invoice = Invoice.objects.create(customer="Grace", cents=9900, due_at=timezone.now())
        frozen = Actor(self, "frozen", "stale_worker", str(invoice.pk))
        frozen.wait_for_line()
        frozen.send(signal.SIGSTOP)
        self.wait_for(
            lambda: RunLease.objects.filter(name="month_end", expires_at__lt=Now()).exists()
        )
        self.tell("demo", "its lease has expired")
        successor = Actor(self, "successor", "stale_worker", str(invoice.pk))
        successor.wait_for_line()
        successor.say("go")
        successor.end()
        frozen.send(signal.SIGCONT)
        frozen.say("go")
        frozen.end()
        invoice.refresh_from_db()
        self.tell("demo", f"the invoice of {invoice.customer} was charged by {invoice.charged_by}")
