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
    """A view of torch's table that accepts one backend again, as itself."""

    def __init__(self, table: dict[str, Backend], name: str, backend: Backend) -> None:
        # Not a copy: another thread, which has the table itself, may be registering another backend now.
        self.data = table
        self._name, self._backend = name, backend

    def __contains__(self, name: object) -> bool:
        # As before the first use. A thread that looks the name up gets here in any case.
        return name != self._name and name in self.data

    def __setitem__(self, name: str, backend: Backend) -> None:
        if name == self._name and backend is not self._backend:
            raise AssertionError(f"duplicate name: {name}")  # torch's own words
        self.data[name] = backend

    # The underlying dictionary's, which other threads may change meanwhile.
    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[Backend]:
        return self.data.values()

    def items(self) -> ItemsView[str, Backend]:
        return self.data.items()


def admit(name: str, backend: Backend) -> None:
    """Let `name` stand for `backend` from now on, however many threads register it.

    No-op if Dynamo is not imported (nobody looks anything up) or has another backend of that name.
    """
    registry = sys.modules.get("torch._dynamo.backends.registry")
    table = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(table, dict) and table.setdefault(name, backend) is backend:
        registry._COMPILER_FNS = _Table(table, name, backend)  # type: ignore[union-attr]
