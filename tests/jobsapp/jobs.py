"""Jobs for the tests of runjob. What `code` does is written in the test, in the environment."""

import asyncio
import os
import textwrap
from functools import partial

from django_runlease import job


def say(text):
    """Tell the test that waits for this line."""
    print(text, flush=True)


def _run(held, source):
    exec(compile(textwrap.dedent(source), "CODE", "exec"), {"held": held, "say": say})


def code(held):
    _run(held, os.environ["CODE"])


# Several names, so that the tests can have several of them at once.
for name in ("code", *(f"code-{number}" for number in range(10))):
    job(name)(code)


@job("termed", ttl="7m", every="1h")
def termed(held):
    pass


@job("async_code")
async def async_code(held):
    body = textwrap.indent(textwrap.dedent(os.environ["CODE"]), "    ")
    names = {"held": held, "say": say, "asyncio": asyncio}
    exec(compile(f"async def body():\n{body}", "CODE", "exec"), names)
    await names["body"]()


job("partial")(partial(_run, source="say(held.name)"))
