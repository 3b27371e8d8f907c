"""What operators may do in the admin: each with a permission, a confirmation, and a record."""

import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.db import connection, transaction

from django_runlease import claim, store
from django_runlease import lease as lease_of
from django_runlease.holder import group_led_by, this_process
from django_runlease.models import Alert, Run, RunLease
from django_runlease.store import connection as store_connection

from .factories import AlertFactory, RunFactory, RunLeaseFactory
from .pages import HOSTILE, Page, address, send
from .support import (
    DEADLINE,
    Worker,
    ago,
    backends,
    elsewhere,
    granted,
    named_by,
    open_transaction,
    wait_for,
)

RIGHTS = {
    "pause": "pause_runlease",
    "resume": "resume_runlease",
    "break": "break_runlease",
    "silence": "silence_alert",
}


def user(client, *rights):
    """A staff user who may look at leases, and has *rights* besides."""
    one = get_user_model().objects.create_user("ada", is_staff=True)
    codenames = ["view_runlease", *rights]
    one.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client.force_login(one)
    return client


@pytest.fixture
def ops(client):
    """Ada, who may look at leases and do each action, and nothing else."""
    return user(client, *RIGHTS.values())


def confirmation(lease, action):
    return address(lease, action, *(["failing"] if action == "silence" else []))


def buttons(client, lease):
    links = Page(client.get(address(lease))).all("a")
    shown = {action for action in RIGHTS for a in links if a["href"] == confirmation(lease, action)}
    return sorted(shown)


def do(client, lease, action, **given):
    """Confirm, and see the page of the lease that follows."""
    response = send(client, confirmation(lease, action), **given)
    if response.status_code == 200:
        return Page(response)
    assert response.url == address(lease)
    return Page(client.get(response.url))


def in_trouble():
    AlertFactory(lease_name="job", kind="failing")
    RunFactory.create_batch(3, lease_name="job", outcome="failed")
    return RunLeaseFactory(name="job", held=True, generation=7)


@pytest.mark.django_db
def test_who_may_only_look_sees_no_buttons_and_can_do_nothing(client):
    lease = in_trouble()
    user(client)
    assert buttons(client, lease) == []
    for action in RIGHTS:
        assert client.get(confirmation(lease, action)).status_code == 403
        assert client.post(confirmation(lease, action), {"reason": "x"}).status_code == 403


@pytest.mark.django_db
@pytest.mark.parametrize("action", RIGHTS)
def test_each_action_has_a_permission_of_its_own(client, action):
    lease = in_trouble()
    user(client, RIGHTS[action])
    RunLease.objects.update(paused=action == "resume")
    assert buttons(client, lease) == [action]
    for other in RIGHTS:
        expected = 200 if other == action else 403
        assert client.get(confirmation(lease, other)).status_code == expected


@pytest.mark.django_db
@pytest.mark.parametrize("action", RIGHTS)
def test_an_action_is_of_no_use_without_the_right_to_look(client, action):
    lease = in_trouble()
    user(client, RIGHTS[action])
    get_user_model().objects.get().user_permissions.remove(
        Permission.objects.get(codename="view_runlease")
    )
    assert client.get(confirmation(lease, action)).status_code == 403


@pytest.mark.django_db
def test_buttons_are_those_that_make_sense(ops):
    assert buttons(ops, RunLeaseFactory(name="free")) == ["pause"]
    assert buttons(ops, RunLeaseFactory(name="held", held=True)) == ["break", "pause"]
    assert buttons(ops, RunLeaseFactory(name="paused", paused=True)) == ["resume"]
    assert buttons(ops, RunLeaseFactory(name="later", not_before=ago(-60))) == ["break", "pause"]


@pytest.mark.django_db
@pytest.mark.parametrize("action", RIGHTS)
def test_a_confirmation_is_asked_for_and_looking_at_it_changes_nothing(ops, action):
    lease = in_trouble()
    RunLease.objects.update(
        paused=action == "resume", paused_by="bob" if action == "resume" else ""
    )
    before = list(RunLease.objects.values())
    said = Page(ops.get(confirmation(lease, action)))
    assert "What will happen" in said.text
    form = said.html[said.html.index('class="runlease-form"') :]
    assert "csrfmiddlewaretoken" in form[: form.index("</form>")]
    assert not said.refused
    assert list(RunLease.objects.values()) == before
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_a_post_from_another_site_is_refused(ops):
    lease = in_trouble()
    ops.handler.enforce_csrf_checks = True
    assert ops.post(confirmation(lease, "pause"), {"reason": "x"}).status_code == 403
    assert not RunLease.objects.get().paused


@pytest.mark.django_db
def test_a_pause_says_who_and_why_and_leaves_the_holder_alone(ops):
    lease = in_trouble()
    assert (
        "elsewhere:4711 goes on until its run ends"
        in Page(ops.get(confirmation(lease, "pause"))).text
    )
    text = do(ops, lease, "pause", reason="provider is down").text
    after = RunLease.objects.get()
    assert (after.paused, after.paused_by) == (True, "ada")
    assert after.paused_reason == "provider is down"
    assert after.token == lease.token
    assert "ada paused provider is down" in text
    entry = LogEntry.objects.get()
    assert (entry.user.username, entry.object_id) == ("ada", str(lease.pk))
    assert entry.change_message == "Paused: provider is down"
    log = Page(ops.get(address(lease, "history")))
    assert "Paused: provider is down" in log.text


@pytest.mark.django_db
def test_a_pause_says_of_no_expired_holder_that_it_goes_on(ops):
    lease = RunLeaseFactory(name="job", held=True, expires_at=ago(60))
    assert "goes on" not in Page(ops.get(confirmation(lease, "pause"))).text


@pytest.mark.django_db
def test_what_somebody_else_has_done_already_is_not_logged_again(ops, monkeypatch):
    """Between the look and the change."""
    lease = in_trouble()
    pause = store.pause

    def second(name, alias, **how):
        pause(name, alias, **how)
        return pause(name, alias, **how)

    monkeypatch.setattr(store, "pause", second)
    assert "There is nothing to do any more" in do(ops, lease, "pause", reason="x").text
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_the_admins_log_says_where_else_to_look_if_nothing_was_done_there(ops):
    said = Page(ops.get(address(RunLeaseFactory(name="job"), "history"))).text
    assert "What was done by command stands on the page of the lease." in said
    assert "wasn" not in said


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["pause", "break"])
def test_a_reason_is_required(ops, action):
    lease = in_trouble()
    said = do(ops, lease, action)
    assert "This field is required" in said.text
    assert not RunLease.objects.get().paused
    assert RunLease.objects.get().token
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_a_resume_names_who_paused_and_why_and_lets_the_next_tick_run(ops):
    lease = RunLeaseFactory(name="job", paused=True, paused_by="bob", paused_reason="no paper")
    said = Page(ops.get(confirmation(lease, "resume")))
    assert "It was paused by bob , because: no paper" in said.text
    assert "The next tick may run again." in said.text
    do(ops, lease, "resume", reason="")
    assert not RunLease.objects.get().paused
    assert LogEntry.objects.get().change_message == "Resumed."


@pytest.mark.django_db
def test_a_resume_ends_no_other_pause_than_its_page_has_shown(ops):
    lease = RunLeaseFactory(name="job", paused=True, paused_by="bob", paused_reason="a\nb")
    shown = Page(ops.get(confirmation(lease, "resume"))).form
    RunLease.objects.update(paused_by="ann", paused_reason="data is corrupt")
    said = Page(ops.post(confirmation(lease, "resume"), {**shown, "reason": "mine"}))
    assert "It has changed meanwhile, so nothing was done." in said.text
    assert "It was paused by ann , because: data is corrupt" in said.text
    assert said.form["reason"] == "mine"
    assert RunLease.objects.get().paused
    for forged in ('"ann"', "[[1], {}]", "7", "x", ""):
        ops.post(confirmation(lease, "resume"), {"pause": forged})
        assert RunLease.objects.get().paused
    assert ops.post(confirmation(lease, "resume"), said.form).url == address(lease)
    assert not RunLease.objects.get().paused


@pytest.mark.django_db
def test_a_reason_of_several_lines_does_not_keep_a_pause_from_being_ended(ops):
    lease = RunLeaseFactory(name="job", paused=True, paused_by="bob", paused_reason="a\nb\r\nc")
    do(ops, lease, "resume")
    assert not RunLease.objects.get().paused


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_was_broken_says_everywhere_what_its_next_run_waits_for(ops):
    with Worker(600):
        lease = RunLease.objects.get(name="job")
        do(ops, lease, "pause", reason="x")
        said = do(ops, lease, "break", wait="wait", reason="y").text
        when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"
        assert re.search(f"It stays paused, and no run starts before {when}: y", said)
        why = "it was broken, and its last holder may still be at work"
        resuming = Page(ops.get(confirmation(lease, "resume"))).text
        assert re.search(f"No run starts before {when}: {why}", resuming)
        assert "The next tick may run again" not in resuming
        after = do(ops, lease, "resume").text
        assert re.search(f"free No run starts before {when}: {why}", after)
        assert re.search(rf"Not before {when} in \S+ \S+ {why}", after)


@pytest.mark.django_db
def test_a_free_lease_says_that_it_waits_for_its_minimum_hold(ops):
    lease = RunLeaseFactory(name="job", not_before=ago(-60))
    assert "its minimum hold lasts until then" in Page(ops.get(address(lease))).text


@pytest.mark.django_db
def test_a_break_shows_the_live_holder_and_what_it_does_to_it(ops):
    lease = in_trouble()
    text = Page(ops.get(confirmation(lease, "break"))).text
    assert "elsewhere:4711 holds it now, and renewed it " in text
    assert "The generation rises from 7 to 8" in text
    assert "Host elsewhere" in text
    assert re.search(r"expires in 4m [1-5]\ds", text)


@pytest.mark.django_db
def test_a_page_that_is_not_read_again_counts_nothing_down_and_says_of_when_it_is(ops):
    said = Page(ops.get(confirmation(in_trouble(), "break")))
    assert "data-runlease-left" not in said.html
    assert re.search(r"As of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said.text)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("runs", "told", "choice"),
    [
        ({}, "goes on until it asks", "code that never asks may go on then"),
        ({"runs": "bill.py"}, "runjob stops its job", "by then runjob has stopped its job"),
    ],
)
def test_a_break_promises_no_end_of_what_holds_it_in_code(ops, runs, told, choice):
    process = {"pid": 4711, **runs}
    lease = RunLeaseFactory(name="job", held=True, holder_process=process)
    text = Page(ops.get(confirmation(lease, "break"))).text
    assert "It is told that it lost the lease, and " + told in text
    assert choice in text


@pytest.mark.django_db(transaction=True)
def test_a_break_of_a_holder_that_is_gone_lets_the_next_run_in_at_once_and_says_so(ops):
    with Worker(600) as worker:
        lease = RunLease.objects.get(name="job")
        shown = Page(ops.get(confirmation(lease, "break"))).form
        assert shown["wait"] == "wait"
        worker.process.kill()
        worker.process.wait()
    said = Page(ops.get(confirmation(lease, "break")))
    assert f"{lease.holder} held it; its process is gone." in said.text
    assert "holds it now" not in said.text
    assert said.all("input", type="radio") == []
    top = "Its process is gone: the next tick on its host takes over"
    assert top in Page(ops.get(address(lease))).text
    done = ops.post(confirmation(lease, "break"), {**shown, "reason": "x"})
    assert "the next run may start at once: x" in Page(ops.get(done.url)).text
    assert granted().generation == 3


@pytest.mark.django_db
@pytest.mark.parametrize(("wait", "waits"), [("wait", True), ("now", False)])
def test_a_break_waits_for_the_ttl_or_not_and_stands_in_the_history(ops, wait, waits):
    lease = in_trouble()
    RunFactory(lease_name="job", generation=7, token=lease.token, running=True)
    text = do(ops, lease, "break", wait=wait, reason="web1 is on fire").text
    after = RunLease.objects.get()
    assert (after.token, after.generation) == (None, 8)
    assert (after.not_before is not None) == waits
    run = Run.objects.exclude(outcome="failed").get()
    assert (run.outcome, run.reason) == ("lost", "broken by ada: web1 is on fire")
    assert "Taken away from elsewhere:4711" in text
    assert "web1 is on fire" in LogEntry.objects.get().change_message


@pytest.mark.django_db
def test_a_break_that_was_meant_for_another_holder_breaks_nothing(ops):
    lease = in_trouble()
    said = do(ops, lease, "break", wait="now", generation=6, reason="x")
    assert "It has changed meanwhile" in said.text
    assert said.all("input", name="generation")[0]["value"] == "7"
    assert "checked" in said.all("input", name="wait", value="wait")[0]
    assert not said.all("input", type="checkbox")
    assert RunLease.objects.get().token == lease.token
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
def test_a_break_that_was_to_wait_for_a_holder_lifts_no_minimum_hold_of_what_is_free_now(ops):
    lease = in_trouble()
    shown = Page(ops.get(confirmation(lease, "break"))).form
    RunLease.objects.update(
        token=None, expires_at=None, holder="", host="", holder_process=None, not_before=ago(-60)
    )
    said = Page(ops.post(confirmation(lease, "break"), {**shown, "reason": "x"}))
    assert "It has changed meanwhile, so nothing was done." in said.text
    assert "does not wait for its minimum hold any more" in said.text
    assert RunLease.objects.get().not_before is not None
    assert ops.post(confirmation(lease, "break"), said.form).url == address(lease)
    assert RunLease.objects.get().not_before is None


@pytest.mark.django_db
def test_after_a_break_only_a_break_that_says_so_lets_the_next_run_start_beside_the_holder(ops):
    lease = in_trouble()
    lease.refresh_from_db()
    RunFactory(
        lease_name="job", generation=7, started_at=lease.claimed_at, token=lease.token, running=True
    )
    do(ops, lease, "break", wait="wait", reason="it hangs")
    page = Page(ops.get(address(lease, "break")))
    assert "It was taken from its last holder, which may still be at work" in page.text
    assert "two at once" in page.text
    assert page.all("input", name="wait") == []
    assert "start at once: now" in do(ops, lease, "break", reason="now").text
    assert RunLease.objects.get().not_before is None


@pytest.mark.django_db
def test_a_break_of_a_lease_that_waits_for_its_minimum_hold_has_nothing_to_choose(ops):
    lease = RunLeaseFactory(name="job", not_before=ago(-60))
    page = Page(ops.get(address(lease, "break")))
    assert "does not wait for its minimum hold any more" in page.text
    assert page.all("input", name="wait") == []


@pytest.mark.django_db
def test_a_break_of_an_expired_lease_has_nothing_to_wait_for_and_so_nothing_to_choose(ops):
    lease = RunLeaseFactory(name="job", held=True, generation=7, expires_at=ago(60))
    said = Page(ops.get(confirmation(lease, "break")))
    assert "Since it has expired, no run waits for its holder." in said.text
    assert said.all("input", name="wait", type="radio") == []
    done = do(ops, lease, "break", reason="x").text
    assert "Taken away from elsewhere:4711, the next run may start at once: x" in done
    assert RunLease.objects.get().token is None
    with lease_of("job", ttl=60) as held:
        assert held.generation == 9


@pytest.mark.django_db
def test_a_break_of_what_expired_while_its_program_runs_on_says_that_the_next_would_run_beside(ops):
    program = subprocess.Popen(["sleep", "600"], process_group=0)
    me = this_process()
    here = {"host": me.host, "holder_process": {**me.process, **group_led_by(program.pid)}}
    try:
        lease = RunLeaseFactory(name="job", held=True, expires_at=ago(60), **here)
        text = Page(ops.get(confirmation(lease, "break"))).text
        assert f"Its program still runs on {me.host} , as process group {program.pid}." in text
        assert "elsewhere the next may start now" in text
        assert "beside that program: two at once" in text
    finally:
        program.kill()
        program.wait()


@pytest.mark.django_db
def test_a_break_of_what_expired_on_another_host_says_that_its_program_cannot_be_seen(ops):
    there = {"host": "web7", "holder_process": {"pid": 4, "group": 5, "boot_id": "another"}}
    lease = RunLeaseFactory(name="job", held=True, expires_at=ago(60), **there)
    text = Page(ops.get(confirmation(lease, "break"))).text
    assert "Its program, process group 5, may still run on web7 : that cannot be seen" in text
    assert "no run waits for its holder" not in text


@pytest.mark.django_db
@pytest.mark.parametrize("held", [True, False])
def test_a_break_of_what_is_paused_says_that_it_stays_so(ops, held):
    lease = RunLeaseFactory(name="job", held=held, not_before=None if held else ago(-60))
    said = "It stays paused until it is resumed."
    assert said not in Page(ops.get(confirmation(lease, "break"))).text
    RunLease.objects.update(paused=True)
    assert said in Page(ops.get(confirmation(lease, "break"))).text


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"held": True}, "Taken away from elsewhere:4711, and it stays paused: x"),
        ({"not_before": ago(-60)}, "It waits no longer, and stays paused: x"),
    ],
)
def test_a_break_of_a_paused_lease_does_not_say_that_the_next_run_may_start(ops, fields, said):
    lease = RunLeaseFactory(name="job", paused=True, generation=7, **fields)
    text = do(ops, lease, "break", wait="now", reason="x").text
    assert said in text
    assert "the next run may start" not in text


@pytest.mark.django_db
def test_what_is_done_already_is_not_done_again(ops):
    lease = RunLeaseFactory(name="job")
    said = do(ops, lease, "break", wait="now", reason="x")
    assert "There is nothing to do any more" in said.text
    assert not LogEntry.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize(("length", "silent"), [("4", True), ("0", False)])
def test_an_alert_is_silenced_for_a_time_or_told_again(ops, length, silent):
    lease = in_trouble()
    Alert.objects.update(silenced_until=ago(-60), silenced_by="bob")
    do(ops, lease, "silence", length=length, reason="known")
    alert = Alert.objects.get()
    assert (alert.silenced_until is not None) == silent
    assert alert.silenced_by == ("ada" if silent else "")
    assert "failing" in LogEntry.objects.get().change_message


@pytest.mark.django_db
def test_the_page_of_a_silence_says_of_which_alert_and_what_silence_it_has(ops):
    lease = in_trouble()
    said = Page(ops.get(confirmation(lease, "silence")))
    assert "failing (critical) : 3 failures in a row" in said.text
    assert "silenced until" not in said.text
    assert said.all("input", type="radio", value="0") == []
    do(ops, lease, "silence", length="168", reason="known")
    said = Page(ops.get(confirmation(lease, "silence")))
    assert re.search(r"silenced until \d{4}-.* by ada", said.text)
    assert "This replaces the silence that it has." in said.text
    assert said.all("input", type="radio", value="0")
    Run.objects.all().delete()
    gone = Page(ops.get(confirmation(lease, "silence"))).text
    assert "It is not there now." in gone
    assert "It stays open" not in gone


@pytest.mark.django_db
def test_a_silence_of_what_has_never_happened_says_so(ops):
    lease = RunLeaseFactory(name="job")
    said = do(ops, lease, "silence", length="1")
    assert "there has been no alert 'failing'; see manage.py runlease check" in said.text
    other = address(lease, "silence", "nonsense")
    assert ops.get(other).status_code == 404


@pytest.mark.django_db
def test_hostile_reasons_stay_text(ops):
    lease = in_trouble()
    said = do(ops, lease, "pause", reason=HOSTILE)
    assert "<script>alert" not in said.html
    assert said.text.count(HOSTILE) >= 2


@pytest.mark.django_db(transaction=True)
def test_a_holder_whose_lease_is_broken_is_told(ops):
    with Worker(60) as worker:
        lease = RunLease.objects.get(name="job")
        do(ops, lease, "break", wait="now", reason="it hangs")
        wait_for(lambda: worker.ask("held.lost.is_set()") == "True")
        assert worker.ask("held.lost_reason") == "broken"


@pytest.mark.django_db(transaction=True)
def test_after_a_pause_the_next_claim_declines(ops):
    lease = RunLeaseFactory(name="job")
    do(ops, lease, "pause", reason="x")
    assert claim("job").reason == "paused"


@pytest.mark.django_db(transaction=True)
def test_a_break_names_what_keeps_it_waiting_and_offers_to_end_it(ops):
    lease = in_trouble()
    given = {"wait": "now", "reason": "x"}
    lock = "SELECT 1 FROM runlease_runlease WHERE name = 'job' FOR UPDATE"
    with open_transaction(lock):
        named_by(lambda: do(ops, lease, "break", **given).text)
        said = do(ops, lease, "break", **given)
    assert "--force" not in said.text
    assert "Nothing was broken: its row is locked by" in said.text
    assert said.all("input", type="checkbox", name="force")
    again = Page(ops.post(address(lease, "break"), {**said.form, "force": "on", "reason": ""}))
    assert "This field is required" in again.text
    assert "checked" in again.all("input", type="checkbox", name="force")[0]
    assert RunLease.objects.get().token == lease.token


@pytest.mark.django_db(transaction=True)
def test_of_two_operators_who_break_at_once_the_second_is_shown_what_is_there_now(ops, monkeypatch):
    monkeypatch.setattr(store_connection, "LOCK_TIMEOUT_MS", 600_000)
    lease = in_trouble()
    ready, finish = threading.Event(), threading.Event()

    def be_the_first():
        with transaction.atomic():
            RunLease.objects.update(generation=8, holder="web9:1")
            ready.set()
            finish.wait(DEADLINE)

    def let_it_end_once_the_second_waits():
        wait_for(lambda: backends("wait_event_type = 'Lock'"))
        finish.set()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(elsewhere, be_the_first)
        wait_for(lambda: ready.is_set() or first.done())
        second = pool.submit(elsewhere, let_it_end_once_the_second_waits)
        try:
            said = do(ops, lease, "break", wait="now", reason="x")
        finally:
            finish.set()
            first.result()
            second.result()
    assert "It has changed meanwhile, so nothing was done. Above is what" in said.text
    assert "web9:1 holds it now" in said.text
    assert not said.all("input", type="checkbox")
    assert said.all("input", name="generation")[0]["value"] == "8"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("action", "table"), [("pause", "runlease"), ("silence", "alert")])
def test_what_keeps_another_action_waiting_is_named_too(ops, action, table):
    lease = in_trouble()
    with open_transaction(f"SELECT 1 FROM runlease_{table} FOR UPDATE"):
        text = named_by(lambda: do(ops, lease, action, reason="x", length="1").text)
        said = do(ops, lease, action, reason="x", length="1")
    assert re.search(r"its row is locked by database process \d+ \(.*\); try again", text)
    assert not said.all("input", name="force")
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_actions_work_where_each_request_is_a_transaction(ops, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    lease = in_trouble()
    do(ops, lease, "pause", reason="x")
    assert RunLease.objects.get().paused


@pytest.mark.django_db
def test_a_page_of_an_error_shows_no_token_either(ops, settings, monkeypatch):
    def fail(*args, **how):
        raise RuntimeError("no luck")

    settings.DEBUG = True
    ops.raise_request_exception = False
    lease = in_trouble()
    lease.refresh_from_db()
    monkeypatch.setattr("django_runlease.store.operating.note_action", fail)
    page = send(ops, address(lease, "break"), reason="x", wait="now")
    assert page.status_code == 500
    assert "no luck" in page.content.decode()
    assert str(lease.token) not in page.content.decode()
