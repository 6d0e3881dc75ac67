"""Torch's table of backends: enters ours early (`announce`), and safely for several threads (`admit`).

Torch imports every built-in backend before it reads entry points. This takes 0.1 s, because it loads AOTAutograd, its
partitioner and networkx, and a frame that is served without tracing needs none of them. Torch loads an entry point that
is already in the table without these imports.

`lookup_backend` checks whether it has the name, loads the entry point, and registers the result under a name that must
be new. Several threads can pass the check before one of them registers; all others then fail ("duplicate name"). An
entry point can prevent this only while it is imported, because Python's import lock then admits one thread at a time:
the registering function has been called, but has not checked the table yet.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import UserDict
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

from fxpool.torch_compat.patching import when_imported

__all__ = ["admit", "announce"]

Backend = Callable[..., Any]

_REGISTRY = "torch._dynamo.backends.registry"


class _Table(UserDict[str, Backend]):
    """A view of torch's table that accepts the same backend more than once."""

    def __init__(self, table: dict[str, Backend], name: str, backend: Backend) -> None:
        # Not a copy: another thread may be registering another backend in the table itself now.
        self.data = table
        self._name, self._backend = name, backend

    def __contains__(self, name: object) -> bool:
        # The name is reported as missing, as before the first use, so that each thread's registration passes.
        return name != self._name and name in self.data

    def __setitem__(self, name: str, backend: Backend) -> None:
        if name == self._name and backend is not self._backend:
            raise AssertionError(f"duplicate name: {name}")  # torch's own message
        self.data[name] = backend

    # Views of the underlying dictionary, which other threads may change at any time.
    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[Backend]:
        return self.data.values()

    def items(self) -> ItemsView[str, Backend]:
        return self.data.items()


def admit(name: str, backend: Backend) -> None:
    """Register `backend` as `name`, so that any number of threads may register it again.

    No-op if Dynamo is not imported (there are no lookups) or has another backend of that name.
    """
    registry = sys.modules.get(_REGISTRY)
    table = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(table, dict) and table.setdefault(name, backend) is backend:
        registry._COMPILER_FNS = _Table(table, name, backend)  # type: ignore[union-attr]


def announce(name: str, target: str) -> None:
    """Enter the backend `target` (``module:attribute``) into torch's table as soon as torch imports the table.

    Without effect under a torch that is not supported. Torch's own look at entry points finds the same later.
    """
    when_imported(_REGISTRY, functools.partial(_enter, name, target))


def _enter(name: str, target: str, registry: types.ModuleType) -> None:
    import importlib.metadata  # late: every program that imports torch imports this module

    import torch

    from fxpool.torch_compat import versions

    table = getattr(registry, "_BACKENDS", None)
    refusal = versions.refusal(torch.version.__version__, sys.version_info[:2], sys.platform)
    if isinstance(table, dict) and refusal is None:
        table.setdefault(name, importlib.metadata.EntryPoint(name, target, "torch_dynamo_backends"))
