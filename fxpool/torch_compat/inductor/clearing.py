"""Reports the calls by which a program clears torch's caches on disk.

``FxGraphCache.clear()`` and ``AOTAutogradCache.clear()`` still do their work. They are static methods of classes that a
program may have imported by name, so the method is replaced, not the class.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from fxpool import forks
from fxpool.torch_compat.imported import when_imported

__all__ = ["watch"]

_CACHES = (
    ("torch._inductor.codecache", "FxGraphCache"),
    ("torch._functorch._aot_autograd.autograd_cache", "AOTAutogradCache"),
)
_lock = forks.lock(__name__, "_lock")
_watching = False


def watch(cleared: Callable[[str], None]) -> None:
    """From now on, call `cleared` with the name of the class whose cache was cleared. Idempotent."""
    global _watching
    if _watching:
        return
    with _lock:
        if _watching:
            return
        _watching = True
        for module, name in _CACHES:
            when_imported(module, functools.partial(_replace, name, cleared))


def _replace(name: str, cleared: Callable[[str], None], module: types.ModuleType) -> None:
    owner = getattr(module, name)
    original = owner.clear

    @functools.wraps(original)
    def clear() -> None:
        original()
        cleared(name)

    owner.clear = staticmethod(clear)
