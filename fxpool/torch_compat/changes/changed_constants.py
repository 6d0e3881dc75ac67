"""Finds constants of torch's modules and classes, and defaults of functions, that a program set to other values.

Constants are names that torch's source assigns once, a literal (a number, a text, a container of them) or a display of
a container, and that no code of torch assigns again or writes to (`torch_sources`, `assigned_literals`,
`container_displays`). Of other containers only code that the program put there is found. To compare 1,900 constants
takes 30 ms for a process's first key and 1 ms for others.
"""

from __future__ import annotations

import enum
import functools
import operator
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from fxpool.torch_compat.changes import assigned_literals, changed_namespaces, container_displays, torch_sources
from fxpool.torch_compat.operators import code_owner, inductor_tables

__all__ = ["Change", "changed"]


class Change(NamedTuple):
    """One changed constant. `traced_only` as in `changed_namespaces`, which finds code in its place.

    `value` is its text, or a tuple of what a container has that is not plain data.
    """

    name: str
    value: str | tuple[Any, ...]
    traced_only: bool


class _Row(NamedTuple):
    """One constant: `differs` tells whether a value is not as in the source.

    `is_imported`: it is another module's container, whose contents are compared there.
    """

    name: str
    get: Callable[[], Any]
    differs: Callable[[Any], bool]
    traced_only: bool
    is_imported: bool = False


class _Batch:
    """Constants of modules that were new at the same time, and which of them differ."""

    def __init__(self, rows: list[_Row]) -> None:
        self.rows = rows
        self.changes: list[Change] = []
        self.contents = container_displays.Contents(())
        self._values: list[Any] | None = None

    @property
    def is_examined(self) -> bool:
        return self._values is not None

    def is_unchanged(self) -> bool:
        """Return whether all values are the objects that were examined."""
        return (
            container_displays.are_same([row.get() for row in self.rows], self._values or ())
            and self.contents.are_unchanged()
        )

    def examine(self) -> None:
        values = [row.get() for row in self.rows]
        self.changes = [
            Change(row.name, _described(value), row.traced_only)
            for row, value in zip(self.rows, values, strict=True)
            if row.differs(value)
        ]
        own = [value for row, value in zip(self.rows, values, strict=True) if not row.is_imported]
        self._values, self.contents = values, container_displays.Contents(own)


class _Listed:
    """The constants of the modules that were there when `number` were listed. Threads may list at the same time."""

    def __init__(
        self,
        number: int = 0,
        batches: Sequence[_Batch] = (),
        modules: Mapping[str, types.ModuleType] | None = None,
        unread: Sequence[Change] = (),
        assigned: tuple[int, int] = (-1, -1),
    ) -> None:
        self.number, self.batches, self._unread = number, batches, unread
        self._modules = modules or {}
        self._assigned = assigned  # how many names torch's code assigns and writes to

    def extended(self, number: int, sources: torch_sources.Sources) -> _Listed:
        """Return a list with the new modules; of all modules if one was replaced, or if other names are constants."""
        readable, unread = _readable(sources)
        modules = {module.__name__: module for module, _ in readable}
        assigned = len(sources.attributes), len(sources.contents)
        listed, batches = self._modules, self.batches
        if assigned != self._assigned or any(modules.get(name) is not module for name, module in listed.items()):
            listed, batches = {}, ()
        rows = [
            row
            for module, traced in readable
            if module.__name__ not in listed
            for row in _of_module(module, traced, sources)
        ]
        return _Listed(number, (*batches, _Batch(rows)), modules, unread, assigned)

    def changed(self) -> list[Change]:
        # An import differs if the module that it comes from has another object by now, so that none stands alone.
        are_unchanged = all(batch.is_unchanged() for batch in self.batches if batch.is_examined)
        for batch in self.batches:
            if not (are_unchanged and batch.is_examined):
                batch.examine()
        changes = [change for batch in self.batches for change in batch.changes]
        return sorted((*self._unread, *changes), key=operator.attrgetter("name"))


def _described(value: Any) -> str | tuple[Any, ...]:
    text = assigned_literals.text(value)
    return text if text is not None else container_displays.flat(value)


_listed = _Listed()


def changed(sources: torch_sources.Sources) -> list[Change]:
    """Return the constants that are not as torch's source has them, sorted; usually none.

    A module whose code can't be read is among them.
    """
    global _listed
    listed = _listed
    if listed.number != (number := changed_namespaces.listed()):
        listed = _listed = listed.extended(number, sources)
    return listed.changed()


def _readable(sources: torch_sources.Sources) -> tuple[list[tuple[types.ModuleType, bool]], list[Change]]:
    """Return (module, traced only) of the modules whose code can be read, and the others as changes."""
    modules: list[tuple[types.ModuleType, bool]] = []
    unread: list[Change] = []
    for name, module, traced in changed_namespaces.examined_modules():
        # A module without a loader is an object that torch put in the place of one; `global_state` captures its flags.
        if torch_sources.file_of(module) and module.__loader__ is not None:
            try:
                sources.constants(module)
                modules.append((module, traced))
            except OSError as error:
                unread.append(Change(name, f"its code can't be read: {error}", traced))
    return modules, unread


def _of_module(module: types.ModuleType, traced: bool, sources: torch_sources.Sources) -> Iterator[_Row]:
    for place, expected in sources.constants(module).items():
        if (found := _find(module, place, sources)) is not None:
            yield _Row(f"{module.__name__}.{place}", found[1], functools.partial(_is_another, expected), traced)
    for place, template in sources.displays(module).items():
        if (found := _find(module, place, sources)) is not None:
            differs = functools.partial(
                container_displays.differs, template, names=container_displays.scopes(module, found[0])
            )
            yield _Row(f"{module.__name__}.{place}", found[1], differs, traced)

    if traced:
        return
    listed = {*sources.constants(module), *sources.displays(module)}
    imports = sources.imports(module)[0]
    for place, get in _containers(module):
        name = f"{module.__name__}.{place}"
        if place in imports:
            home, there = imports[place]
            source = sys.modules.get(home, module)
            # If torch assigns the name again, its import keeps the earlier object.
            if vars(source).get(there) is get() and there not in _variables(source, sources):
                yield _Row(name, get, functools.partial(_is_not_that_of, home, there), traced, True)
            continue
        is_registry = code_owner.is_below(name, _REGISTRIES) and place.rpartition(".")[2] in sources.contents
        if place not in listed and not is_registry and place not in _LISTED_ELSEWHERE.get(module.__name__, ()):
            yield _Row(name, get, container_displays.has_foreign_code, traced)


def _variables(module: types.ModuleType, sources: torch_sources.Sources) -> Collection[str]:
    """Return the global names that functions of a module assign; none of a module whose code can't be read."""
    try:
        return sources.variables(module)
    except OSError:
        return ()


def _is_not_that_of(home: str, name: str, value: Any) -> bool:
    return home in sys.modules and vars(sys.modules[home]).get(name) is not value


def _containers(module: types.ModuleType) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the name of each container that can change in a module and its classes, and a function that reads it."""
    for name, value in [*vars(module).items()]:
        if type(value) in container_displays.MUTABLE and not name.startswith("__"):
            yield name, functools.partial(vars(module).get, name, _MISSING)
        elif isinstance(value, type) and vars(value).get("__module__") == module.__name__:
            for inner, attribute in [*vars(value).items()]:
                if type(attribute) in container_displays.MUTABLE and not inner.startswith("__"):
                    yield f"{name}.{inner}", functools.partial(vars(value).get, inner, _MISSING)


#: Modules whose containers torch fills with code for a program's own types and operators, or with configuration.
_REGISTRIES = ("torch.fx", "torch._library", "torch._ops", "torch.utils", "torch._jit_internal", "torch.overrides",
               "torch._higher_order_ops", "torch.autograd", "torch._guards", "torch.compiler.config",
               "torch._inductor.config", "torch._functorch.config")  # fmt: skip
#: Containers that `inductor_tables` examines.
_LISTED_ELSEWHERE = inductor_tables.places()


def _is_another(expected: str, value: Any) -> bool:
    text = assigned_literals.text(value)
    return text != expected and (text is not None or type(value) in container_displays.CONTAINERS)


def _find(module: types.ModuleType, path: str, sources: torch_sources.Sources) -> tuple[Any, Callable[[], Any]] | None:
    """Return the owner of a constant and a function that reads it; None if it is not one, or is gone."""
    name = path.rpartition(".")[2]
    return None if name in sources.attributes or name in sources.contents else _getter(module, path)


_MISSING = object()


def _getter(module: types.ModuleType, path: str) -> tuple[Any, Callable[[], Any]] | None:
    """Return as `_find`; None if its class or function has been removed."""
    *outer, name = path.split(".")
    owner: Any = module
    for part in outer:
        owner = vars(owner).get(part) if hasattr(owner, "__dict__") else None
        owner = owner.__func__ if isinstance(owner, (staticmethod, classmethod)) else owner
    if name in ("__defaults__", "__kwdefaults__"):
        # Else it is a wrapper, or a function in torch's place: `changed_namespaces` finds the program's.
        is_defined = (
            type(owner) is types.FunctionType
            and owner.__code__.co_name == outer[-1]
            and code_owner.is_file_of_torch(owner.__code__.co_filename)
        )
        return (owner, functools.partial(getattr, owner, name)) if is_defined else None
    if not isinstance(owner, (type, types.ModuleType)) or isinstance(owner, enum.EnumMeta):
        return None
    return (owner, functools.partial(vars(owner).get, name, _MISSING)) if name in vars(owner) else None
