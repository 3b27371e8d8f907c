"""``runjob NAME --standby -- PROGRAM``: a hot spare for a program that is to run for ever."""

from itertools import count

import pytest

from django_runlease import store
from django_runlease.models import Outcome, Run, RunLease

from .programs import all_gone, close_input, ended, python, start, started
from .support import DEADLINE, backends, wait_for

pytestmark = pytest.mark.django_db(transaction=True)

BEAT = "say(os.getpid()); sys.stdin.read()"
numbers = count()


def spare(code=BEAT, **more):
    """A standby that has tried, in vain, to claim."""
    name = f"spare-{next(numbers)}"
    process = start(*python(code), options=("--standby",), env={"PGAPPNAME": name}, **more)
    tried = f"application_name = '{name}' AND state = 'idle' AND query LIKE '%COMMIT%'"
    wait_for(lambda: backends(tried))
    return process


def first_line(process):
    line = process.stdout.readline()
    assert line, process.communicate()
    return int(line)


def test_a_standby_takes_over_on_a_clean_release():
    holder, _ = started(BEAT)
    waiting = spare()
    with ended(holder), ended(waiting):
        assert waiting.poll() is None
        close_input(holder)
        first_line(waiting)
        assert RunLease.objects.get().generation == 2
        waiting.communicate("", timeout=DEADLINE)
        assert waiting.returncode == 0
    outcomes = Run.objects.order_by("id").values_list("outcome", flat=True)
    assert list(outcomes) == [Outcome.SUCCEEDED, Outcome.SUCCEEDED]
    assert Run.objects.latest("id").waited.total_seconds() > 0


def test_a_standby_takes_over_after_kill_9_once_the_program_is_gone():
    holder, pids = started(BEAT, options=("--ttl", "10m"))
    waiting = spare()
    with ended(holder, pids), ended(waiting):
        holder.kill()
        holder.wait()
        first_line(waiting)
        all_gone(pids)
        assert RunLease.objects.get().generation == 2
        _, err = waiting.communicate("", timeout=DEADLINE)
        assert "its process is gone" in err
    assert Run.objects.earliest("id").outcome == Outcome.ABANDONED


def test_a_standby_waits_through_a_pause():
    store.pause("prog", "default", by="ops")
    waiting = spare()
    with ended(waiting):
        assert backends("application_name LIKE 'spare-%'")
        assert waiting.poll() is None
        assert not Run.objects.exists()
        store.resume("prog", "default", by="ops")
        first_line(waiting)
        assert waiting.communicate("", timeout=DEADLINE) == ("", "")
    assert waiting.returncode == 0


def test_of_two_spares_one_takes_over_and_then_the_other():
    holder, _ = started(BEAT)
    spares = [spare(), spare()]
    with ended(holder), ended(spares[0]), ended(spares[1]):
        close_input(holder)
        wait_for(lambda: RunLease.objects.get().generation == 2)
        second = wait_for(lambda: RunLease.objects.exclude(token=None).values_list("holder"))
        pid = int(second[0][0].partition(":")[2])
        heir, other = sorted(spares, key=lambda process: process.pid != pid)
        first_line(heir)
        assert other.poll() is None
        close_input(heir)
        first_line(other)
        assert RunLease.objects.get().generation == 3
        other.communicate("", timeout=DEADLINE)
    assert set(Run.objects.values_list("outcome", flat=True)) == {Outcome.SUCCEEDED}


def test_sigterm_ends_a_standby_that_waits_and_leaves_nothing():
    holder, _ = started(BEAT)
    waiting = spare()
    with ended(holder), ended(waiting):
        waiting.terminate()
        _, err = waiting.communicate(timeout=DEADLINE)
        assert (waiting.returncode, err) == (143, "prog: stopped while waiting for the lease\n")
        holder.communicate("", timeout=DEADLINE)
        assert holder.returncode == 0
    assert Run.objects.count() == 1


def test_a_standby_survives_while_the_holder_is_renewed_past_its_ttl():
    holder, _ = started(BEAT, options=("--ttl", "6"))
    waiting = spare()
    with ended(holder), ended(waiting):
        first = RunLease.objects.get()
        wait_for(lambda: RunLease.objects.get().renewed_at > first.expires_at)
        assert RunLease.objects.get().token == first.token
        assert waiting.poll() is None
        close_input(holder)
        first_line(waiting)
        waiting.communicate("", timeout=DEADLINE)
    assert holder.wait(DEADLINE) == 0
