"""`attention` notes which implementation of attention torch chooses on a device, for a worker that has none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from fxpool.torch_compat.cuda import attention, device_guard
from fxpool.torch_compat.cuda.attention import FUNCTION


def call_of(*values: Any, **kwargs: Any) -> torch.fx.Node:
    """A call of attention in a graph of Dynamo's, with these inputs."""
    graph = torch.fx.Graph()
    nodes = []
    for number, value in enumerate(values):
        node = graph.placeholder(f"x{number}")
        node.meta["example_value"] = value
        nodes.append(node)
    return graph.call_function(FUNCTION, tuple(nodes), kwargs)


def test_dynamo_puts_this_function_into_graphs() -> None:
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.extend(node.target for node in gm.graph.nodes if node.op == "call_function")
        return gm.forward

    torch._dynamo.reset()
    q = torch.ones(1, 1, 4, 8)
    torch.compile(torch.nn.functional.scaled_dot_product_attention, backend=backend)(q, q, q)
    torch._dynamo.reset()
    assert seen == [FUNCTION]


def test_functions_that_change_the_choice_are_known() -> None:
    from torch.nn.attention import _sdpa_kernel_variadic

    assert attention.changes_switches(_sdpa_kernel_variadic)
    assert attention.changes_switches(torch.nn.attention._sdpa_kernel)
    assert attention.changes_switches(torch.amp.autocast_mode._enter_autocast)
    assert not attention.changes_switches(FUNCTION)


def test_a_call_on_the_cpu_is_left_alone() -> None:
    mode = FakeTensorMode()
    q = mode.from_tensor(torch.ones(1, 1, 4, 8))
    call = call_of(q, q, q)
    assert not attention.is_on_cuda(call)
    assert attention.implementation(call, {}) is None


def test_a_call_of_unknown_inputs_may_be_on_a_device() -> None:
    call = call_of(None, None, None)
    assert attention.is_on_cuda(call) and attention.implementation(call, {}) is None


def test_the_operator_that_torch_calls_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where torch's choices are another operator of the same kind, and ordinary ones."""
    monkeypatch.setitem(attention._IMPLEMENTATIONS, "aten::_scaled_dot_product_flash_attention_for_cpu", 1)
    q = FakeTensorMode().from_tensor(torch.ones(1, 1, 4, 8))
    for backend, number in ((SDPBackend.FLASH_ATTENTION, 1), (SDPBackend.MATH, 0)):
        with sdpa_kernel(backend), attention._Noting() as noting:
            FUNCTION(q, q, q)
        assert noting.number == number


def test_equal_calls_have_one_signature() -> None:
    def signature(*shape: int, **about: Any) -> Any:
        return attention._signature(torch.ones(*shape, **about))

    assert signature(2, 4) == signature(2, 4) != signature(4, 2)
    assert signature(2, 4, dtype=torch.half) != signature(2, 4) != signature(2, 4, requires_grad=True)
    assert attention._signature(torch.ones(4, 2).t()) != signature(2, 4)


def test_operators_of_implementations_are_torch_s() -> None:
    names = {name.partition(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert set(attention._IMPLEMENTATIONS) <= names


def test_a_call_with_an_implementation_sets_it_around(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[int] = []

    def choose(number: int) -> int:
        chosen.append(number)
        return -1

    monkeypatch.setattr(device_guard, "choose_attention", choose)
    q = torch.randn(1, 1, 4, 8)
    result = attention.with_implementation(2)(q, q, q)
    assert chosen == [2, -1]
    torch.testing.assert_close(result, FUNCTION(q, q, q))
    with pytest.raises(TypeError):
        attention.with_implementation(2)()
    assert chosen == [2, -1, 2, -1]
