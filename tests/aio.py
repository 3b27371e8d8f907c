"""Async code in the tests: on an event loop of its own, whose connections are closed after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from asgiref.sync import sync_to_async
from django.db import connections

Result = TypeVar("Result")


def run(main: Callable[[], Awaitable[Result]]) -> Result:
    """Run *main* to its end, as a program with asyncio would."""

    async def run_and_close() -> Result:
        try:
            return await main()
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(run_and_close())


def close_connections() -> None:
    """Close what a loop that has already ended left open in its thread."""

    async def nothing() -> None:
        pass

    run(nothing)
