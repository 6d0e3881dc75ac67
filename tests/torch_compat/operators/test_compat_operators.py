"""`operators` names the operators and functions in a graph, so that a worker finds them again."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import operators

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("op", "name"),
    [
        (aten.add.Tensor, "aten::add.Tensor"),
        (aten.sin.default, "aten::sin.default"),
        (torch.ops.prims.device_put.default, "prims::device_put.default"),
    ],
)
def test_an_overload_is_found_by_its_name(op: Any, name: str) -> None:
    assert operators.overload_name(op) == name
    assert operators.find_overload(name) is op
    assert operators.is_overload(op) and not operators.is_packet(op) and not operators.is_higher_order(op)
    assert operators.namespace_of(op) == name.split("::")[0] and operators.is_builtin(op)


def test_a_packet_is_found_by_its_name() -> None:
    assert operators.packet_name(aten.add) == "aten::add" and operators.find_packet("aten::add") is aten.add
    assert operators.is_packet(aten.add) and not operators.is_overload(aten.add)
    assert operators.namespace_of(aten.add) == "aten" and operators.is_builtin(aten.add)


@pytest.mark.parametrize("name", ["compat_unknown::op.default", "aten::compat_unknown.default", "aten::sin.unknown"])
def test_an_operator_that_is_not_registered_is_an_attribute_error(name: str) -> None:
    with pytest.raises(AttributeError):
        operators.find_overload(name)


def test_an_operator_of_a_program_is_not_torch_s() -> None:
    library = torch.library.Library("compat_operators", "FRAGMENT")
    try:
        library.define("mine(Tensor x) -> Tensor")
        mine = operators.find_overload("compat_operators::mine.default")
        assert not operators.is_builtin(mine) and not operators.is_builtin(torch.ops.compat_operators.mine)
    finally:
        library._destroy()


def test_every_namespace_that_comes_with_torch_is_known() -> None:
    """Those of operators that are registered in a process that has imported torch, Dynamo and Inductor."""
    import torch._inductor.lowering

    shipped = {"aten", "prims", "prim", "inductor", "mkldnn", "quantized", "rngprims"}
    registered = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert shipped & registered >= {"aten", "prims", "inductor", "quantized", "rngprims"}
    assert shipped & registered <= operators._BUILTIN_NAMESPACES


# --- higher-order operators


def test_a_higher_order_operator_is_found_by_its_name() -> None:
    cond_op = torch.ops.higher_order.cond
    assert operators.is_higher_order(cond_op) and operators.higher_order_name(cond_op) == "cond"
    assert operators.find_higher_order("cond") is cond_op
    assert not operators.is_autograd_function(cond_op) and not operators.ends_with_autograd(cond_op)
    with pytest.raises(KeyError):
        operators.find_higher_order("compat_unknown")


@pytest.mark.parametrize("cacheable", [True, False])
def test_a_higher_order_operator_says_whether_its_graphs_may_be_cached(
    cacheable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(torch._ops.HigherOrderOperator):
        def __init__(self) -> None:
            super().__init__("compat_mine", cacheable=cacheable)

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return super().__call__(*args, **kwargs)

    monkeypatch.setattr(torch._ops, "_higher_order_ops", dict(torch._ops._higher_order_ops))
    mine = Mine()
    assert operators.higher_order_cacheable(mine) is cacheable
    assert operators.find_higher_order("compat_mine") is mine


def test_a_higher_order_operator_is_imported_with_its_module() -> None:
    found = operators.find_higher_order("out_dtype", "torch._higher_order_ops.out_dtype")
    assert operators.higher_order_name(found) == "out_dtype" and operators.ends_with_autograd(found)


def test_a_function_with_its_own_gradient_is_known() -> None:
    from torch._functorch.autograd_function import autograd_function_apply

    assert operators.is_autograd_function(autograd_function_apply)
    assert not operators.ends_with_autograd(autograd_function_apply)


def test_all_operators_that_end_with_autograd_are_torch_s() -> None:
    import torch._higher_order_ops.flat_apply
    import torch._higher_order_ops.strict_mode
    import torch._higher_order_ops.wrap

    known = torch._ops._higher_order_ops
    for name in operators._END_WITH_AUTOGRAD:
        assert operators.higher_order_name(operators.find_higher_order(name)) == name
        assert name in known


# --- functions


def test_a_function_is_found_by_its_name() -> None:
    assert operators.resolve("torch.nn.functional", "relu") is torch.nn.functional.relu
    assert operators.resolve("torch", "Tensor.add") is torch.Tensor.add
    with pytest.raises(AttributeError):
        operators.resolve("torch", "Tensor.compat_unknown")
    with pytest.raises(ImportError):
        operators.resolve("torch.compat_unknown", "x")


def test_dynamo_vouches_for_functions_of_its_list_only() -> None:
    assert operators.torch_function_is_cacheable(torch.nn.functional.gelu) is False  # in C
    assert operators.torch_function_is_cacheable(torch.nn.functional.softmax) is True
    assert operators.torch_function_is_cacheable(test_a_function_is_found_by_its_name) is False


def test_targets_have_names_for_people() -> None:
    assert operators.pretty_name("relu") == "relu"
    assert operators.pretty_name(operator.add) == "operator.add"
    assert operators.pretty_name(aten.add.Tensor) == "torch.ops.aten.add.Tensor"


def test_calls_of_numpy_are_taken_apart_and_made_again() -> None:
    from torch._dynamo import utils

    array = torch.arange(4.0)
    wrappers: list[Any] = [
        (utils.numpy_to_tensor_wrapper, torch.sin, (array,), torch.sin(array)),
        (utils.numpy_method_wrapper, "sum", (array,), array.sum()),
        (utils.numpy_operator_wrapper, operator.mul, (array, 2), array * 2),
    ]
    for kind, called, arguments, expected in wrappers:
        described = operators.numpy_wrapper(kind(called))
        assert described == (kind.__name__, called)
        made = operators.make_numpy_wrapper(*described)
        assert type(made) is kind and torch.equal(made(*arguments), expected)
    assert operators.numpy_wrapper(torch.sin) is None


def test_torchscript_objects_are_told_apart() -> None:
    from fxpool.torch_compat.dynamo.tensors import opaque_stand_in

    assert operators.is_script_object(opaque_stand_in("Mesh"))
    assert not operators.is_script_object(torch.ones(1))


def test_operators_of_triton_kernels_are_those_of_triton_op() -> None:
    assert operators.triton_kernels_of(aten.sin.default) == []
    assert operators.triton_kernels_of(aten.sin) == []


def test_overloads_are_named_in_the_order_of_their_definitions() -> None:
    """A call of the packet takes the first one that fits."""
    library = torch.library.Library("compat_overloads", "FRAGMENT")
    library.define("op.integer(Tensor x, int k) -> Tensor")
    library.define("op(Tensor x, float k) -> Tensor")
    packet = torch.ops.compat_overloads.op
    assert operators.overload_names(packet) == ["integer", ""]
    library.define("op.text(Tensor x, str k) -> Tensor")
    assert operators.overload_names(packet) == ["integer", "", "text"]
    library._destroy()
