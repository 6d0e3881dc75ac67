"""`user_kernels` describes a program's Triton kernels; here are the parts that need no Triton."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fxpool.torch_compat.triton import user_kernels
from fxpool.torch_compat.triton.user_kernels import NotDescribedError


def test_calls_of_kernels_are_torch_s_operators() -> None:
    from torch._higher_order_ops.triton_kernel_wrap import (
        triton_kernel_wrapper_functional,
        triton_kernel_wrapper_mutation,
    )

    assert user_kernels.is_operator(triton_kernel_wrapper_mutation)
    assert user_kernels.is_operator(triton_kernel_wrapper_functional)
    assert not user_kernels.is_operator(torch.ops.higher_order.cond)
    graph = torch.fx.Graph()
    assert user_kernels.is_call(graph.call_function(triton_kernel_wrapper_mutation, ()))
    assert not user_kernels.is_call(graph.call_function(torch.sin, ()))
    assert not user_kernels.is_call(graph.call_function(torch.ops.aten.sin.default, ()))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -(2**63), 2**64, 1.5, float("inf"), "text", torch.bfloat16, (1, (2,)), [1, [2.5]],
        {"a": (torch.float16, None), "b": [2**100]},
    ],
    ids=repr,
)  # fmt: skip
def test_a_constant_comes_back_as_it_was(value: Any) -> None:
    back = user_kernels._value(json.loads(json.dumps(user_kernels._plain(value, "arguments"))))
    assert back == value and type(back) is type(value)


def test_numbers_that_only_differ_in_kind_are_told_apart() -> None:
    plain = [user_kernels._plain(value, "") for value in (1, True, 1.0, "1", (1,), [1])]
    assert len({json.dumps(one) for one in plain}) == 6


def call_of(constants: Any, **others: Any) -> torch.fx.Node:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table, triton_kernel_wrapper_mutation

    number = kernel_side_table.add_constant_args(constants)
    graph = torch.fx.Graph()
    return graph.call_function(
        triton_kernel_wrapper_mutation, (), {"kernel_idx": 41, "constant_args_idx": number, "kwargs": others}
    )


def test_constants_of_a_call_are_read_from_torch_s_table_and_put_into_it() -> None:
    node = call_of({"n": 3, "dtype": torch.float16})
    data = user_kernels.constants(node)
    number = user_kernels.add_constants(json.loads(json.dumps(data)))
    assert user_kernels.constants(call_of(user_kernels._table().get_constant_args(number))) == data
    assert user_kernels._table().get_constant_args(number) == {"n": 3, "dtype": torch.float16}
    assert user_kernels.kernel_index(node) == 41


def test_a_device_by_name_has_no_description() -> None:
    with pytest.raises(NotDescribedError, match="device is 'cuda:1'") as caught:
        user_kernels.constants(call_of({}, device="cuda:1"))
    assert caught.value.reason == "triton_kernel_constant"
    assert user_kernels.constants(call_of({}, device="cuda")) == ["dict"]
