"""Finds a program's changes to Inductor and AOTAutograd, in tables of torch's modules.

These are lowerings, decompositions, layout constraints, patterns of the graph passes, passes and back ends of a device,
operators made fallbacks, and removed decompositions. A table is read only if its module is loaded: code that registers
with it has loaded it, and ordinary programs with fxpool never do.

A program's functions are recognized by their modules. Removing an entry, and making a fallback, leave no function; they
are found by comparing with the original tables of torch's module, which `watch` records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from fxpool.torch_compat.operators import by_value
from fxpool.torch_compat.operators.otherwise import DECOMPOSED, LOWERED, How, Otherwise
from fxpool.torch_compat.operators.registrations import foreign_functions

__all__ = ["Tables", "of_operator", "of_the_program", "tables", "watch"]

_LOWERING = "torch._inductor.lowering"
_DECOMPOSITION = "torch._inductor.decomposition"
_COMMON = "torch._inductor.codegen.common"
_PASSES = "torch._inductor.fx_passes."
# Compared as whole names: a program's modules may have these as prefixes.
_OF_TORCH = frozenset(
    ("torch", "torchgen", "functorch", "operator", "_operator", "builtins", "math", "functools", "sympy")
)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def of_the_program() -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each registration that is not torch's; the values are for a digest."""
    yield from _functions_in_tables()
    yield from _patterns()
    yield from _of_devices()


# Tables that are only read for operators that a compile meets, and how they affect these.
_ASKED_FOR: dict[str, How] = {
    "lowerings": LOWERED,
    "_maybe_layout_constraints": LOWERED,
    "decompositions": DECOMPOSED,
    "extra_random_decomps": DECOMPOSED,
}


def of_operator(name: str) -> Otherwise | None:
    """Return the operator that a registration of `of_the_program` is for, if it affects only compiles that meet it."""
    table, _, rest = name.partition("[")
    return Otherwise(_ASKED_FOR[table], rest[:-1], name) if table in _ASKED_FOR else None


# ---------------------------------------------------------------- tables of functions


def for_a_worker() -> list[bytes]:
    """Return the program's functions in tables keyed by operator, for `by_value.settle_registrations`."""
    return by_value.registrations_as_bytes(
        (module, table, key, function)
        for module, table, entries in _tables_by_operator()
        for key, function in list(entries.items())
        if function is not None and not _is_torchs(function)
    )


def _tables_by_operator() -> Iterator[tuple[str, str, dict[Any, Any]]]:
    for module, attribute in (
        (_LOWERING, "lowerings"),
        (_LOWERING, "_maybe_layout_constraints"),
        (_DECOMPOSITION, "decompositions"),
        (_DECOMPOSITION, "extra_random_decomps"),
    ):
        table = getattr(sys.modules.get(module), attribute, None)
        if isinstance(table, dict):
            yield module, attribute, table


def _functions_in_tables() -> Iterator[tuple[str, Any]]:
    for _, attribute, table in _tables_by_operator():
        yield from _of_program(attribute, table)
    # torch's own functions; the program's choices are in the closure.
    for key, function in list(getattr(sys.modules.get(_LOWERING), "user_lowerings", {}).items()):
        yield f"user_lowerings[{key}]", _given_to(function)
    registries = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
    for name, table in registries.items():
        yield from _of_program(f"decompositions {name}", table)


def _of_program(name: str, table: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, function in list(table.items()):
        if function is not None and not _is_torchs(function):
            yield f"{name}[{key}]", function


def _given_to(function: Any) -> Any:
    """Return the closure of a torch function as a dict by name; any other function unchanged."""
    if not (isinstance(function, types.FunctionType) and _is_torchs(function) and function.__closure__):
        return function
    held: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # empty
            held[name] = _plain(cell.cell_contents)
    return held


def _plain(value: Any) -> Any:
    """Replace torch's records by their attributes, and torch's functions by their closures or names."""
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, types.FunctionType) and _is_torchs(value):
        return _given_to(value) if value.__closure__ else value.__qualname__
    if isinstance(value, torch._ops.OpOverload):
        return str(value)
    if not isinstance(value, type) and type(value).__module__.startswith("torch._inductor."):
        return [type(value).__qualname__, {name: _plain(part) for name, part in sorted(vars(value).items())}]
    return value


def _is_torchs(function: Any) -> bool:
    # Built-in functions are registered, too, and a wrapper has the module of the function that it wraps.
    module = getattr(function, "__module__", None) or getattr(getattr(function, "func", None), "__module__", "torch")
    return str(module).partition(".")[0] in _OF_TORCH


# ---------------------------------------------------------------- patterns

# torch's own entries by id, with references to them so that an id is not reused.
_torchs: dict[int, Any] = {}


def _patterns() -> Iterator[tuple[str, Any]]:
    matcher = sys.modules.get("torch._inductor.pattern_matcher")
    kind = getattr(matcher, "PatternMatcherPass", None)
    if kind is None:
        return
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.items()):
        if not module_name.startswith(_PASSES):
            continue
        for attribute, value in sorted(vars(module).items()):
            for place, matcher_pass in _passes_in(value, kind, f"{module_name.removeprefix(_PASSES)}.{attribute}"):
                if id(matcher_pass) not in seen:
                    seen.add(id(matcher_pass))
                    yield from _entries(place, matcher_pass)


def _passes_in(value: Any, kind: type, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield place, value
    elif isinstance(value, (list, tuple)):
        for position, item in enumerate(value):
            if isinstance(item, kind):
                yield f"{place}[{position}]", item
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if isinstance(item, kind):
                yield f"{place}[{key}]", item


def _entries(place: str, matcher_pass: Any) -> Iterator[tuple[str, Any]]:
    for (op, target), entries in list(matcher_pass.patterns.items()):
        for position, entry in enumerate(entries):
            if id(entry) in _torchs:
                continue
            seen: set[int] = set()
            functions = [f for value in vars(entry).values() for f in foreign_functions(value, seen)]
            if functions:
                pattern = _ADDRESS.sub("", repr(entry.pattern))
                yield f"pattern {place} {op} {_ADDRESS.sub('', str(target))} {position}", [pattern, functions]
            else:
                _torchs[id(entry)] = entry


# ---------------------------------------------------------------- devices


def _of_devices() -> Iterator[tuple[str, Any]]:
    common = sys.modules.get(_COMMON)
    for device, scheme in list(getattr(common, "device_codegens", {}).items()):
        parts = [part for part in vars(scheme).values() if part is not None]
        if any(not _is_torchs(part) for part in parts):
            yield f"device_codegens[{device}]", parts
    for device, custom in list(getattr(common, "custom_backend_passes", {}).items()):
        if custom is not None:
            uuid = custom.uuid() if callable(getattr(custom, "uuid", None)) else None
            yield f"custom_backend_passes[{device}]", [type(custom), custom if uuid is None else uuid]
    for device, configuration in list(getattr(common, "custom_backend_codegen_configs", {}).items()):
        if configuration is not None:
            # Its values are configuration, which workers enter: see `configs`.
            yield f"custom_backend_codegen_configs[{device}]", [configuration.__name__, sorted(configuration._config)]


# ---------------------------------------------------------------- changes that leave no function


@dataclasses.dataclass(frozen=True)
class Tables:
    """Names in Inductor's tables in a process that may have changed them; None for a table that is not loaded.

    `fallbacks` are operators whose lowering calls them, `decomposed` those with a decomposition. `changed` lists the
    differences from torch's own tables; None if these were created before `watch`.
    """

    fallbacks: Sequence[str]
    decomposed: Sequence[str] | None
    changed: Sequence[str] | None

    def for_key(self) -> Sequence[Any]:
        """Return the tables' contents for a key: the changes if known, else all names."""
        return self.changed if self.changed is not None else [self.fallbacks, self.decomposed]

    def disagreements(self) -> list[Otherwise]:
        """Return operators that would be compiled differently under these tables than under this process's."""
        lowered, fallbacks, decomposed = _lowered(), _fallbacks(), _decomposed()
        differing = []
        for name in self.fallbacks:
            # An operator without a lowering or decomposition here becomes a fallback when a compile meets it.
            if name not in fallbacks and (name in decomposed or name in lowered):
                what = f"the fallback for {name}"
                differing += [Otherwise(LOWERED, name, what), Otherwise(DECOMPOSED, name, what)]
        for name in sorted(decomposed - set(self.decomposed)) if self.decomposed is not None else ():
            differing.append(Otherwise(DECOMPOSED, name, f"the decomposition of {name}, which was taken away"))
        return differing


def tables() -> Tables | None:
    """Return the tables of this process; None if they are as torch made them."""
    fallbacks = _fallbacks()
    decomposed = _decomposed() if _DECOMPOSITION in sys.modules else None
    changed: list[str] | None = None
    watched = (_made.lowered is not None or not fallbacks) and (_made.decomposed is not None or decomposed is None)
    if watched:
        known = (_made.lowered or frozenset()) | (_made.decomposed or frozenset())
        changed = [f"fallback {name}" for name in sorted(fallbacks - _made.fallbacks) if name in known]
        if decomposed is not None and _made.decomposed is not None:
            changed += [f"without decomposition {name}" for name in sorted(_made.decomposed - decomposed)]
        if not changed:
            return None
    return Tables(sorted(fallbacks), sorted(decomposed) if decomposed is not None else None, changed)


@dataclasses.dataclass
class _Made:
    """torch's original tables; None for those of a module that was loaded before `watch`."""

    fallbacks: frozenset[str] = frozenset()
    lowered: frozenset[str] | None = None
    decomposed: frozenset[str] | None = None


_made = _Made()


def watch() -> None:
    """Record Inductor's tables as soon as they are created, unless they exist already."""
    missing = {_LOWERING, _DECOMPOSITION} - sys.modules.keys()
    if missing and not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(missing))


class _Watcher(importlib.abc.MetaPathFinder):
    """Finds no modules itself, but wraps the loaders of some modules to run code after them."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._names:
            return None
        self._names.discard(fullname)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Telling(spec.loader)
        return spec


class _Telling(importlib.abc.Loader):
    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # `inspect` reads the source through it
        module.__loader__ = self._loader
        if module.__name__ == _LOWERING:
            _made.fallbacks, _made.lowered = frozenset(_fallbacks()), frozenset(_lowered())
        else:
            _made.decomposed = frozenset(_decomposed())


def _fallbacks() -> set[str]:
    return _names(getattr(sys.modules.get(_LOWERING), "fallbacks", ()))


def _lowered() -> set[str]:
    return _names(getattr(sys.modules.get(_LOWERING), "lowerings", ()))


def _decomposed() -> set[str]:
    return _names(getattr(sys.modules.get(_DECOMPOSITION), "decompositions", ()))


def _names(operators: Any) -> set[str]:
    return {str(operator) for operator in operators if hasattr(operator, "_schema")}
