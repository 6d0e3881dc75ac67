"""Finds and sets the implementation of attention that a graph's calls use.

While ``scaled_dot_product_attention`` is traced, it queries the device to choose between flash, memory-efficient,
cuDNN's and plain attention. A worker has no device to query. So the process that has the device traces each call
separately, under fake tensors, and records torch's choice; the choice is sent with the graph, and the worker's call
uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fxpool.torch_compat.cuda import device_guard
from fxpool.torch_compat.dynamo import tensors

FUNCTION: Any = torch._C._nn.scaled_dot_product_attention

# Torch's numbers of implementations by operator (SDPBackend in ATen/SDPBackend.h); 0 consists of ordinary operators.
_IMPLEMENTATIONS = {
    "aten::_scaled_dot_product_flash_attention": 1,
    "aten::_scaled_dot_product_efficient_attention": 2,
    "aten::_scaled_dot_product_cudnn_attention": 3,
    "aten::_scaled_dot_product_fused_attention_overrideable": 4,
}


def changes_switches(target: Any) -> bool:
    """Return whether a function in a graph changes the switches that select an implementation for the calls after it.

    Each call is traced separately, under the switches in force when the graph is captured.
    """
    return getattr(target, "__name__", "") in ("_sdpa_kernel", "_sdpa_kernel_variadic", "_enter_autocast")


def is_on_cuda(node: torch.fx.Node) -> bool:
    """Return whether a call is, or may be, on a CUDA device."""
    query = node.args[0] if node.args else node.kwargs.get("query")
    value = query.meta.get("example_value") if isinstance(query, torch.fx.Node) else None
    return not isinstance(value, torch.Tensor) or value.device.type == "cuda"


class _Noting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number = max(self.number, _IMPLEMENTATIONS.get(func._schema.name, 0))
        return func(*args, **(kwargs or {}))


def implementation(node: torch.fx.Node, noted: dict[str, int]) -> int | None:
    """Return the number of the implementation that torch selects for a call in a Dynamo graph.

    None if the call is not on a CUDA device, or its inputs are unknown. `noted` caches the numbers of calls under the
    same switches.
    """
    arguments, known = _values((node.args, dict(node.kwargs)))
    args, kwargs = arguments
    query = args[0] if args else kwargs.get("query")
    if not known or not isinstance(query, torch.Tensor) or query.device.type != "cuda" or torch.version.hip:
        return None
    signature = repr(torch.utils._pytree.tree_map(_signature, (args, sorted(kwargs.items()), torch.is_grad_enabled())))
    if signature not in noted:
        with tensors.fake_mode_of(query), _Noting() as noting, tensors.no_new_guards(query):
            FUNCTION(*args, **kwargs)
        noted[signature] = noting.number
    return noted[signature]


def _values(data: Any) -> tuple[Any, bool]:
    known = True

    def value(argument: Any) -> Any:
        nonlocal known
        if not isinstance(argument, torch.fx.Node):
            return argument
        example = argument.meta.get("example_value")
        known = known and example is not None
        return example

    return torch.fx.node.map_arg(data, value), known


def _signature(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return [list(map(str, value.shape)), list(map(str, value.stride())), str(value.dtype), value.requires_grad]


def with_implementation(number: int) -> Callable[..., Any]:
    """Return a function that calls attention with this implementation."""

    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Any:
        before = device_guard.choose_attention(number)
        try:
            return FUNCTION(*args, **kwargs)
        finally:
            device_guard.choose_attention(before)

    return scaled_dot_product_attention
