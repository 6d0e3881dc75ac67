"""Counts the graphs that a process lowers itself, independently of fxpool's own counters.

Programs of `campaigns.first_day` execute this file by its path, so that modules are imported inside functions: an
import could hide a problem of the program.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` is not imported either
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

__all__ = ["LoweringCounter", "counting", "since"]

_GRAPH = "torch._inductor.graph"


class LoweringCounter:
    """Counts constructions of Inductor's GraphLowering in this process, from `install` on.

    The module is not imported for that: a process under fxpool would have a compiler that users' processes have not.
    """

    def __init__(self) -> None:
        self._constructed: list[None] = []  # several threads may append without a lock

    @property
    def count(self) -> int:
        return len(self._constructed)

    def reset(self) -> None:
        """Start again from 0."""
        self._constructed.clear()

    def install(self) -> None:
        """Wrap the class now if its module is imported, else when it is."""
        if _GRAPH in sys.modules:
            self._wrap(sys.modules[_GRAPH])
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the one module, and have its class wrapped when it has been executed."""
        if fullname != _GRAPH:
            return None
        import importlib.machinery

        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        loader: Any = spec.loader if spec is not None else None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._wrap(module)

        loader.exec_module = exec_module
        return spec

    def _wrap(self, module: ModuleType) -> None:
        original = module.GraphLowering.__init__

        def counted(this: object, *arguments: object, **named: object) -> None:
            self._constructed.append(None)
            original(this, *arguments, **named)

        module.GraphLowering.__init__ = counted


def counting() -> LoweringCounter:
    """Count the graphs that this process lowers from now on."""
    counter = LoweringCounter()
    counter.install()
    return counter


def since(before: Any, now: Any) -> Any:
    """Return what counters, in nested dictionaries, have counted since `before`, without those that stayed the same."""
    if not isinstance(now, dict):
        return now - before
    changed = {name: since(before.get(name, {} if isinstance(count, dict) else 0), count) for name, count in
               now.items()}  # fmt: skip
    return {name: count for name, count in changed.items() if count or name not in before}
