"""A program's own Triton kernels in a graph, as plain data and back.

Dynamo puts the call of such a kernel into a graph as a higher-order operator. The kernel and its constant arguments go
into two tables of Dynamo's process, and the graph has only their indices. In another process a kernel is the function
that `triton.jit` made, found under its name in its module, and the contents of an autotuner around it, by value. The
autotuner is sent by value because Dynamo makes autotuners without a name (for ``num_warps=`` in a call, for heuristics,
of pruned configurations), and a module's arguments to `triton.autotune` may depend on the device it is imported for.

Triton is imported only for such a kernel, whose module has imported it already.
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

import torch

from fxpool.torch_compat.operators import code_owner

_OPERATORS = frozenset(("triton_kernel_wrapper_mutation", "triton_kernel_wrapper_functional"))
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1  # integers that msgpack accepts, of either sign


class NotDescribedError(Exception):
    """A kernel or an argument cannot be described; `reason` is counted, the text is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        self.reason = reason
        super().__init__(detail)


def is_operator(target: Any) -> bool:
    """Return whether a higher-order operator is one of those that call a kernel."""
    return target.name() in _OPERATORS


def is_call(node: torch.fx.Node) -> bool:
    """Return whether a node calls a program's Triton kernel."""
    return isinstance(node.target, torch._ops.HigherOrderOperator) and is_operator(node.target)


# --- in the program's process -------------------------------------------------------------


class Description:
    """A kernel: its Triton `function`, that function's `module` and `name`, and the whole description as `data`."""

    def __init__(self, kernel: Any) -> None:
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        tuner = kernel if type(kernel) is Autotuner else None
        self.function = kernel.fn if tuner is not None else kernel
        if not isinstance(self.function, JITFunction):
            raise NotDescribedError("triton_kernel_kind", f"{type(self.function).__name__} of {_name(self.function)}")
        self.module, self.name = _place(self.function)
        self.data = [self.module, self.name, _tuning(tuner) if tuner is not None else None]


def describe(call: torch.fx.Node) -> Description:
    """Describe the kernel that a node calls. Raises NotDescribedError."""
    return Description(_table().get_kernel(call.kwargs["kernel_idx"]))


def kernel_index(call: torch.fx.Node) -> int:
    """Return the index of the kernel that a node calls, in this process's table."""
    index = call.kwargs["kernel_idx"]
    assert isinstance(index, int)
    return index


def constants(call: torch.fx.Node) -> Any:
    """Return the constant arguments of a node that calls a kernel, as plain data. Raises NotDescribedError."""
    others: Any = call.kwargs["kwargs"]
    for name, value in others.items():
        if isinstance(value, str) and value.startswith("cuda:"):  # only devices of the graph itself are renumbered
            raise NotDescribedError("triton_kernel_constant", f"{name} is {value!r}")
    return _plain(_table().get_constant_args(call.kwargs["constant_args_idx"]), "arguments")


def _table() -> Any:
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    return kernel_side_table


def _place(function: Any) -> tuple[str, str]:
    """Return (module, qualified name) of a Triton function, or of a decorated form of it. Raises NotDescribedError."""
    module, qualified = function.fn.__module__, function.fn.__qualname__
    if module in code_owner.MAIN:
        raise NotDescribedError("triton_kernel_in_main", qualified)
    if _found(module, qualified) is function:
        return module, qualified
    known = vars(sys.modules[module]) if module in sys.modules else {}
    for name, value in list(known.items()):  # decorated under another name, or made by a function
        if _innermost(value) is function:
            return module, name
    raise NotDescribedError("triton_kernel_without_name", f"{module}.{qualified}")


def _found(module: str, qualified: str) -> Any | None:
    resolved = sys.modules.get(module)
    for part in qualified.split("."):
        resolved = getattr(resolved, part, None)
    return _innermost(resolved)


def _innermost(value: Any) -> Any | None:
    """Return the Triton function inside autotuners and heuristics, or None."""
    from triton.runtime.jit import JITFunction, KernelInterface

    while isinstance(value, KernelInterface) and not isinstance(value, JITFunction):
        value = getattr(value, "fn", None)
    return value if isinstance(value, JITFunction) else None


def _tuning(tuner: Any) -> list[Any]:
    """Return the data of an autotuner that Inductor reads, without the data that only Triton's own tuning reads.

    Dynamo has applied heuristics and pruning already, and refuses hooks, unless it was told to ignore them.
    """
    from triton.runtime.autotuner import Config

    for name in ("user_defined_pre_hook", "user_defined_post_hook", "early_config_prune", "perf_model"):
        if getattr(tuner, name, None):
            raise NotDescribedError("triton_kernel_hook", f"{name} of {_name(tuner.fn)}")
    rows = []
    for config in tuner.configs:
        if type(config) is not Config:
            raise NotDescribedError("triton_kernel_kind", f"{type(config).__name__} of {_name(tuner.fn)}")
        if config.pre_hook is not None:
            raise NotDescribedError("triton_kernel_hook", f"pre_hook of a configuration of {_name(tuner.fn)}")
        # Sorted by name: the order of attributes has no meaning, but the order of the kernel's arguments may have.
        rows.append(_plain(dict(sorted(vars(config).items())), f"a configuration of {_name(tuner.fn)}"))
    return [
        rows,
        _plain(list(tuner.reset_to_zero), "reset_to_zero"),
        _plain(list(tuner.restore_value), "restore_value"),
    ]


def _name(kernel: Any) -> str:
    return str(getattr(kernel, "__name__", None) or type(kernel).__name__)


# --- in the process that compiles ---------------------------------------------------------


def find(data: list[Any]) -> Any:
    """Return the Triton function of a described kernel. Raises ImportError, or NotDescribedError if it is missing."""
    module, qualified, _ = data
    importlib.import_module(module)
    function = _found(module, qualified)
    if function is None:
        raise NotDescribedError("triton_kernel_missing", f"{module}.{qualified}")
    return function


def add(function: Any, data: list[Any]) -> int:
    """Add a described kernel with its `function` to this process's table; return its index."""
    tuning = data[2]
    if tuning is None:
        return int(_table().add_kernel(function))
    from triton.runtime.autotuner import Config, autotune

    rows, reset, restore = tuning
    configs = []
    for row in rows:
        config = Config({})
        vars(config).update(_value(row))  # Dynamo adds attributes that the constructor does not take
        configs.append(config)
    tuned = autotune(configs, key=[], reset_to_zero=_value(reset), restore_value=_value(restore))(function)
    return int(_table().add_kernel(tuned))


def add_constants(data: Any) -> int:
    """Add described constant arguments to this process's table; return their index."""
    return int(_table().add_constant_args(_value(data)))


# --- values -------------------------------------------------------------------------------


def _plain(value: Any, label: str) -> Any:
    """Return numbers, text and None unchanged, anything else as a list that begins with its kind."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if _SMALLEST <= value <= _LARGEST else ["int", str(value)]
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind in (tuple, list):
        return [kind.__name__, *(_plain(item, label) for item in value)]
    if kind is dict:
        return ["dict", *([_plain(name, label), _plain(item, f"{name} in {label}")] for name, item in value.items())]
    if kind is torch.dtype:
        return ["torch", str(value).removeprefix("torch.")]
    from triton.language import constexpr, dtype

    if kind is dtype and dtype(value.name) == value:
        return ["triton", value.name]
    if kind is constexpr:
        return ["constexpr", _plain(value.value, label)]
    raise NotDescribedError("triton_kernel_constant", f"{label}: {kind.__module__}.{kind.__qualname__}")


def _value(data: Any) -> Any:
    """Reverse `_plain`."""
    if not isinstance(data, list):
        return data
    kind, *parts = data
    if kind == "tuple":
        return tuple(map(_value, parts))
    if kind == "list":
        return list(map(_value, parts))
    if kind == "dict":
        return {_value(name): _value(item) for name, item in parts}
    (part,) = parts
    if kind == "int":
        return int(part)
    if kind == "float":
        return float(part)
    if kind == "torch":
        return getattr(torch, part)
    from triton.language import constexpr, dtype

    return dtype(part) if kind == "triton" else constexpr(_value(part))
