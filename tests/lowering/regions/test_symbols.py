"""Symbols of equal pieces: what is known of one's is made known of the other's."""

from __future__ import annotations

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxpool.codecache.guards import guards
from fxpool.lowering.regions import symbols
from fxpool.torch_compat.dynamo import shape_env


def _sizes(env: ShapeEnv, *values: int) -> list[torch.SymInt]:
    from torch._dynamo.source import LocalSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    made = []
    for number, value in enumerate(values):
        source = LocalSource(f"size{number}")
        symbol = env.create_symbol(value, source, DimDynamic.DYNAMIC, None)
        made.append(env.create_symintnode(symbol, hint=value, source=source))
    return made


def _encoded(*values: object) -> tuple[object, symbols.Encoder]:
    encoder = symbols.Encoder()
    return [encoder.value(value) for value in values], encoder


def test_names_do_not_matter_and_their_pattern_does() -> None:
    a, b, c = _sizes(ShapeEnv(), 6, 6, 6)
    assert _encoded(a, b, a + b)[0] == _encoded(b, c, b + c)[0]
    assert _encoded(a, b, a + b)[0] != _encoded(a, b, a + a)[0]
    assert _encoded(a, b)[0] != _encoded(a, a)[0]


def test_what_is_known_is_compared() -> None:
    env = ShapeEnv()
    a, b, c = _sizes(env, 6, 6, 7)
    known = [_encoded(one)[1].facts(env) for one in (a, b, c)]
    assert known[0] == known[1] != known[2], "another value"
    assert a > 3
    assert _encoded(a)[1].facts(env) != _encoded(b)[1].facts(env), "a guard"


def test_guards_on_one_are_guards_on_the_other() -> None:
    env = ShapeEnv()
    a, b, c, d = _sizes(env, 6, 8, 6, 8)
    (first, second), (third, fourth) = _encoded(a, b)[1].own, _encoded(c, d)[1].own
    assert a < b and a % 2 == 0
    renaming = {first: third, second: fourth}
    late = symbols.renamed(
        [guards.encode(one) for one in shape_env.guards_over(env, {first.name, second.name})], renaming
    )
    assert guards.encode(sympy.Lt(third, fourth)) in late and len(late) >= 2
    assert not shape_env.guards_over(env, {third.name, fourth.name})
    assert symbols.make_known(env, renaming)
    held = shape_env.guards_over(env, {third.name, fourth.name})
    assert sympy.Lt(third, fourth) in held and len(held) >= 2
    assert not symbols.make_known(env, {first: fourth, second: third}), "it does not hold for these"
