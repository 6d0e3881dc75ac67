"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["LIMIT", "on_a_loop", "settle", "until"]

#: Seconds that end a broken test.
LIMIT = 20.0


def on_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make a test of a coroutine. An exception in a callback of its loop is an error."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(_watched(test(**fixtures)), 2 * LIMIT))

    return run


async def _watched(test: Coroutine[Any, Any, None]) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    await test
    assert not errors


async def until(reached: Callable[[], object]) -> None:
    """Wait for something that happens soon."""
    end = time.monotonic() + LIMIT
    while not reached():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


async def settle() -> None:
    """Let everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0.002)
