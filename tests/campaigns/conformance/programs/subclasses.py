"""Tensor subclasses, and tensors of other layouts."""

from __future__ import annotations

from typing import Any

import torch

from .registry import Compile, program, script


class TwoTensors(torch.Tensor):
    """A wrapper around two tensors that does everything to both."""

    a: torch.Tensor
    b: torch.Tensor

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, b: torch.Tensor) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["a", "b"], None

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any) -> Any:
        return TwoTensors(inner["a"], inner["b"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def part(name: str) -> Any:
            def pick(x: Any) -> Any:
                return getattr(x, name) if isinstance(x, TwoTensors) else x

            return func(*torch.utils._pytree.tree_map(pick, args), **torch.utils._pytree.tree_map(pick, kwargs or {}))

        first, second = part("a"), part("b")
        if isinstance(first, torch.Tensor):
            return TwoTensors(first, second)
        return first


class Plain(torch.Tensor):
    """A subclass without any additions."""


@program("wrapper_subclass")
def wrapper_subclass() -> Any:
    return lambda x: (x.sin() * 2).sum(-1), (TwoTensors(torch.randn(3, 4), torch.randn(3, 4)),)


@program("wrapper_subclass_beside_a_tensor")
def wrapper_subclass_beside_a_tensor() -> Any:
    return lambda x, y: (x * y, y + 1), (TwoTensors(torch.randn(4), torch.randn(4)), torch.randn(4))


@program("plain_subclass")
def plain_subclass() -> Any:
    return lambda x: x.sin() * 2, (torch.randn(4).as_subclass(Plain),)


@script("nested_jagged")
def nested_jagged(compiling: Compile) -> Any:
    x = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4) * 2], layout=torch.jagged)
    out = compiling(lambda x: x.sin() * 2)(x)
    return out.values(), out.offsets()


@script("nested_jagged_gradients")
def nested_jagged_gradients(compiling: Compile) -> Any:
    parts = [torch.ones(2, 4, requires_grad=True), torch.ones(3, 4, requires_grad=True)]
    x = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    out = compiling(lambda x: (x * x).sin())(x)
    out.values().sum().backward()
    return out.values(), [part.grad for part in parts]


@program("masked_by_hand")
def masked_by_hand() -> Any:
    return lambda x, m: torch.masked_fill(x, m, 0).sum() / (~m).sum() + torch.where(m, x, -x).mean(), (
        torch.randn(4, 4, requires_grad=True),
        torch.rand(4, 4) > 0.5,
    )


@program("parameter_as_argument")
def parameter_as_argument() -> Any:
    return lambda w, x: x @ w, (torch.nn.Parameter(torch.randn(4, 2)), torch.randn(3, 4))


@script("torch_function_subclass")
def torch_function_subclass(compiling: Compile) -> Any:
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = super().__torch_function__(func, types, args, kwargs or {})
            return out * 2 if func is torch.sin else out

    return compiling(lambda x: torch.sin(x) + 1)(torch.ones(4).as_subclass(Loud)).as_subclass(torch.Tensor)


@script("sparse_to_dense")
def sparse_to_dense(compiling: Compile) -> Any:
    sparse = torch.eye(4).to_sparse()
    return compiling(lambda x, y: torch.sparse.mm(x, y) + 1)(sparse, torch.ones(4, 3))


@script("quantized_weights")
def quantized_weights(compiling: Compile) -> Any:
    weight = torch.quantize_per_tensor(torch.linspace(-1, 1, 16).reshape(4, 4), 0.1, 0, torch.qint8)
    return compiling(lambda x: x @ weight.dequantize())(torch.ones(2, 4))
