"""torch's table of backends by name, for one that several threads ask for at once before it is known.

`lookup_backend` looks whether it has the name, loads the entry point, and registers what that gives under a name that
must be new. Between the first and the last several threads get there, and all but one fail ("duplicate name"). What an
entry point can do about that it has to do while it is imported, of which Python's import lock lets one thread at a time
come: the registering function is then already on its way, but has not looked into the table yet.
"""

from __future__ import annotations

import sys
from collections import UserDict
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from typing import Any

__all__ = ["admit"]

Backend = Callable[..., Any]


class _Table(UserDict[str, Backend]):
    """A view of torch's table that has no objection to one backend's being registered again, as itself."""

    def __init__(self, table: dict[str, Backend], name: str, backend: Backend) -> None:
        # Not a copy: another backend may be being registered now, by a thread that holds the table itself.
        self.data = table
        self._name, self._backend = name, backend

    def __contains__(self, name: object) -> bool:
        # As before the first use. Who looks the name up then comes here for it in any case.
        return name != self._name and name in self.data

    def __setitem__(self, name: str, backend: Backend) -> None:
        if name == self._name and backend is not self._backend:
            raise AssertionError(f"duplicate name: {name}")  # as torch says it
        self.data[name] = backend

    # The dictionary's own, which other threads may change meanwhile.
    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[Backend]:
        return self.data.values()

    def items(self) -> ItemsView[str, Backend]:
        return self.data.items()


def admit(name: str, backend: Backend) -> None:
    """Have `name` stand for `backend` from now on, registered by as many threads as do.

    Nothing happens where Dynamo is not imported (nobody looks anything up) or has another backend of that name.
    """
    registry = sys.modules.get("torch._dynamo.backends.registry")
    table = getattr(registry, "_COMPILER_FNS", None)
    if isinstance(table, dict) and table.setdefault(name, backend) is backend:
        registry._COMPILER_FNS = _Table(table, name, backend)  # type: ignore[union-attr]
