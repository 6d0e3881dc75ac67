"""Finds a program's entries in Inductor's tables: lowerings, decompositions, layout constraints, patterns, devices.

Each entry is compared with the one that torch made: by identity if the table was recorded when its module was imported
(`watch`), else by structure: where the function was defined, and what it holds. A table is read only if its module is
loaded, which ordinary programs with fxpool never do.

An entry for an operator affects only compiles that meet the operator, so it names the operator.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.abc
import importlib.machinery
import operator
import os
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch

from fxpool.torch_compat.operators import by_value, operators, own_code
from fxpool.torch_compat.operators.otherwise import DECOMPOSED, LOWERED, How, Otherwise

__all__ = ["Entry", "are_known", "as_bytes", "digest", "entries", "for_a_worker", "of_operator", "settle", "structure",
           "table_name", "version", "watch"]  # fmt: skip

_LOWERING = "torch._inductor.lowering"
_DECOMPOSITION = "torch._inductor.decomposition"
_COMMON = "torch._inductor.codegen.common"
_PASSES = "torch._inductor.fx_passes."
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

#: Tables by operator: module, name, and how an entry affects a compile that meets the operator.
_TABLES: tuple[tuple[str, str, How], ...] = (
    (_LOWERING, "lowerings", LOWERED),
    (_LOWERING, "_maybe_layout_constraints", LOWERED),
    (_LOWERING, "user_lowerings", LOWERED),
    (_DECOMPOSITION, "decompositions", DECOMPOSED),
    (_DECOMPOSITION, "extra_random_decomps", DECOMPOSED),
)
_HOW: dict[str, How] = {name: how for _, name, how in _TABLES}
# A worker replaces entries of these tables by those that are sent to it.
_SENT = ("lowerings", "_maybe_layout_constraints", "decompositions", "extra_random_decomps")
# Other tables, whose foreign functions count for every graph.
_OTHERS = (
    ("torch._inductor.fx_passes.post_grad", "noop_registry"),
    ("torch._inductor.fx_passes.reinplace", "inplaceable_ops"),
    ("torch._inductor.fx_passes.reinplace", "inplaceable_foreach_ops"),
    ("torch._subclasses.fake_impls", "op_implementations_dict"),
    ("torch._subclasses.fake_impls", "op_implementations_checks"),
    ("torch.utils._pytree", "SUPPORTED_NODES"),
)


class Entry(NamedTuple):
    """One entry: `value` is a function, plain data, or None if torch's entry was removed.

    `operator` is the operator that it is for, if compiles that do not meet it are not affected; `key` its key in the
    table. `is_torchs`: the value is torch's own, under another operator than torch has it. `vouched` is the object with
    a ``uuid()``, if the value is its uuid.
    """

    name: str
    value: Any
    operator: Any = None
    key: Any = None
    is_torchs: bool = False
    vouched: Any = None


def entries() -> Iterator[Entry]:
    """Yield the entries that are not as torch made them; of unknown tables those that are not torch's."""
    for module, name, _ in _TABLES:
        table = getattr(sys.modules.get(module), name, None)
        if isinstance(table, dict):
            yield from _examined(table, functools.partial(_in_table, name, table), name=f"changes {name in _original}")
    others = {name: getattr(sys.modules.get(module), name, None) for module, name in _OTHERS}
    registries = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
    for name, table in (others | {f"decompositions {name}": table for name, table in registries.items()}).items():
        if isinstance(table, list):
            pairs = [("", value) for value in table if not _is_own(value)]
        else:
            pairs = _foreign(table) if isinstance(table, dict) else []
        for key, value in pairs:
            if not isinstance(key, type) or own_code.is_own(key):  # else: for objects of the program's classes
                yield Entry(f"{name}[{_key(key)}]", _parts(value), key if hasattr(key, "namespace") else None)
    yield from _side_effects()
    yield from _patterns()
    yield from _of_devices()


def of_operator(name: str) -> list[Otherwise]:
    """Return how the operator of an entry is treated, by the entry's name; [] if the entry affects other compiles too.

    A lowering that calls the operator instead of lowering it ends its decomposition as well.
    """
    table, _, rest = name.partition("[")
    if table not in _HOW:
        return []
    hows: Sequence[How] = (LOWERED, DECOMPOSED) if table == "lowerings" else (_HOW[table],)
    return [Otherwise(how, rest[:-1], name) for how in hows]


def version() -> str:
    """Return what `as_bytes` depends on: the build of torch."""
    return f"{torch.__version__} {torch.version.git_version} {sys.version_info[:2]}"


def for_a_worker(wanted: Callable[[Entry], bool]) -> list[bytes]:
    """Return the program's functions in tables by operator, for `by_value.settle_registrations`."""
    modules = {name: module for module, name, _ in _TABLES}
    chosen = (
        (modules[table], table, entry.key, entry.value)
        for entry in entries()
        if (table := entry.name.partition("[")[0]) in _SENT
        and callable(entry.value)
        and not entry.is_torchs
        and wanted(entry)
    )
    return by_value.registrations_as_bytes(chosen)


def table_name(value: Any) -> str:
    """Return the name of an object that is one of Inductor's tables by operator, else ""."""
    if type(value) is not dict:
        return ""
    return next((name for module, name, _ in _TABLES if getattr(sys.modules.get(module), name, None) is value), "")


def _foreign(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the entries with code that is not torch's."""
    found: list[tuple[Any, Any]] = _examined(
        table, lambda: [pair for pair in list(table.items()) if not _is_own(pair[1])]
    )
    return found


#: By id of the table and name of the result: the table, its values when it was examined, and the result.
_results: dict[tuple[int, str], tuple[Any, tuple[Any, ...], Any]] = {}


def _examined(table: Mapping[Any, Any], examine: Callable[[], Any], *, name: str = "") -> Any:
    """Return `examine`'s result, from an earlier call under `name` if the table's entries are the same objects."""
    values = tuple(table.values())
    earlier = _results.get((id(table), name))
    if earlier is not None and len(earlier[1]) == len(values) and all(map(operator.is_, earlier[1], values)):
        return earlier[2]
    result = list(examine())
    _results[id(table), name] = table, values, result
    return result


def _is_own(value: Any) -> bool:
    """Return whether an entry, or each part of it, is torch's code or plain data."""
    return all(map(own_code.is_own, _parts(value)))


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(part for item in value for part in _parts(item)) if isinstance(value, (tuple, list)) else (value,)


def _key(key: Any) -> str:
    """Return a table's key as text without addresses."""
    return str(key) if hasattr(key, "_schema") or isinstance(key, (str, int)) else structure(key)


# ------------------------------------------------------------------------------- tables by operator


def _in_table(name: str, table: dict[Any, Any]) -> Iterator[Entry]:
    original = _original.get(name)
    if original is None:  # neither recorded nor settled: only foreign code can be told
        original = {}
    now = {_key(key): (key, value) for key, value in list(table.items())}
    for key, (target, value) in now.items():
        before = original.get(key, _ABSENT)
        if before is value or (isinstance(before, str) and before == structure(value)):
            continue
        own = _is_own(value)
        if own and before is _ABSENT and (not original or _is_added_by_torch(target, value)):
            continue
        yield Entry(f"{name}[{key}]", value, target, target, is_torchs=own)
    for key in original.keys() - now.keys():
        yield Entry(f"{name}[{key}]", None, _find(key), None)


def _is_added_by_torch(target: Any, value: Any) -> bool:
    """Return whether torch itself adds an entry after its tables were made.

    It makes operators without a lowering fallbacks when a compile meets them, decomposes operators by their own
    kernels, and registers lowerings for operators that its passes insert.
    """
    if getattr(value, "_is_fallback_handler", False):
        return True
    if not (operators.is_overload(target) or operators.is_packet(target)):
        return True
    if isinstance(value, functools.partial):
        return any(part is target for part in (*value.args, *value.keywords.values()))
    return operators.namespace_of(target) not in ("aten", "prims") and operators.is_builtin(target)


def _find(name: str) -> Any:
    """Return the operator of a name like ``aten.sin.default``, or None."""
    found: Any = torch.ops
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            return None
    return found


_ABSENT = object()
#: torch's entries by table and key: the objects themselves, or their structures.
_original: dict[str, dict[str, Any]] = {}


def are_known() -> bool:
    """Return whether torch's entries of all loaded tables are known in this process."""
    return all(name in _original for module, name, _ in _TABLES if module in sys.modules)


def as_bytes() -> bytes:
    """Return the structures of torch's entries, for `settle` in a process that could not record them."""
    tables = {
        name: {key: value if isinstance(value, str) else structure(value) for key, value in table.items()}
        for name, table in _original.items()
    }
    return msgspec.msgpack.encode(tables)


def settle(data: bytes) -> bool:
    """Take torch's entries from `as_bytes` of another process with the same torch; return whether it is sound."""
    try:
        tables = msgspec.msgpack.decode(data, type=dict[str, dict[str, str]])
    except msgspec.DecodeError:
        return False
    for name, table in tables.items():
        _original.setdefault(name, dict(table))
    return True


def digest() -> str:
    """Return the digest of the loaded tables, of torch's operators and without the entries that compiles add.

    Identifies tables whose original entries are not known. It is the same in each process with torch's own tables.
    """
    whole = hashlib.sha256()
    for module, name, _ in _TABLES:
        table = getattr(sys.modules.get(module), name, None)
        if isinstance(table, dict):
            rows = _examined(table, functools.partial(_rows, table), name="digest")
            whole.update(f"{name} {rows}\n".encode())
    return whole.hexdigest()


def _rows(table: Mapping[Any, Any]) -> list[str]:
    return sorted(
        f"{_key(key)} {structure(one)}" for key, one in list(table.items()) if not _is_added_by_torch(key, one)
    )


def structure(value: Any, deep: int = 4) -> str:
    """Describe a function or other entry by its definition, the same in every process with this torch."""
    kind = type(value)
    if kind is types.FunctionType:
        code = value.__code__
        held = [structure(one, deep - 1) for one in _cells(value)] if deep else []
        text = f"{_relative(code.co_filename)}:{code.co_firstlineno}:{code.co_name}:{value.__name__}{held}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
    if isinstance(value, functools.partial) and deep:
        parts = [value.func, *value.args, *(part for pair in sorted(value.keywords.items()) for part in pair)]
        return f"partial {[structure(part, deep - 1) for part in parts]}"
    if kind in (tuple, list) and deep:
        return repr([structure(item, deep - 1) for item in value])
    if value is None or kind in (bool, int, float, str) or hasattr(value, "_schema"):
        return repr(value) if not hasattr(value, "_schema") else str(value)
    return f"{getattr(value, '__module__', kind.__module__)}.{getattr(value, '__qualname__', kind.__qualname__)}"


def _cells(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None


def _relative(path: str) -> str:
    return os.path.relpath(path, os.path.dirname(torch.__file__)) if own_code.is_file_of_torch(path) else path


# ------------------------------------------------------------------------------------------- others


def _side_effects() -> Iterator[Entry]:
    """Yield the operators and functions that a program declared to have side effects."""
    pure: list[str] = []
    for effect in list(getattr(sys.modules.get("torch.fx.node"), "_side_effectful_functions", ())):
        if operators.is_overload(effect) or operators.is_packet(effect):
            if not operators.is_builtin(effect):
                yield Entry(f"side effect[{effect}]", "", effect)
            elif str(effect).startswith(("aten.", "prims.")):  # torch's modules add others when they are imported
                pure.append(str(effect))
        elif callable(effect) and not own_code.is_own(effect):
            yield Entry(f"side effect[{getattr(effect, '__qualname__', '')}]", "", effect)
    yield Entry("side effects of torch's operators", " ".join(sorted(pure)))


_LEAVES = (types.FunctionType, types.ModuleType, type, str, int, type(None), types.BuiltinFunctionType)

# torch's own entries by id, with references to them so that an id is not reused.
_torchs: dict[int, Any] = {}


def _patterns() -> Iterator[Entry]:
    matcher = sys.modules.get("torch._inductor.pattern_matcher")
    kind = getattr(matcher, "PatternMatcherPass", None)
    if kind is None:
        return
    seen: set[int] = set()
    for module_name, module in sorted(sys.modules.copy().items()):
        if not module_name.startswith(_PASSES):
            continue
        for attribute, value in sorted(vars(module).items()):
            if type(value) in _LEAVES:
                continue
            for place, matcher_pass in _passes_in(value, kind, f"{module_name.removeprefix(_PASSES)}.{attribute}"):
                if id(matcher_pass) not in seen:
                    seen.add(id(matcher_pass))
                    yield from _of_pass(place, matcher_pass)


def _passes_in(value: Any, kind: type, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield place, value
    elif isinstance(value, (list, tuple, dict)):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, item in items:
            if isinstance(item, (kind, list, tuple, dict)):
                yield from _passes_in(item, kind, f"{place}[{key}]")


def _of_pass(place: str, matcher_pass: Any) -> Iterator[Entry]:
    for (op, target), patterns in list(matcher_pass.patterns.items()):
        for position, entry in enumerate(patterns):
            if id(entry) in _torchs:
                continue
            code = [value for value in vars(entry).values() if callable(value) or isinstance(value, types.MethodType)]
            theirs = tuple(value for value in code if not own_code.is_own(value))
            if theirs or not own_code.is_own(entry):
                pattern = _ADDRESS.sub("", repr(entry.pattern))
                yield Entry(f"pattern {place} {op} {_ADDRESS.sub('', str(target))} {position}", (pattern, theirs))
            else:
                _torchs[id(entry)] = entry


def _of_devices() -> Iterator[Entry]:
    common = sys.modules.get(_COMMON)
    for device, scheme in list(getattr(common, "device_codegens", {}).items()):
        parts = tuple(part for part in vars(scheme).values() if part is not None)
        if not all(map(own_code.is_own, parts)):
            yield Entry(f"device_codegens[{device}]", parts)
    for device, custom in list(getattr(common, "custom_backend_passes", {}).items()):
        if custom is not None:
            uuid = custom.uuid() if callable(getattr(custom, "uuid", None)) else None
            name = f"custom_backend_passes[{device}]"
            yield Entry(name, custom) if uuid is None else Entry(name, repr(uuid), vouched=custom)
    for device, configuration in list(getattr(common, "custom_backend_codegen_configs", {}).items()):
        if configuration is not None:
            # Its values are configuration, which workers enter: see `configs`.
            names = (configuration.__name__, *sorted(configuration._config))
            yield Entry(f"custom_backend_codegen_configs[{device}]", names)


# ----------------------------------------------------------------------------------------- recording


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
        for home, name, _ in _TABLES:
            table = getattr(module, name, None)
            if home == module.__name__ and isinstance(table, dict):
                _original[name] = {_key(key): value for key, value in table.items()}
