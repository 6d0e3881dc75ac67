"""Finds a program's entries in Inductor's tables: lowerings, decompositions, layout constraints, patterns, devices.

Each entry of a table by operator is compared with the one that torch made (`operator_tables`); other tables are read
for code that is not torch's. A table is read only if its module is loaded, which ordinary programs with fxpool never
do.

An entry for an operator affects only compiles that meet the operator, so it names the operator.
"""

from __future__ import annotations

import functools
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fxpool.torch_compat.operators import code_owner, operator_tables, operators, pickled_definitions
from fxpool.torch_compat.operators.operator_overrides import OperatorOverride
from fxpool.torch_compat.operators.operator_tables import DECOMPOSED, LOWERED, TABLES, key_text, structure

__all__ = ["Entry", "Pattern", "entries", "for_a_worker", "of_operator", "pattern_parts", "places"]

_COMMON = "torch._inductor.codegen.common"
_PASSES = "torch._inductor.fx_passes."
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

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


def places() -> dict[str, set[str]]:
    """Return the names of the examined containers by module."""
    names: dict[str, set[str]] = {
        "torch._decomp": {"global_decomposition_table", "decomposition_table", "meta_table",
                          "pre_autograd_decomposition_table"},
        "torch.fx.node": {"_side_effectful_functions"},
        "torch._inductor.pattern_matcher": {"_known_precompiled_patterns", "_seen_patterns"},
        _COMMON: {"device_codegens", "custom_backend_passes", "custom_backend_codegen_configs"},
    }  # fmt: skip
    for module, name in (*_OTHERS, *((table.module, table.name) for table in TABLES)):
        names.setdefault(module, set()).add(name)
    return names


def entries() -> Iterator[Entry]:
    """Yield the entries that are not as torch made them; of unknown tables those that are not torch's."""
    for place in TABLES:
        if (table := place.find()) is not None:
            known = operator_tables.original(place.name) is not None
            state = f"changes {known} {operator_tables.default_constraint()}"
            yield from operator_tables.examined(table, functools.partial(_in_table, place.name, table), name=state)
    others = {name: getattr(sys.modules.get(module), name, None) for module, name in _OTHERS}
    registries = getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {})
    for name, table in (others | {f"decompositions {name}": table for name, table in registries.items()}).items():
        if isinstance(table, list):
            pairs = [("", value) for value in table if not _is_own(value)]
        else:
            pairs = _foreign(table) if isinstance(table, dict) else []
        for key, value in pairs:
            if not isinstance(key, type) or code_owner.is_own(key):  # else: for objects of the program's classes
                yield Entry(f"{name}[{key_text(key)}]", _parts(value), key if hasattr(key, "namespace") else None)
    yield from _side_effects()
    yield from _patterns()
    yield from _of_devices()


def of_operator(name: str) -> list[OperatorOverride]:
    """Return how the operator of an entry is treated, by the entry's name; [] if the entry affects other compiles too.

    A lowering that calls the operator instead of lowering it ends its decomposition as well.
    """
    table, _, rest = name.partition("[")
    treatment = next((one.treatment for one in TABLES if one.name == table), None)
    if treatment is None:
        return []
    treatments = (LOWERED, DECOMPOSED) if table == "lowerings" else (treatment,)
    return [OperatorOverride(treatment, rest[:-1], name) for treatment in treatments]


def for_a_worker(wanted: Callable[[Entry], bool]) -> list[bytes]:
    """Return the program's functions in tables by operator, for `pickled_definitions.settle_registrations`."""
    sent = {table.name: table.module for table in TABLES if table.is_sent}
    chosen = (
        (sent[table], table, entry.key, entry.value)
        for entry in entries()
        if (table := entry.name.partition("[")[0]) in sent
        and callable(entry.value)
        and not entry.is_torchs
        and wanted(entry)
    )
    return pickled_definitions.registrations_as_bytes(chosen)


def _foreign(table: Mapping[Any, Any]) -> list[tuple[Any, Any]]:
    """Return the entries with code that is not torch's."""
    found: list[tuple[Any, Any]] = operator_tables.examined(
        table, lambda: [pair for pair in list(table.items()) if not _is_own(pair[1])]
    )
    return found


def _is_own(value: Any) -> bool:
    """Return whether an entry, or each part of it, is torch's code or plain data."""
    return all(map(code_owner.is_own, _parts(value)))


def _parts(value: Any) -> tuple[Any, ...]:
    return tuple(part for item in value for part in _parts(item)) if isinstance(value, (tuple, list)) else (value,)


# ------------------------------------------------------------------------------- tables by operator


def _in_table(name: str, table: dict[Any, Any]) -> Iterator[Entry]:
    original = operator_tables.original(name)
    if original is None:  # neither recorded nor settled: only foreign code can be told
        original = {}
    now = {key_text(key): (key, value) for key, value in list(table.items())}
    for key, (target, value) in now.items():
        before = original.get(key, _ABSENT)
        if before is value or (isinstance(before, str) and before == structure(value)):
            continue
        own = _is_own(value)
        if own and before is _ABSENT and (not original or operator_tables.is_added_by_torch(name, target, value)):
            continue
        yield Entry(f"{name}[{key}]", value, target, target, is_torchs=own)
    for key in original.keys() - now.keys():
        yield Entry(f"{name}[{key}]", None, _find(key), None)


_ABSENT = object()


def _find(name: str) -> Any:
    """Return the operator of a name like ``aten.sin.default``, or None."""
    found: Any = torch.ops
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except (AttributeError, RuntimeError):
            return None
    return found


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
        elif callable(effect) and not code_owner.is_own(effect):
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
            for path, matcher_pass in _passes_in(value, kind, f"{module_name.removeprefix(_PASSES)}.{attribute}"):
                if id(matcher_pass) not in seen:
                    seen.add(id(matcher_pass))
                    yield from _of_pass(path, matcher_pass)


def _passes_in(value: Any, kind: type, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kind):
        yield path, value
    elif isinstance(value, (list, tuple, dict)):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, item in items:
            if isinstance(item, (kind, list, tuple, dict)):
                yield from _passes_in(item, kind, f"{path}[{key}]")


def _of_pass(path: str, matcher_pass: Any) -> Iterator[Entry]:
    for (op, target), patterns in list(matcher_pass.patterns.items()):
        for position, entry in enumerate(patterns):
            if id(entry) in _torchs:
                continue
            code = [value for value in vars(entry).values() if callable(value) or isinstance(value, types.MethodType)]
            theirs = tuple(value for value in code if not code_owner.is_own(value))
            foreign = _foreign_classes(entry.pattern)
            if theirs or foreign or not code_owner.is_own(entry):
                name = f"pattern {path} {op} {_ADDRESS.sub('', str(target))} {position}"
                yield Entry(name, (_pattern_text(entry.pattern), theirs, *foreign))
            else:
                _torchs[id(entry)] = entry


class Pattern(NamedTuple):
    """A pattern as text, and the classes and functions in it that are not torch's."""

    text: str
    foreign: list[Any]


def pattern_parts(value: Any) -> Pattern | None:
    """Return the parts of a pattern of Inductor's; None for other values."""
    expression = getattr(sys.modules.get("torch._inductor.pattern_matcher"), "PatternExpr", None)
    if expression is None or not isinstance(value, expression):
        return None
    return Pattern(_pattern_text(value), _foreign_classes(value))


def _pattern_text(pattern: Any) -> str:
    return _ADDRESS.sub("", repr(pattern))


def _foreign_classes(pattern: Any) -> list[Any]:
    """Return the classes in a pattern, and the functions that its parts hold, which are not torch's."""
    found: list[Any] = []
    waiting, seen = [pattern], {id(pattern)}
    while waiting:
        part = waiting.pop()
        if isinstance(part, (list, tuple, set, frozenset, dict)):
            inner = [*part.values()] if isinstance(part, dict) else [*part]
        elif type(part) is types.FunctionType or isinstance(part, type):
            inner, found = [], found if code_owner.is_own(part) else [*found, part]
        elif isinstance(getattr(part, "__dict__", None), dict) and hasattr(type(part), "_match"):
            inner = [type(part), *vars(part).values()]
        else:
            inner = []
        waiting += [one for one in inner if id(one) not in seen]
        seen |= {id(one) for one in inner}
    return found


def _of_devices() -> Iterator[Entry]:
    common = sys.modules.get(_COMMON)
    for device, scheme in list(getattr(common, "device_codegens", {}).items()):
        parts = tuple(part for part in vars(scheme).values() if part is not None)
        if not all(map(code_owner.is_own, parts)):
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
