"""Matches symbols of two pieces that differ in name only.

With ``dynamic=True`` each block's numbers are inputs of the graph, each with a separate symbol (`zf12` is the epsilon
of one normalization, `zf40` that of the next). To compare two pieces, symbols are renamed in order of appearance; the
facts that the graph has about each (range, replacement, value in this call, guards) are compared as well. Guards that
one compile adds for its piece's symbols are then translated to the other piece's symbols. They hold there, because the
values are the same in this call, and Dynamo checks them for each piece in later calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from fxpool.codecache.graph import graph_codec
from fxpool.codecache.guards import guards
from fxpool.errors import CannotTravelError
from fxpool.torch_compat.dynamo import shape_env
from fxpool.torch_compat.dynamo.shape_env import ShapeEnv

__all__ = ["Encoder", "OwnSymbols", "Renaming", "make_known", "renamed"]

#: The symbols of a piece in the order in which they appear in it.
OwnSymbols = tuple[sympy.Symbol, ...]

#: Maps the symbols of one piece to those of another.
Renaming = dict[sympy.Symbol, sympy.Symbol]


class Encoder(graph_codec.GraphEncoder):
    """Encodes a graph with its symbols renamed in order of appearance; `own` maps them to these names."""

    def __init__(self) -> None:
        super().__init__()
        self.own: Renaming = {}

    def expression(self, expr: sympy.Basic) -> sympy.Basic:
        # Symbols that appear at once are ordered by name. Pieces in which this order differs count as different.
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self.own:
                self.own[symbol] = sympy.Symbol(f"own{len(self.own)}", **symbol.assumptions0)
        return expr.xreplace(self.own)

    def facts(self, env: ShapeEnv | None) -> list[Any]:
        """Return the facts of `env` about the symbols so far, for a comparison. Raises CannotTravelError."""
        if env is None or not self.own:
            return []
        called = {symbol.name: own.name for symbol, own in self.own.items()}
        values = shape_env.values(env)
        rows: list[Any] = []
        for name, lower, upper, size_like, override, replacement in shape_env.facts(env, called):
            value = repr(values.get(name))
            rows.append([called[name], str(lower), str(upper), size_like, override, self._text(replacement), value])
        held = [self._text(guard) for guard in shape_env.guards_over(env, set(called))]
        return [sorted(rows, key=lambda row: int(row[0].removeprefix("own"))), sorted(held)]

    def _text(self, expr: sympy.Basic | None) -> str:
        """Return an expression as text, with this piece's names for its symbols; other symbols keep their names."""
        if expr is None:
            return ""
        try:
            return repr(guards.encode(expr.xreplace(self.own)))
        except guards.UnknownGuardError as error:
            raise CannotTravelError("symbolic_expression", str(error)) from error


def make_known(env: ShapeEnv, renaming: Renaming) -> bool:
    """Add the guards of `env` on one piece's symbols for another's. Return False if they do not hold for these."""
    about = shape_env.guards_over(env, {symbol.name for symbol in renaming})
    return all(shape_env.add_guard(env, guard.xreplace(renaming)) for guard in about)


def renamed(encoded: Sequence[Any], renaming: Renaming) -> list[Any]:
    """Rename the symbols of encoded guards from one piece's to another's. Raises UnknownGuardError."""
    by_name = {symbol.name: symbol for symbol in renaming}
    return [guards.encode(guards.decode(guard, by_name).xreplace(renaming)) for guard in encoded]
