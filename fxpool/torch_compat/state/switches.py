"""Captures and re-enters global state that affects compiled code, outside the configuration modules.

`capture` reads every switch of `switch_table` into plain data. `entered` puts a process (or a new thread, which starts
with defaults) into that state temporarily. State that cannot be re-entered elsewhere (see `thread_state`) is not
included.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

from fxpool.torch_compat.state.switch_table import OF_A_THREAD, OF_CPU, TABLE, Reader

__all__ = ["OF_A_THREAD", "OF_CPU", "capture", "entered"]


def capture() -> dict[str, Any]:
    """Return every switch as plain data (strings, numbers, booleans, lists), without those this build cannot read."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some readers warn of their newer names
        for name, (read, _) in TABLE.items():
            # Fails for a build without the backend, or for a mix of old and new precision switches that torch refuses
            # to read by the old name. The same state reads the same way in every process that re-enters it.
            with contextlib.suppress(RuntimeError, AttributeError, TypeError):
                state[name] = read()
    return state


@contextlib.contextmanager
def entered(state: dict[str, Any], *, thread_only: bool = False) -> Iterator[None]:
    """Put this thread (and, unless `thread_only`, the process's global switches) into `state`; restore it afterwards.

    Only switches that differ are written. So re-entry in the process that captured the state changes only switches
    that a new thread does not inherit.
    """
    names = [name for name in TABLE if not thread_only or name in OF_A_THREAD]
    before = capture()
    try:
        _write(names, state)
        yield
    finally:
        _write(names, before)


def _write(names: list[str], state: dict[str, Any]) -> None:
    """Set switches that differ, in the order of the table: a switch that sets others comes before them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same warnings as when reading
        for name in names:
            read, write = TABLE[name]
            if write is not None and name in state and _differs(read, state[name]):
                write(state[name])


def _differs(read: Reader, value: Any) -> bool:
    try:
        return bool(read() != value)
    except (RuntimeError, AttributeError, TypeError):
        return True  # a mix that torch refuses to read; setting it ends the mix
