"""`shape_env` takes symbolic shapes to a worker and its guards back: same symbols, ranges, replacements and hints."""

from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch._dynamo.source import LocalSource, TensorProperty, TensorPropertySource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from fxpool.torch_compat.dynamo import shape_env
from fxpool.torch_compat.dynamo.shape_env import Location


def fake_of(tensor: torch.Tensor, name: str = "x", env: ShapeEnv | None = None) -> Any:
    """A fake tensor of dynamic sizes."""
    mode = FakeTensorMode(shape_env=env or ShapeEnv())
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context, source=LocalSource(name))


def name_of(size: Any) -> str:
    name = shape_env.plain_symbol(size)
    assert name is not None
    return name


def test_a_copy_has_symbols_ranges_hints_and_guards() -> None:
    fake = fake_of(torch.ones(3, 5))
    env = fake.fake_mode.shape_env
    first, second = fake.shape
    torch._check(first < 100)
    assert first + second < 64
    copy = shape_env.load(shape_env.dump(env))
    names = {name_of(first): 3, name_of(second): 5}
    assert shape_env.values(copy) == shape_env.values(env) == names
    assert shape_env.symbols(copy).keys() == names.keys()
    assert shape_env.symbols(copy) == shape_env.symbols(env)  # with the assumptions that they were made with
    assert shape_env.facts(copy, names) == shape_env.facts(env, names)
    assert [guard.expr for guard in copy.guards] == [guard.expr for guard in env.guards] != []
    # It proves what the original proves, without a new guard.
    before = len(copy.guards)
    assert shape_env.make(copy, first.node.expr + second.node.expr, "int", 8) < 64
    assert len(copy.guards) == before
    # And narrows the same ranges further.
    torch._check(shape_env.make(copy, first.node.expr, "int", 3) < 50)
    ((_, lower, upper, *_),) = shape_env.facts(copy, [name_of(first)])
    assert (lower, upper) == (2, 49)


def test_hints_of_another_call_take_the_places_of_the_dumped_ones() -> None:
    fake = fake_of(torch.ones(3, 5))
    name = name_of(fake.shape[0])
    copy = shape_env.load(shape_env.dump(fake.fake_mode.shape_env), {name: 9})
    assert shape_env.values(copy) == {name: 9, name_of(fake.shape[1]): 5}
    assert shape_env.values(fake.fake_mode.shape_env)[name] == 3


def test_asserts_that_run_later_are_taken_along() -> None:
    env = ShapeEnv()
    size = env.create_unbacked_symint()
    torch._check(size >= 2)
    torch._check(size % 3 == 0)
    copy = shape_env.load(shape_env.dump(env))
    assert copy.num_deferred_runtime_asserts == env.num_deferred_runtime_asserts > 0
    told = {symbol: [one.expr for one in listed] for symbol, listed in env.deferred_runtime_asserts.items()}
    assert {s: [one.expr for one in listed] for s, listed in copy.deferred_runtime_asserts.items()} == told
    ((name, lower, *_),) = shape_env.facts(copy, [str(size.node.expr)])
    assert (name, lower) == (str(size.node.expr), 2)


def test_hints_are_the_sizes_of_this_call() -> None:
    env = fake_of(torch.ones(3)).fake_mode.shape_env
    assert list(shape_env.values(env).values()) == [3]


def test_facts_for_a_key_have_no_hints() -> None:
    fake = fake_of(torch.ones(3, 5))
    env = fake.fake_mode.shape_env
    torch._check(fake.shape[0] <= 10)
    torch._check(fake.shape[1] == fake.shape[0] + 2)
    first, second = map(str, (shape_env.symbol_of(size) for size in fake.shape))
    rows = {row[0]: row[1:] for row in shape_env.facts(env, [second, first, "unknown"])}
    lower, upper, size_like, override, replacement = rows[first]
    assert (lower, upper, size_like, override, replacement) == (2, 10, False, None, None)
    # One is replaced by an expression over the other, whichever torch chose.
    replaced = [row[4] for row in rows.values() if row[4] is not None]
    assert len(replaced) <= 1 and all(isinstance(one, sympy.Basic) for one in replaced)
    bigger = fake_of(torch.ones(4, 6))
    torch._check(bigger.shape[0] <= 10)
    torch._check(bigger.shape[1] == bigger.shape[0] + 2)
    assert shape_env.facts(bigger.fake_mode.shape_env, [first, second]) == shape_env.facts(env, [first, second])


def test_a_replacement_is_a_fact() -> None:
    fake = fake_of(torch.ones(3, 3), "x")
    env = fake.fake_mode.shape_env
    first, second = (shape_env.symbol_of(size) for size in fake.shape)
    if first == second:  # torch takes equal sizes for one symbol where it may
        pytest.skip("equal sizes have one symbol here")
    torch._check(fake.shape[0] == fake.shape[1])
    replacements = [row[5] for row in shape_env.facts(env, [str(first), str(second)])]
    assert sorted(map(str, filter(None, replacements))) in ([str(first)], [str(second)])
    assert shape_env.expression_of(fake.shape[0]) == shape_env.expression_of(fake.shape[1])


def test_guards_over_the_inputs_come_back_and_hold_or_not() -> None:
    fake = fake_of(torch.ones(3, 5))
    first, second = fake.shape
    env = fake.fake_mode.shape_env
    name = name_of(first)
    assert first < 10
    assert first < 10  # again: no second guard
    assert first + 1 < second
    guards = shape_env.guards_over(env, {name})
    assert len(guards) == 1 and {str(one) for one in guards[0].free_symbols} == {name}
    assert len(shape_env.guards_over(env, {name, name_of(second)})) == 2
    assert shape_env.guards_over(env, set()) == []
    other = fake_of(torch.ones(4, 5)).fake_mode.shape_env
    assert shape_env.add_guard(other, guards[0]) is True
    assert [guard.expr for guard in other.guards] == guards
    assert shape_env.add_guard(fake_of(torch.ones(11, 5)).fake_mode.shape_env, guards[0]) is False


def test_each_symbol_is_read_from_a_place_in_the_arguments() -> None:
    env = ShapeEnv()
    source = LocalSource("n")
    number = env.create_symintnode(env.create_symbol(7, source, dynamic_dim=DimDynamic.DYNAMIC), hint=7, source=source)
    mode = FakeTensorMode(shape_env=env)
    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] * 2, dynamic_strides=[DimDynamic.DYNAMIC, DimDynamic.INFER_STRIDE]
    )
    real = torch.empty_strided((3, 4), (11, 1))
    fake = mode.from_tensor(real, symbolic_context=context, source=LocalSource("x"))
    places = shape_env.places([number, fake])
    arguments = [7, real]
    assert places[name_of(number)] == Location(0, "value")
    assert {name: place.value_in(arguments) for name, place in places.items()} == shape_env.values(env)
    assert sorted({place.kind for place in places.values()} - {"storage_offset"}) == ["size", "stride", "value"]


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (Location(0, "size", 1), 3),
        (Location(0, "stride", 0), 4),
        (Location(0, "storage_offset"), 5),
        (Location(1, "item"), 8),
    ],
)
def test_a_place_has_a_call_s_value(place: Location, value: int) -> None:
    assert place.value_in([torch.empty(40).as_strided((2, 3), (4, 1), 5), torch.tensor(8)]) == value


def test_symbols_in_values() -> None:
    fake = fake_of(torch.ones(3, 5))
    first, second = map(name_of, fake.shape)
    total = fake.shape[0] + 1
    assert shape_env.symbols_in(fake) == {first, second}
    assert shape_env.symbols_in([total, (1, "x")]) == {first}
    assert shape_env.plain_symbols_in([total]) == set() and shape_env.plain_symbols_in(fake) == {first, second}
    assert shape_env.plain_symbol(total) is None and shape_env.plain_symbol(3) is None
    assert shape_env.symbols_in(torch.ones(2)) == set()
    assert not shape_env.has_unbacked(fake)
    assert shape_env.has_unbacked([fake.fake_mode.shape_env.create_unbacked_symint()])


def test_a_ragged_size_gets_a_number_in_a_worker() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert shape_env.is_nested_int(jagged.shape[1]) and not shape_env.is_nested_int(jagged.shape[0])
    env = ShapeEnv()
    source = TensorPropertySource(LocalSource("x"), TensorProperty.SIZE, 1)
    symbol = env.create_symbol(jagged.shape[1], source, dynamic_dim=DimDynamic.DYNAMIC)
    assert shape_env.values(env) == {}  # it equals itself only
    assert list(shape_env.symbols(env)) == [symbol.name]
    assert shape_env.values(shape_env.load(shape_env.dump(env))) == {symbol.name: 5}


@pytest.mark.parametrize(
    ("kind", "hint", "cls"), [("int", 6, torch.SymInt), ("float", 6.0, torch.SymFloat), ("bool", True, torch.SymBool)]
)
def test_a_symbolic_number_is_made_of_an_expression(kind: str, hint: Any, cls: type) -> None:
    fake = fake_of(torch.ones(3))
    symbol = shape_env.symbol_of(fake.shape[0])
    expr: Any = {"int": symbol * 2, "float": symbol * 2, "bool": sympy.Lt(symbol, 4)}[kind]
    made: Any = shape_env.make(fake.fake_mode.shape_env, expr, kind, hint)
    assert made.node.expr == expr and made.node.hint == hint
    assert type(made) is cls
    assert shape_env.symbols_in(made) == {symbol.name}


def test_a_record_for_a_solver_is_found() -> None:
    assert shape_env.translation_validation(None) is False
    assert shape_env.translation_validation(ShapeEnv()) is False
    recording = ShapeEnv()
    recording._translation_validation_enabled = True
    assert shape_env.translation_validation(recording) is True
