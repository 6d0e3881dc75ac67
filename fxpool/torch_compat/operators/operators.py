"""Operators and functions of a graph by name.

A graph names its targets, and a worker resolves the names. For a program's registrations for an operator see
`registrations`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from fxpool.torch_compat.operators import code_owner, dispatch_probe

# Namespaces whose operators come with torch itself.
_BUILTIN_NAMESPACES = frozenset(
    ("aten", "prim", "prims", "quantized", "_quantized", "inductor", "rngprims", "c10d", "_c10d_functional",
     "c10d_functional", "_c10d_functional_autograd", "higher_order", "mkldnn", "mkldnn_prepacked", "onednn", "mkl",
     "sparse", "debugprims", "profiler", "symm_mem", "_dtensor", "fsdp", "mkldnn_shape", "static_runtime",
     "streams", "aoti", "xnnpack", "prepacked")
)  # fmt: skip

# Higher-order operators that Dynamo puts into a graph and AOTAutograd removes. Inductor lowers the others that torch
# calls uncacheable. Inductor's decompositions, which AOTAutograd applies, replace `out_dtype`.
_END_WITH_AUTOGRAD = frozenset(("flat_apply", "out_dtype", "strict_mode", "wrap"))


def overload_name(op: OpOverload) -> str:
    """Return a name such as ``"aten::add.Tensor"``, with ``default`` spelled out."""
    return f"{op.namespace}::{op._schema.name.split('::')[1]}.{op._overloadname}"


def packet_name(packet: OpOverloadPacket) -> str:
    """Return a name such as ``"aten::add"``."""
    return packet._qualified_op_name


def overload_names(packet: OpOverloadPacket) -> list[str]:
    """Return the names of a packet's overloads in the order in which a call tries them: that of their definitions."""
    return [str(name) for name in torch._C._jit_get_operation(packet._qualified_op_name)[1] or ()]


def find_overload(name: str) -> OpOverload:
    """Return the operator of an `overload_name`. Raises AttributeError if it is not registered in this process."""
    qualified, overload = name.rsplit(".", 1)
    return getattr(find_packet(qualified), overload)


def find_packet(name: str) -> OpOverloadPacket:
    """Return the operator of a `packet_name`. Raises AttributeError if this process lacks it."""
    namespace, operator = name.split("::")
    return getattr(getattr(torch.ops, namespace), operator)


def overloads_of(target: OpOverload | OpOverloadPacket) -> list[OpOverload]:
    """Return an operator, or all operators of a packet."""
    return [target] if isinstance(target, OpOverload) else [getattr(target, name) for name in target.overloads()]


def custom_op(target: Any) -> Any | None:
    """Return torch's definition of an operator by `torch.library.custom_op`, here or in the process that sent it."""
    from torch._library.custom_ops import OPDEFS

    name = target.name() if isinstance(target, OpOverload) else getattr(target, "_qualified_op_name", "")
    return OPDEFS.get(name.partition(".")[0])


def is_overload(target: Any) -> bool:
    return isinstance(target, OpOverload)


def is_packet(target: Any) -> bool:
    return isinstance(target, OpOverloadPacket)


def is_higher_order(target: Any) -> bool:
    return isinstance(target, HigherOrderOperator)


def higher_order_name(target: Any) -> str:
    return target.name()


def higher_order_cacheable(target: Any) -> bool:
    return bool(target.cacheable())


def is_autograd_function(target: Any) -> bool:
    """Return whether a higher-order operator is a ``torch.autograd.Function``: a call of two nested graphs.

    torch keeps graphs with one only if told to, as its key does not see what else the class may do. Dynamo has traced
    both methods, and a key here contains their graphs.
    """
    return bool(target.name() == "autograd_function_apply")


def ends_with_autograd(target: Any) -> bool:
    """Return whether AOTAutograd replaces a higher-order operator by its contents."""
    return target.name() in _END_WITH_AUTOGRAD


def find_higher_order(name: str, module: str = "torch") -> Any:
    """Return the higher-order operator of a name; `module` defines it, and may be imported by torch only on first use.

    Raises KeyError if it is not registered in this process.
    """
    if name not in torch._ops._higher_order_ops and module.startswith("torch."):
        importlib.import_module(module)
    return torch._ops._higher_order_ops[name]


def namespace_of(target: Any) -> str:
    return target.namespace if isinstance(target, OpOverload) else packet_name(target).split("::")[0]


def is_builtin(target: Any) -> bool:
    """Return whether an operator (overload or packet) comes with torch: a program may define some in its namespaces."""
    return namespace_of(target) in _BUILTIN_NAMESPACES and not _is_defined_outside(target)


@functools.lru_cache(4096)  # a graph calls few operators, each many times
def _is_defined_outside(target: Any) -> bool:
    overload = target if isinstance(target, OpOverload) else getattr(target, next(iter(target.overloads()), ""), None)
    if overload is None:
        return False
    path = dispatch_probe.defined_at(overload)
    if path == code_owner.CUSTOM_OPS:  # where `torch.library.custom_op` defines the operators of programs and of torch
        definition = custom_op(overload)
        path = definition._init_fn.__code__.co_filename if definition is not None else path
    return bool(path) and not code_owner.is_file_of_torch(path)


def is_torchs_higher_order(target: Any) -> bool:
    """Return whether a higher-order operator is an object of one of torch's own classes."""
    return code_owner.is_own(type(target))


def triton_kernels_of(target: Any) -> list[Any]:
    """Return user-written Triton kernels behind a ``triton_op``; empty if Triton is not installed."""
    try:
        from torch._library.triton import get_triton_kernels_for_op
    except ImportError:
        return []
    names = [overload.name().split(".")[0] for overload in overloads_of(target)]
    return [kernel for name in names for kernel in get_triton_kernels_for_op(name)]


def load_library(path: str) -> None:
    torch.ops.load_library(path)


def resolve(module: str, qualified: str) -> Any:
    """Return the object `qualified` of `module`. Raises ImportError or AttributeError."""
    resolved: Any = importlib.import_module(module)
    for part in qualified.split("."):
        resolved = getattr(resolved, part)
    return resolved


def torch_function_is_cacheable(function: Any) -> bool:
    """Return whether Dynamo vouches for a Python function of torch in one of its graphs."""
    from torch._dynamo.trace_rules import torch_non_c_binding_in_graph_functions

    return f"{function.__module__}.{function.__name__}" in torch_non_c_binding_in_graph_functions


def pretty_name(target: Any) -> str:
    """Return a target's name for people."""
    return torch.fx.Node._pretty_print_target(target) if not isinstance(target, str) else target


# Dynamo's wrappers of NumPy calls in graphs, and the attribute that holds the function called.
_NUMPY_WRAPPERS = {"numpy_to_tensor_wrapper": "f", "numpy_method_wrapper": "method", "numpy_operator_wrapper": "op"}


def numpy_wrapper(target: Any) -> tuple[str, Any] | None:
    """Return (kind of wrapper, the function or method name it calls) of a NumPy call in a graph, else None."""
    kind = type(target).__name__
    if kind not in _NUMPY_WRAPPERS or type(target).__module__ != "torch._dynamo.utils":
        return None
    return kind, getattr(target, _NUMPY_WRAPPERS[kind])


def make_numpy_wrapper(kind: str, called: Any) -> Any:
    """Make Dynamo's wrapper of a NumPy call; see `numpy_wrapper`."""
    from torch._dynamo import utils

    return getattr(utils, kind)(called)


def is_script_object(value: Any) -> bool:
    """Return whether a value is a TorchScript object, real or fake."""
    return isinstance(value, torch._C.ScriptObject) or type(value).__name__ == "FakeScriptObject"


def operator_behind(value: Any) -> Any | None:
    """Return the operator (an OpOverload) behind an object of `custom_op` or `triton_op`; None for another object."""
    from torch._library.custom_ops import CustomOpDef

    return value._opoverload if isinstance(value, CustomOpDef) else None


# Methods and functions without an operator of the same name and parameters: the position of the device.
_DEVICE_POSITIONS: Mapping[str, int] = {"_enter_autocast": 0, **dict.fromkeys(("cuda", "xpu", "mtia", "hpu"), 1)}
_DEVICE_KEYWORDS = frozenset(("device", "device_type"))


def with_devices(
    target: OpOverload | OpOverloadPacket | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    make: Callable[[str], Any],
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call, with each text that a parameter takes for a device replaced by `make` of it.

    A graph may contain a device as text, such as ``x.to("cuda:3")``. Whether a text is a device is up to the parameter
    that takes it: an operator may have a parameter for text that happens to look like a device.

    `target` is an operator, or the name of a method of tensors or of a function that comes with torch.
    """
    positions, names = _of_torch(target) if isinstance(target, str) else _of_operator(target)

    def replaced(declared: bool, value: Any) -> Any:
        return make(value) if declared and isinstance(value, str) else value

    return (
        [replaced(at in positions, value) for at, value in enumerate(args)],
        {name: replaced(name in names, value) for name, value in kwargs.items()},
    )


_DeviceArguments = tuple[frozenset[int], frozenset[str]]


def _of_operator(target: OpOverload | OpOverloadPacket) -> _DeviceArguments:
    """Return positions and names of parameters that are a device in some overload, and text in none."""
    devices, texts = (
        [
            (at, argument.name)
            for overload in overloads_of(target)
            for at, argument in enumerate(overload._schema.arguments)
            if str(argument.type) in (kind, f"Optional[{kind}]")
        ]
        for kind in ("Device", "str")
    )
    return (
        frozenset(at for at, _ in devices) - {at for at, _ in texts},
        frozenset(name for _, name in devices) - {name for _, name in texts},
    )


@functools.cache
def _of_torch(name: str) -> _DeviceArguments:
    """Return the same for a method or function of torch: the operator of that name has its parameters."""
    packet = getattr(torch.ops.aten, name, None)
    positions, names = _of_operator(packet) if isinstance(packet, OpOverloadPacket) else (frozenset(), frozenset())
    return positions | ({_DEVICE_POSITIONS[name]} if name in _DEVICE_POSITIONS else set()), names | _DEVICE_KEYWORDS
