import pytest

from .support import DEADLINE, spawn_python

pytestmark = pytest.mark.django_db

NOISE = """
import os, subprocess, sys
from django_runlease.output import quiet

def noise():
    print("python")
    print("python", file=sys.stderr)
    subprocess.run("echo child; echo child >&2", shell=True, check=True)
    os.write(1, b"c\\n")
    os.write(2, b"c\\n")

print("before")
"""


def outputs(code):
    process = spawn_python(NOISE + code)
    out, err = process.communicate(timeout=DEADLINE)
    return process.returncode, out.split(), err.splitlines()


def test_what_the_process_and_its_children_print_is_dropped_if_nobody_needs_it():
    code = """
with quiet(until_failure=True) as output:
    noise()
    output.keep = False
print("after")
"""
    assert outputs(code) == (0, ["before", "after"], [])


def test_it_is_printed_in_its_order_at_the_end_if_somebody_does():
    code = """
with quiet(until_failure=True) as output:
    noise()
print("after")
"""
    code, out, err = outputs(code)
    # What Python buffers comes later than what is written past it, as without a block.
    assert (code, out[0], out[-1]) == (0, "before", "after")
    assert set(out[1:-1]) == {"python", "child", "c"}
    assert set(err) == {"python", "child", "c"}


def test_it_is_printed_when_an_exception_leaves_the_block():
    code = """
with quiet(until_failure=True) as output:
    noise()
    raise ZeroDivisionError("odd")
"""
    code, out, err = outputs(code)
    assert (code, set(out)) == (1, {"before", "python", "child", "c"})
    assert set(err) > {"python", "child", "c"}
    assert err[-1] == "ZeroDivisionError: odd"


def test_nothing_is_kept_back_where_that_is_not_asked_for():
    code = """
with quiet(until_failure=False) as output:
    noise()
    output.keep = False
"""
    assert set(outputs(code)[1]) == {"before", "python", "child", "c"}


def test_much_output_passes_whole_and_no_descriptor_is_left():
    code = """
import pathlib
fds = len(os.listdir("/proc/self/fd"))
with quiet(until_failure=True) as output:
    print("x" * 3_000_000)
assert len(os.listdir("/proc/self/fd")) == fds
"""
    code, out, err = outputs(code)
    assert (code, err) == (0, [])
    assert len(out[-1]) == 3_000_000
