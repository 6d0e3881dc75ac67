"""What a process compiles itself, seen without fxpool's own counters."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["Counts", "counts", "since", "watch_lowerings"]

Counts = dict[str, Any]
_GRAPH = "torch._inductor.graph"
_constructed = 0


def _watch(module: ModuleType) -> None:
    cls = module.GraphLowering
    original = cls.__init__

    def counted(self: object, *arguments: object, **named: object) -> None:
        global _constructed
        _constructed += 1
        original(self, *arguments, **named)

    cls.__init__ = counted


class _WhenImported(importlib.abc.MetaPathFinder):
    """Finds the one module, and has it watched when it has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _GRAPH:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = spec.loader if spec is not None else None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _watch(module)

        loader.exec_module = exec_module
        return spec


def watch_lowerings() -> None:
    """Count constructions of GraphLowering from now on.

    The module is not imported for that: a process under fxpool would have a compiler that users' processes have not.
    """
    if _GRAPH in sys.modules:
        _watch(sys.modules[_GRAPH])
    else:
        sys.meta_path.insert(0, _WhenImported())


def counts(backend: str) -> Counts:
    """What has been counted in this process until now; `since` gives the difference to an earlier call."""
    found: Counts = {"lowerings": _constructed}
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        found["hits"], found["compiles"] = stats["hits"], dict(stats["compiles"])
        found["fallbacks"], found["bypasses"] = dict(stats["fallbacks"]), dict(stats["bypasses"])
    return found


def since(before: Counts, after: Counts) -> Counts:
    """What `after` counts and `before` does not, without reasons that nothing was counted under."""
    found: Counts = {}
    for name, value in after.items():
        if isinstance(value, dict):
            earlier = before.get(name, {})
            found[name] = {key: n - earlier.get(key, 0) for key, n in value.items() if n - earlier.get(key, 0)}
        else:
            found[name] = value - before.get(name, 0)
    return found
