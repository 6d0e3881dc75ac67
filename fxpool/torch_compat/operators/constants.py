"""Finds constants of torch's modules and classes, and defaults of functions, that a program set to other values.

Constants are names that torch's source assigns once, a literal (a number, a text, a container of them), and that no
code of torch assigns again (`torch_sources`, `literals`). To compare 1,900 constants takes 20 ms for a process's first
key and 0.5 ms for others.
"""

from __future__ import annotations

import copy
import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fxpool.torch_compat.operators import literals, namespaces, own_code, torch_sources

__all__ = ["Change", "changed"]

_CONTAINERS = (list, dict, set)


class Change(NamedTuple):
    """One changed constant, with its value as text. `traced_only` as in `namespaces`, which finds code in its place."""

    name: str
    value: str
    traced_only: bool


class _Row(NamedTuple):
    name: str
    get: Callable[[], Any]
    expected: str
    traced_only: bool


class _Listed:
    """The constants of all modules that were loaded when `loaded` were, and the last changes."""

    def __init__(self, loaded: int, rows: list[_Row], unread: Sequence[Change] = ()) -> None:
        self.loaded, self._unread = loaded, unread
        self.plain = [row for row in rows if not isinstance(row.get(), _CONTAINERS)]
        self.containers = [row for row in rows if isinstance(row.get(), _CONTAINERS)]
        self._last: tuple[list[Any], list[Any], list[Change]] = ([], [], [])

    def changed(self) -> list[Change]:
        values, contents = [row.get() for row in self.plain], [row.get() for row in self.containers]
        last, copies, found = self._last
        if len(last) != len(values) or not all(map(operator.is_, values, last)) or contents != copies:
            here = (
                Change(row.name, now, row.traced_only)
                for row, value in zip((*self.plain, *self.containers), (*values, *contents), strict=True)
                if (now := literals.text(value)) not in (None, row.expected)
            )
            found = sorted((*self._unread, *here))
            self._last = values, copy.deepcopy(contents), found
        return found


_listed = _Listed(0, [])


def changed(sources: torch_sources.Sources) -> list[Change]:
    """Return the constants that are not as torch's source has them, sorted; usually none.

    A module whose code can't be read is among them.
    """
    global _listed
    listed = _listed
    if listed.loaded != len(sys.modules):
        listed = _listed = _Listed(len(sys.modules), *_rows(sources))
    return listed.changed()


def _rows(sources: torch_sources.Sources) -> tuple[list[_Row], list[Change]]:
    constants: list[tuple[str, types.ModuleType, bool, dict[str, str]]] = []
    unread: list[Change] = []
    for name, module, traced in namespaces.examined_modules():
        # A module without a loader is an object that torch put in the place of one; `switches` captures its flags.
        if torch_sources.file_of(module) and module.__loader__ is not None:
            try:
                constants.append((name, module, traced, sources.constants(module)))
            except OSError as error:
                unread.append(Change(name, f"its code can't be read: {error}", traced))
    rows = [
        _Row(f"{name}.{place}", get, expected, traced)
        for name, module, traced, of_module in constants
        for place, expected in of_module.items()
        if place.rpartition(".")[2] not in sources.attributes and (get := _getter(module, place)) is not None
    ]
    return rows, unread


_MISSING = object()


def _getter(module: types.ModuleType, path: str) -> Callable[[], Any] | None:
    """Return a function that reads a constant; None if its class or function has been removed."""
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    if name in ("__defaults__", "__kwdefaults__"):
        # Else it is a wrapper, or a function in torch's place: `namespaces` finds the program's.
        is_defined = (
            type(owner) is types.FunctionType
            and owner.__code__.co_name == outer[-1]
            and own_code.is_file_of_torch(owner.__code__.co_filename)
        )
        return functools.partial(getattr, owner, name) if is_defined else None
    if not isinstance(owner, (type, types.ModuleType)) or isinstance(owner, enum.EnumMeta):
        return None
    return functools.partial(vars(owner).get, name, _MISSING) if name in vars(owner) else None
