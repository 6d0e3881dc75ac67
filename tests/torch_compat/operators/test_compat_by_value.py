"""`pickled_definitions` sends operators and registrations that no import makes, and they work as in the sender."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import pickled_definitions
from fxpool.torch_compat.operators.pickled_definitions import NotBroughtError

NAMESPACE = "compat_by_value"


def of_this_module(x: torch.Tensor) -> torch.Tensor:
    return x * 3


def made(name: str, factor: float = 3.0) -> Any:
    """An operator of functions that have no name, so that they travel by code."""

    @torch.library.custom_op(f"{NAMESPACE}::{name}", mutates_args=(), tags=(torch.Tag.pointwise,))
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(x)

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * factor

    scaled.register_autograd(backward, setup_context=setup_context)
    scaled.register_autocast("cpu", torch.bfloat16)
    return scaled


def test_an_operator_arrives_and_computes_as_before() -> None:
    sent = made("arrives")
    data = pickled_definitions.operator_as_bytes(sent._opoverload)
    assert data is not None
    # Another one of that name is in its place by now.
    made("arrives", factor=100.0)
    operator = getattr(torch.ops, NAMESPACE).arrives.default
    assert torch.equal(operator(torch.ones(2)), torch.full((2,), 100.0))
    pickled_definitions.bring_operator(data)
    operator = getattr(torch.ops, NAMESPACE).arrives.default
    x = torch.ones(2, requires_grad=True)
    y = operator(x)
    assert torch.equal(y, torch.full((2,), 3.0))
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((2,), 3.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert operator(torch.ones(2)).dtype is torch.bfloat16
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert operator(torch.ones(5, 2)).shape == (5, 2)
    assert torch.Tag.pointwise in operator.tags


def test_what_arrives_can_be_sent_on() -> None:
    data = pickled_definitions.operator_as_bytes(made("sent_on")._opoverload)
    assert data is not None
    pickled_definitions.bring_operator(data)
    again = pickled_definitions.operator_as_bytes(getattr(torch.ops, NAMESPACE).sent_on.default)
    assert again is not None
    first, second = pickle.loads(data), pickle.loads(again)
    for name in ("namespace", "name", "schema", "tags", "tags_in_tuple", "autocast", "disabled", "flags"):
        assert getattr(first, name) == getattr(second, name), name
    for name in ("function", "fake", "setup_context", "backward"):
        assert getattr(first, name).__code__ == getattr(second, name).__code__, name
    assert first.kernels.keys() == second.kernels.keys()
    assert first.autocast == {"cpu": torch.bfloat16}


def test_bringing_it_twice_defines_it_once() -> None:
    data = pickled_definitions.operator_as_bytes(made("twice")._opoverload)
    assert data is not None
    pickled_definitions.bring_operator(data)
    from torch._library.custom_ops import OPDEFS

    brought = OPDEFS[f"{NAMESPACE}::twice"]
    pickled_definitions.bring_operator(data)
    assert OPDEFS[f"{NAMESPACE}::twice"] is brought


def test_an_operator_without_a_definition_stays() -> None:
    assert pickled_definitions.operator_as_bytes(torch.ops.aten.sin.default) is None
    assert pickled_definitions.operator_as_bytes(torch.ops.aten.sin) is None


def test_an_operator_of_a_large_closure_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = made("large")._opoverload
    monkeypatch.setattr(pickled_definitions, "LIMIT", 100)
    assert pickled_definitions.operator_as_bytes(operator) is None


def test_bytes_of_another_kind_are_refused() -> None:
    with pytest.raises(NotBroughtError, match="code from another process"):
        pickled_definitions.bring_operator(b"nothing")


def test_an_operator_that_can_t_be_defined_is_named() -> None:
    data = pickled_definitions.operator_as_bytes(made("undefinable")._opoverload)
    assert data is not None
    broken = pickle.loads(data)._replace(name="broken", schema="no schema")
    by_value_bytes = pickled_definitions._dumped(broken)
    assert by_value_bytes is not None
    with pytest.raises(NotBroughtError, match=f"the operator {NAMESPACE}::broken"):
        pickled_definitions.bring_operator(by_value_bytes)


def test_operators_of_modules_are_made_by_their_import() -> None:
    imported: Any = torch.library.custom_op(f"{NAMESPACE}::imported", of_this_module, mutates_args=())
    assert pickled_definitions.is_made_by_import(imported._opoverload)
    assert pickled_definitions.is_made_by_import(torch.ops.aten.sin.default)
    assert not pickled_definitions.is_made_by_import(made("not_imported")._opoverload)


# --- registrations


@pytest.fixture
def lowerings() -> Iterator[dict[Any, Any]]:
    import torch._inductor.lowering as lowering

    table: dict[Any, Any] = lowering.lowerings
    before = dict(table)
    yield table
    pickled_definitions.settle_registrations([])
    table.clear()
    table.update(before)


def entry(key: Any, factor: int) -> tuple[str, str, Any, Any]:
    return "torch._inductor.lowering", "lowerings", key, lambda x: x * factor


def test_entries_of_inductor_s_tables_are_put_in_and_taken_out(lowerings: dict[Any, Any]) -> None:
    sin, cos = torch.ops.aten.sin.default, torch.ops.aten.cos.default
    before = lowerings[sin]
    first = pickled_definitions.registrations_as_bytes([entry(sin, 2), entry(cos, 5)])
    second = pickled_definitions.registrations_as_bytes([entry(sin, 3)])
    assert len(first) == 2 and len(second) == 1
    pickled_definitions.settle_registrations(first)
    assert (lowerings[sin](7), lowerings[cos](7)) == (14, 35)
    pickled_definitions.settle_registrations(second)
    assert lowerings[sin](7) == 21 and lowerings[cos] is not None
    pickled_definitions.settle_registrations([])
    assert lowerings[sin] is before


def test_an_entry_for_an_operator_that_is_not_there_is_left_out(lowerings: dict[Any, Any]) -> None:
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define("temporary(Tensor x) -> Tensor")
    data = pickled_definitions.registrations_as_bytes([entry(getattr(torch.ops, NAMESPACE).temporary.default, 2)])
    library._destroy()
    before = dict(lowerings)
    pickled_definitions.settle_registrations(data)
    assert lowerings.keys() - before.keys() <= {key for key in lowerings if NAMESPACE in str(key)}
    pickled_definitions.settle_registrations([])
    assert lowerings == before


def test_operators_in_code_travel_by_name() -> None:
    data = pickled_definitions._dumped([torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.ops])
    assert data is not None and len(data) < 1000
    loaded = pickled_definitions._loaded(data)
    assert [
        a is b for a, b in zip(loaded, (torch.ops.aten.add.Tensor, torch.ops.aten.add, torch.ops), strict=True)
    ] == [True] * 3
