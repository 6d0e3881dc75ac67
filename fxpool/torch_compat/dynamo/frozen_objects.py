"""Keeps the program's objects out of full garbage collections while Dynamo compiles. Torch 2.15 and later defer them.

Tracing makes many objects that live until it ends, so that full collections are due. Each scans all objects of the
program, and frees little. With those objects frozen, a collection scans only what the compile has made. Thresholds stay
as they are: code that is traced may read them.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

from torch._dynamo import callback, utils

__all__ = ["freeze_while_compiling", "frozen"]


# Python 3.12 freezes a few hundred objects of its own when it starts; a program that freezes some has thousands.
_OF_PYTHON = 1000


class _Freezing:
    """Freezes the objects that exist when a compile begins, unless the program has frozen some.

    The end of the compile also undoes a `gc.freeze` of another thread during it: nothing tells its objects from these.
    """

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self.is_frozen = False

    def begin(self, _: object) -> None:
        collects = gc.isenabled() and gc.get_threshold()[2] > 0
        if collects and not self.is_frozen and gc.get_freeze_count() < _OF_PYTHON and self._wanted():
            gc.collect(1)  # young garbage would have to wait for a full collection afterwards
            gc.freeze()
            self.is_frozen = True

    def end(self, _: object) -> None:
        if self.is_frozen:
            self.is_frozen = False
            gc.unfreeze()


_freezing: _Freezing | None = None


@contextlib.contextmanager
def frozen() -> Iterator[None]:
    """Do in this block as during a compile."""
    if _freezing is None:
        with getattr(utils, "deferred_full_gc", contextlib.nullcontext)():
            yield
        return
    is_outermost = not _freezing.is_frozen
    _freezing.begin(None)
    try:
        yield
    finally:
        if is_outermost:
            _freezing.end(None)


def freeze_while_compiling(wanted: Callable[[], bool]) -> None:
    """Freeze them during this compile and all later ones for which `wanted` returns True. Idempotent.

    Nothing is done with a torch that defers full collections.
    """
    global _freezing
    if _freezing is None and not hasattr(utils, "deferred_full_gc"):
        _freezing = _Freezing(wanted)
        handler = callback.callback_handler
        handler.register_start_callback(_freezing.begin)
        handler.register_end_callback(_freezing.end)
        if getattr(handler, "_CompilationCallbackHandler__pending_callbacks_counter", 0):  # within a compile
            _freezing.begin(None)
