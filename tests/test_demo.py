import re

import pytest

from example_project.billing.models import Invoice

from .support import manage


@pytest.mark.django_db(transaction=True)
def test_the_demo_tells_its_story_with_real_processes_and_ends_by_itself():
    done = manage("demo")
    assert done.returncode == 0, done.stdout + done.stderr
    told = done.stdout
    overlap, crash, stale = re.split(r"^\d\. ", told, flags=re.M)[1:]
    # Which of the two reasons it is, depends on how close the two claims were.
    assert len(re.findall("charge_due_invoices: declined, (held by|busy)", overlap)) == 1
    assert overlap.count("charge_due_invoices: succeeded") == 1
    assert "6 invoices are charged, each of them once" in overlap
    assert "killed by SIGKILL" in crash
    assert "took over from" in crash
    assert "send_reminders: succeeded" in crash
    assert "refused: month_end: the lease is no longer ours" in stale
    assert "the invoice of Grace was charged by generation 2" in stale
    assert "user demo, password demo" in told
    assert {"succeeded", "declined", "abandoned", "lost"} <= set(told.split())
    assert Invoice.objects.filter(charged_at=None).count() == 0
