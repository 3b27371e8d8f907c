import os
import queue
import signal
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from unittest.mock import patch

import pytest
from django.db import InterfaceError, OperationalError, connection

from django_runlease.exceptions import Stopped
from django_runlease.interrupts import WAKE, Interrupts, cancel_statements

from .factories import InvoiceFactory
from .support import DEADLINE, elsewhere, spawn_python, wait_for

LONG = 600.0


class Enough(Exception):
    pass


def sleep():
    time.sleep(LONG)


def wait_for_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire(timeout=LONG)


def wait_for_a_queue():
    queue.Queue().get(timeout=LONG)


def wait_for_a_socket():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(LONG)
        ours.recv(1)


def compute():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        pass


def from_a_thread(act, *arguments):
    """Do it in a moment, when the main thread is inside what follows."""
    timer = threading.Timer(0.05, act, arguments)
    timer.start()
    return timer


@pytest.mark.parametrize(
    "wait", [sleep, wait_for_a_lock, wait_for_a_queue, wait_for_a_socket, compute]
)
def test_another_thread_stops_the_main_one_wherever_it_waits(wait):
    cause = Enough()
    began = time.monotonic()
    with Interrupts() as interrupts:
        timer = from_a_thread(interrupts.interrupt, cause)
        with pytest.raises(Enough) as caught, interrupts.allowed():
            wait()
        timer.join()
    assert caught.value is cause
    assert interrupts.cause is cause
    assert time.monotonic() - began < LONG / 2


def test_what_came_in_the_moment_before_a_wait_is_sent_again():
    """That moment is too short to be met: here the signal does not come at all."""

    def lose_it():
        with patch("signal.pthread_kill"):
            interrupts.interrupt(Enough())
        interrupts.wake_again()

    with Interrupts() as interrupts:
        with pytest.raises(Enough), interrupts.allowed():
            timer = from_a_thread(lose_it)
            sleep()
        timer.join()


def test_a_signal_that_came_in_the_moment_before_a_wait_is_answered():
    """As one does that another thread of the process takes."""

    def take_it():
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        interrupts.wake_again()

    with Interrupts() as interrupts:
        with pytest.raises(Stopped), interrupts.allowed():
            timer = from_a_thread(take_it)
            sleep()
        timer.join()


def test_what_has_been_answered_is_not_sent_again():
    with Interrupts() as interrupts:
        with suppress(Stopped), interrupts.allowed():
            os.kill(os.getpid(), signal.SIGTERM)
            sleep()
        with patch("signal.pthread_kill") as kill:
            for _ in range(20):
                interrupts.wake_again()
    assert kill.call_count < 10


def test_whom_python_tells_of_signals_already_goes_on_being_told():
    """As an event loop is that handles signals."""
    with ExitStack() as stack:
        files = [stack.enter_context(os.fdopen(file, "rb", 0)) for file in os.pipe()]
        theirs = files[1].fileno()
        os.set_blocking(theirs, False)
        signal.set_wakeup_fd(theirs)
        stack.callback(signal.set_wakeup_fd, -1)
        with Interrupts():
            assert signal.set_wakeup_fd(theirs) == theirs
        assert signal.set_wakeup_fd(theirs) == theirs


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


def test_no_file_is_left_open():
    before = open_files()
    with Interrupts():
        assert open_files() == before + 2
    assert open_files() == before
    assert signal.set_wakeup_fd(-1) == -1


def test_the_first_cause_counts_and_is_raised_once():
    first, second = Enough("first"), Enough("second")
    with Interrupts() as interrupts:
        interrupts.interrupt(first)
        interrupts.interrupt(second)
        with pytest.raises(Enough, match="first"), interrupts.allowed():
            raise AssertionError
        interrupts.interrupt(second)
        with interrupts.allowed():
            pass
    assert interrupts.cause is first


def test_nothing_is_raised_outside_of_an_allowed_block():
    with Interrupts() as interrupts:
        with interrupts.allowed():
            pass
        interrupts.interrupt(Enough())
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        with pytest.raises(Enough), interrupts.allowed():
            raise AssertionError


@pytest.mark.parametrize(
    ("number", "kind", "code"),
    [(signal.SIGTERM, Stopped, 143), (signal.SIGINT, KeyboardInterrupt, None)],
)
def test_a_signal_is_an_exception_that_a_job_does_not_swallow_with_except_exception(
    number, kind, code
):
    with Interrupts() as interrupts:
        from_a_thread(os.kill, os.getpid(), number).join()
        with pytest.raises(kind) as caught, interrupts.allowed():
            sleep()
    assert not isinstance(caught.value, Exception)
    assert getattr(caught.value, "code", None) == code
    assert interrupts.cause is caught.value
    assert caught.value.detail == f"stopped by {number.name}"


def test_what_is_meant_for_an_outer_block_passes_an_inner_one():
    cause = Enough()
    began = time.monotonic()
    with Interrupts() as outer:
        timer = from_a_thread(outer.interrupt, cause)
        with (
            pytest.raises(Enough) as caught,
            outer.allowed(),
            Interrupts() as inner,
            inner.allowed(),
        ):
            sleep()
        timer.join()
    assert caught.value is cause
    assert (outer.cause, inner.cause) == (cause, None)
    assert time.monotonic() - began < LONG / 2


def handlers():
    return [signal.getsignal(number) for number in (WAKE, signal.SIGTERM, signal.SIGINT)]


def test_the_handlers_are_put_back():
    before = handlers()
    with Interrupts():
        assert handlers() != before
    assert handlers() == before


@pytest.mark.parametrize("theirs", [signal.SIG_IGN, lambda number, frame: None])
def test_a_handler_that_somebody_else_has_set_stays(theirs):
    before = signal.signal(signal.SIGTERM, theirs)
    try:
        with Interrupts() as interrupts, interrupts.allowed():
            assert signal.getsignal(signal.SIGTERM) is theirs
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.cause is None
        assert signal.getsignal(signal.SIGTERM) is theirs
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.django_db
def test_in_another_thread_it_changes_nothing_and_keeps_the_cause():
    before = handlers()

    def work():
        with Interrupts() as interrupts, interrupts.allowed():
            assert not interrupts.possible
            interrupts.interrupt(Enough())
            assert handlers() == before
        return interrupts.cause

    assert isinstance(elsewhere(work), Enough)


@pytest.mark.django_db(transaction=True)
def test_a_statement_in_flight_is_cancelled_and_not_committed(monkeypatch):
    InvoiceFactory(customer="before")
    update = "UPDATE billing_invoice SET customer = 'after' FROM (SELECT pg_sleep(600)) AS slept"
    monkeypatch.setattr("django_runlease.interrupts.CANCEL_TIMEOUT", 30.0)

    def interrupt_when_it_runs():
        wait_for(lambda: elsewhere(lambda: running("%pg_sleep(600)%")))
        interrupts.interrupt(Enough())

    with Interrupts() as interrupts:
        thread = threading.Thread(target=interrupt_when_it_runs)
        thread.start()
        with pytest.raises((Enough, OperationalError, InterfaceError)), interrupts.allowed():
            with connection.cursor() as cursor:
                cursor.execute(update)
        thread.join()
    wait_for(lambda: not elsewhere(lambda: running("%pg_sleep(600)%")))
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SELECT customer FROM billing_invoice")
        assert cursor.fetchall() == [("before",)]


def running(query):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s"
            " AND pid <> pg_backend_pid()",
            [query],
        )
        return cursor.fetchone()[0]


@pytest.mark.django_db(transaction=True)
def test_an_idle_connection_is_left_alone():
    connection.ensure_connection()
    before = connection.connection
    cancel_statements()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
    assert connection.connection is before


SECOND = """
import os, signal, time
from django_runlease.interrupts import Interrupts
with Interrupts() as interrupts:
    try:
        with interrupts.allowed():
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(600)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(600)
"""


@pytest.mark.django_db
def test_the_second_signal_ends_the_process_at_once():
    process = spawn_python(SECOND)
    process.communicate(timeout=DEADLINE)
    assert process.returncode == -signal.SIGTERM
