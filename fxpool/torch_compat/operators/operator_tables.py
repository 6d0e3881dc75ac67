"""Lists Inductor's tables by operator, and records torch's entries in them when their modules are imported.

A table that was created before `watch` is told by structure: where each function was defined, and what it holds. This
is the same in every process with one torch, so another process's record serves as well (`as_bytes`, `settle`).
"""

from __future__ import annotations

import functools
import hashlib
import operator
import os
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import msgspec
import torch
from torch._functorch import config as functorch_config
from torch._library.utils import get_layout_constraint_tag

from fxpool.torch_compat.operators import code_owner, operators
from fxpool.torch_compat.patching import when_imported

__all__ = ["DECOMPOSED", "LOWERED", "TABLES", "Table", "Treatment", "are_known", "as_bytes", "default_constraint",
           "digest",
           "examined",
           "is_added_by_torch", "key_text", "original", "place_of", "settle", "structure", "version",
           "watch"]  # fmt: skip

Treatment = Literal["lowered", "decomposed"]
LOWERED: Treatment = "lowered"
DECOMPOSED: Treatment = "decomposed"


class Table(NamedTuple):
    """A table by operator. `treatment`: what an entry affects in a compile that meets the operator.

    `is_looked_up`: a compile looks there for the operator's treatment. `is_sent`: a worker replaces entries by those
    that are sent to it.
    """

    module: str
    name: str
    treatment: Treatment
    is_looked_up: bool = True
    is_sent: bool = True

    def find(self) -> dict[Any, Any] | None:
        """Return the table if its module is loaded and has it."""
        table = getattr(sys.modules.get(self.module), self.name, None)
        return table if isinstance(table, dict) else None


_LOWERING = "torch._inductor.lowering"
_DECOMPOSITION = "torch._inductor.decomposition"
CONSTRAINTS = "_maybe_layout_constraints"
TABLES = (
    Table(_LOWERING, "lowerings", LOWERED),
    Table(_LOWERING, CONSTRAINTS, LOWERED, is_looked_up=False),
    Table(_LOWERING, "user_lowerings", LOWERED, is_looked_up=False, is_sent=False),  # torch 2.12 and newer
    Table(_DECOMPOSITION, "decompositions", DECOMPOSED),
    Table(_DECOMPOSITION, "extra_random_decomps", DECOMPOSED),  # some configurations merge it into `decompositions`
)


def version() -> str:
    """Return what `as_bytes` depends on: the build of torch."""
    return f"{torch.__version__} {torch.version.git_version} {sys.version_info[:2]}"


def place_of(value: Any) -> tuple[str, str] | None:
    """Return (module, name) of an object that is one of the tables, else None."""
    if type(value) is not dict:
        return None
    return next(((table.module, table.name) for table in TABLES if table.find() is value), None)


def key_text(key: Any) -> str:
    """Return a table's key as text without addresses."""
    return str(key) if hasattr(key, "_schema") or isinstance(key, (str, int)) else structure(key)


def is_added_by_torch(table: str, target: Any, value: Any) -> bool:
    """Return whether torch itself adds an entry after its tables were made.

    It makes operators without a lowering fallbacks when a compile meets them, with a constraint on their layouts,
    decomposes operators by their own kernels, and registers lowerings for operators that its passes insert.
    """
    if table == CONSTRAINTS and _is_decided(target, value):
        return True
    if getattr(value, "_is_fallback_handler", False):
        return True
    if not (operators.is_overload(target) or operators.is_packet(target)):
        return True
    if isinstance(value, functools.partial):
        return any(part is target for part in (*value.args, *value.keywords.values()))
    return operators.namespace_of(target) not in ("aten", "prims") and operators.is_builtin(target)


def _is_decided(target: Any, constraint: Any) -> bool:
    """Return whether Inductor would decide on this constraint for a fallback that it makes now."""
    lowering: Any = sys.modules[_LOWERING]
    if not operators.is_overload(target) or not getattr(lowering.lowerings.get(target), "_is_fallback_handler", False):
        return False
    if operators.is_builtin(target) and constraint is lowering.require_contiguous:  # as in a backward
        return True
    return constraint is lowering.tag_to_layout_constraint(get_layout_constraint_tag(target, with_default=True))


def default_constraint() -> str:
    """Return the configuration that decides on constraints for the program's operators."""
    return str(functorch_config.custom_op_default_layout_constraint)


#: By id of the table and name of the result: the table, its values when it was examined, and the result.
_results: dict[tuple[int, str], tuple[Any, tuple[Any, ...], Any]] = {}


def examined(table: Mapping[Any, Any], examine: Callable[[], Any], *, name: str = "") -> Any:
    """Return a list of `examine`'s result; an earlier one under `name` if the table's entries are the same objects."""
    values = tuple(table.values())
    earlier = _results.get((id(table), name))
    if earlier is not None and len(earlier[1]) == len(values) and all(map(operator.is_, earlier[1], values)):
        return earlier[2]
    result = list(examine())
    _results[id(table), name] = table, values, result
    return result


#: torch's entries by table and key: the objects themselves, or their structures.
_original: dict[str, dict[str, Any]] = {}


def are_known() -> bool:
    """Return whether torch's entries of all loaded tables are known in this process."""
    return all(table.name in _original for table in TABLES if table.find() is not None)


def original(name: str) -> Mapping[str, Any] | None:
    """Return torch's entries of a table by key, as objects or their structures; None if they are not known."""
    return _original.get(name)


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
    for table in TABLES:
        if (entries := table.find()) is not None:
            rows = examined(entries, functools.partial(_rows, table.name, entries), name="digest")
            whole.update(f"{table.name} {rows}\n".encode())
    return whole.hexdigest()


def _rows(name: str, table: Mapping[Any, Any]) -> list[str]:
    return sorted(
        f"{key_text(key)} {structure(one)}" for key, one in list(table.items()) if not is_added_by_torch(name, key, one)
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
    return os.path.relpath(path, os.path.dirname(torch.__file__)) if code_owner.is_file_of_torch(path) else path


# ----------------------------------------------------------------------------------------- recording


_watched: set[str] = set()


def watch() -> None:
    """Record Inductor's tables as soon as they are created, unless they exist already."""
    for name in {table.module for table in TABLES} - _watched - sys.modules.keys():
        _watched.add(name)
        when_imported(name, _record)


def _record(module: types.ModuleType) -> None:
    for table in TABLES:
        if table.module == module.__name__ and (entries := table.find()) is not None:
            _original[table.name] = {key_text(key): value for key, value in entries.items()}
