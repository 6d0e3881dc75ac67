"""Symbolic shapes as data: the state of the parent's ShapeEnv for a worker, and the worker's guards for the parent.

A worker compiles with symbols of the same names, ranges, replacements and hints as the parent, so that its proofs and
guards mean the same there. The state is sent as a pickle of plain attributes (`dump`, `load`). The part that belongs in
a key is `facts`; it leaves hints out, because guards on them are checked when an entry is looked up. Guards come back
as sympy expressions over the symbols of the inputs (`guards_over`), and `add_guard` adds them to the parent's ShapeEnv.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv  # re-exported
from torch.utils._sympy.singleton_int import SingletonInt

from fxpool.torch_compat.dynamo import tensors

_RAGGED = 5  # the value of a ragged size in a worker

# Attributes that affect the proofs of a ShapeEnv. Those that a release lacks are skipped. Stacks, logs, caches and the
# attributes of translation validation are left out.
_STATE = (
    "settings",
    "axioms",
    "unique_ids",
    "backed_var_to_val",
    "unbacked_var_to_val",
    "real_tensor_prop_unbacked_vals",
    "var_to_range",
    "var_to_sources",
    "unbacked_inputs",
    "var_to_hint_override",
    "source_to_var",
    "source_to_symbol",
    "name_to_symbol",  # since 2.15: torch parses symbolic strides with it
    "replacements",
    "unbacked_renamings",
    "divisible",
    "exclusion_constraints",
    "size_like",
    "val_to_var",
    "unbacked_symfloat_counter",
    "unbacked_symint_counter",
    "counter",
    "unbacked_alloc_order",
    "pending_fresh_unbacked_symbols",
    "ignorable_fresh_unbacked_symbols",
    "allow_complex_guards_as_runtime_asserts",
    "prefer_deferred_runtime_asserts_over_guards",
    "co_fields",
)


def dump(env: ShapeEnv) -> bytes:
    """Return the state of `env` as bytes.

    Raises:
        Exception: any error of pickle, for a source that cannot be pickled.
    """
    state = {name: env.__dict__[name] for name in _STATE if name in env.__dict__}
    hints = _hints(env)
    if any(isinstance(value, SingletonInt) for value in hints.values()):
        # The ragged size of a jagged tensor equals itself only; a worker needs a number to compile with.
        state["backed_var_to_val"] = {
            symbol: sympy.Integer(_RAGGED) if isinstance(value, SingletonInt) else value
            for symbol, value in hints.items()
        }
    # The stacks of guards and asserts point into the user's program; a worker cannot use them.
    guards = [(g.expr, g.size_oblivious) for g in env.guards]
    asserts = {symbol: [(a.expr, a.msg) for a in listed] for symbol, listed in env.deferred_runtime_asserts.items()}
    return pickle.dumps((state, guards, asserts))


def load(data: bytes, hints: Mapping[str, int | float | bool] | None = None) -> ShapeEnv:
    """Return a new ShapeEnv in the state of `dump`; `hints` replace the symbols' values of the dumped call."""
    from torch._guards import ShapeGuard, SLoc
    from torch.fx.experimental.symbolic_shapes import RuntimeAssert
    from torch.utils._traceback import CapturedTraceback

    state, guards, asserts = pickle.loads(data)
    env = ShapeEnv()
    for name, value in state.items():
        setattr(env, name, value)
    table = _hints(env)
    for symbol in table:
        if hints and symbol.name in hints:
            table[symbol] = type(table[symbol])(hints[symbol.name])
    nowhere = SLoc("fxpool request", None)
    env.guards = [ShapeGuard(expr, nowhere, size_oblivious=oblivious) for expr, oblivious in guards]
    stack = CapturedTraceback.extract(skip=1)
    env.deferred_runtime_asserts = {
        symbol: [RuntimeAssert(expr, msg, stack) for expr, msg in listed] for symbol, listed in asserts.items()
    }
    env.num_deferred_runtime_asserts = sum(map(len, asserts.values()))
    for symbol in state.get("var_to_range", {}):
        env.var_to_range_sloc[symbol] = _no_range_location(nowhere)
    env._update_version_counter()
    return env


def _no_range_location(nowhere: Any) -> Any:
    from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc

    return ValueRangesSLoc(nowhere, nowhere)


def values(env: ShapeEnv) -> dict[str, int | float | bool]:
    """Return the value of each backed symbol in this call, by name, except for ragged sizes of jagged tensors."""
    return {name.name: _number(value) for name, value in _hints(env).items() if not isinstance(value, SingletonInt)}


def _hints(env: ShapeEnv) -> dict[sympy.Symbol, Any]:
    table: dict[sympy.Symbol, Any] = env.backed_var_to_val
    return table


def _number(value: Any) -> int | float | bool:
    if isinstance(value, (bool, int, float)):
        return value
    return int(value) if getattr(value, "is_integer", False) else float(value)


@dataclass(frozen=True)
class Location:
    """A place in a call's arguments that shows a symbol's value: an argument, its `kind` of value, and an index."""

    position: int
    kind: str
    index: int = 0

    def value_in(self, args: Sequence[Any]) -> Any:
        """Return the value that a call's arguments have at this place."""
        value = args[self.position]
        if self.kind == "value":
            return value
        if self.kind == "storage_offset":
            return value.storage_offset()
        if self.kind == "item":
            return value.item()
        return value.shape[self.index] if self.kind == "size" else value.stride(self.index)


def places(fakes: Sequence[Any]) -> dict[str, Location]:
    """Return, by symbol name, the place in a call's arguments to read its value; `fakes` are their fake twins."""
    place_by_name: dict[str, Location] = {}

    def note(value: Any, location: Location) -> None:
        if isinstance(value, (torch.SymInt, torch.SymFloat)) and isinstance(value.node.expr, sympy.Symbol):
            place_by_name.setdefault(value.node.expr.name, location)

    for position, fake in enumerate(fakes):
        note(fake, Location(position, "value"))
        if isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
            for index, size in enumerate(fake.shape):
                note(size, Location(position, "size", index))
            for index, stride in enumerate(fake.stride()):
                note(stride, Location(position, "stride", index))
            note(fake.storage_offset(), Location(position, "storage_offset"))
            note(tensors.item_of(fake), Location(position, "item"))
    return place_by_name


def symbols(env: ShapeEnv) -> dict[str, sympy.Symbol]:
    """Return every symbol that `env` knows, by name, with the assumptions it was made with."""
    return {symbol.name: symbol for symbol in (*_hints(env), *env.var_to_range)}  # ragged sizes have no range


def facts(env: ShapeEnv, names: Iterable[str]) -> list[list[Any]]:
    """Return the facts about the named symbols, for a key: ranges, replacements, hint overrides; no hints.

    Each row is ``[name, lower, upper, size_like, hint override, replacement]``, the bounds and the
    replacement as sympy expressions.
    """
    known = symbols(env)
    overrides = {s.name: v for s, v in env.__dict__.get("var_to_hint_override", {}).items() if isinstance(v, int)}
    rows: list[list[Any]] = []
    for name in sorted(names):
        symbol = known.get(name)
        if symbol is None or symbol not in env.var_to_range:
            continue
        bounds = env.var_to_range[symbol]
        replacement = env.replacements.get(symbol)
        rows.append([name, bounds.lower, bounds.upper, symbol in env.size_like, overrides.get(name), replacement])
    return rows


def guards_over(env: ShapeEnv, names: set[str]) -> list[sympy.Basic]:
    """Return guards of `env` that involve only the named symbols, in order and without duplicates."""
    seen: dict[sympy.Basic, None] = {}
    for guard in env.guards:
        free = {symbol.name for symbol in guard.expr.free_symbols}
        if free and free <= names:
            seen.setdefault(guard.expr)
    return list(seen)


def add_guard(env: ShapeEnv, expr: sympy.Basic) -> bool:
    """Evaluate `expr` on this call's sizes and keep it as a guard. Return False if it does not hold."""
    return bool(env.evaluate_expr(expr))


def expression_of(value: Any) -> sympy.Basic:
    """Return the sympy expression of a SymInt, SymFloat or SymBool, with replacements applied."""
    return value.node.expr


def symbol_of(value: Any) -> sympy.Basic:
    """Return the original expression of a SymInt, SymFloat or SymBool, without replacements."""
    return value.node._expr


def plain_symbol(value: Any) -> str | None:
    """Return the name of the symbol if a value is a plain symbol; None for a number, or an expression."""
    expr = expression_of(value) if isinstance(value, torch.SymInt) else None
    return expr.name if isinstance(expr, sympy.Symbol) else None


def symbols_in(value: Any) -> set[str]:
    """Return the names of the symbols in a node's value: a symbolic number, a tensor's sizes, or a sequence of them."""
    return {name for expr in _expressions(value) for name in _names(expr)}


def plain_symbols_in(value: Any) -> set[str]:
    """Return the names of the symbols that appear in a value on their own: as a size, a stride or the value itself."""
    return {expr.name for expr in _expressions(value) if isinstance(expr, sympy.Symbol)}


def has_unbacked(value: Any) -> bool:
    """Return whether a size of a value is known only when the graph runs."""
    return any(symbolic_shapes.free_unbacked_symbols(expr) for expr in _expressions(value))


def _names(expr: sympy.Basic) -> Iterator[str]:
    for symbol in expr.free_symbols:
        yield str(symbol)


def _expressions(value: Any) -> Iterator[sympy.Basic]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _expressions(part)
    elif isinstance(value, torch.Tensor):
        yield from _expressions(tuple(value.shape))
        if value.layout is torch.strided:
            yield from _expressions((*value.stride(), value.storage_offset(), tensors.item_of(value)))
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield expression_of(value)


def is_nested_int(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and bool(value.node.is_nested_int())


def make(env: ShapeEnv, expr: sympy.Basic, kind: str, hint: int | float | bool | None) -> Any:
    """Make a SymInt, SymFloat or SymBool (`kind` is ``"int"``, ``"float"`` or ``"bool"``) of `env`."""
    if kind == "int":
        return env.create_symintnode(expr, hint=hint)
    if kind == "float":
        return env.create_symfloatnode(expr, hint=hint)
    return env.create_symboolnode(expr)


def translation_validation(env: ShapeEnv | None) -> bool:
    """Return whether the ShapeEnv records itself for a solver; such a record cannot be sent."""
    return bool(env is not None and env._translation_validation_enabled)
