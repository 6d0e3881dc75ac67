"""Makes torch's table of backends safe for threads that look up an unknown backend at the same time.

`lookup_backend` checks whether it has the name, loads the entry point, and registers the result under a name that must
be new. Several threads can pass the check before one of them registers; all others then fail ("duplicate name"). An
entry point can prevent this only while it is imported, because Python's import lock then admits one thread at a time:
the registering function has been called, but has not checked the table yet.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

__all__ = ["admit"]

Backend = Callable[..., Any]


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
    registry = sys.modules.get("torch._dynamo.backends.registry")
    table = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(table, dict) and table.setdefault(name, backend) is backend:
        registry._COMPILER_FNS = _Table(table, name, backend)  # type: ignore[union-attr]
