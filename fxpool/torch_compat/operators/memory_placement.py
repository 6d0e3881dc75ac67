"""The place of a tensor in memory, as far as functions in a graph and Inductor can see it.

An input may be a slice of a larger tensor. Few functions can tell: those that count from the start of the storage or
ask for it, and those that reinterpret its bytes, which depends on the alignment of the offset.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = ["is_misaligned", "is_seen_by", "is_seen_in", "itemsize"]

_SEEING = frozenset(
    ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "set_", "resize_", "resize_as_",
     "resize_as_sparse_", "storage_offset", "sym_storage_offset", "untyped_storage", "storage", "_typed_storage",
     "data_ptr", "is_set_to", "view_as_complex", "view_as_complex_copy", "_is_view", "_view_func", "_reshape_alias",
     "_reshape_alias_copy", "share_memory_", "pin_memory", "is_pinned")
)  # fmt: skip
# These depend on their arguments: a view with another dtype, any attribute.
_UNDECIDED = frozenset(("view", "view_copy", "getattr"))
_ATTRIBUTES = frozenset(("T", "mT", "H", "mH", "real", "imag"))
# Homes of functions that are made of operators; those that are not blind are named above.
_HOMES = frozenset(
    ("torch", "torch.functional", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "torch._C",
     "torch._C._nn", "torch._C._special", "torch._C._linalg", "torch._C._fft", "torch.amp.autocast_mode", "builtins",
     "operator", "math")
)  # fmt: skip
_NAMESPACES = frozenset(("aten", "prims", "_c10d_functional"))
_ALIGNMENT = 16  # bytes, `GPU_ALIGN_BYTES` in Inductor


def is_seen_by(target: Any, home: str) -> bool | None:
    """Return whether calls of `target` may depend on the place of a tensor; None if that is up to their arguments.

    `target` is a function, with the module `home`, or a method's name.
    """
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        home = "torch" if _qualified(target).partition("::")[0] in _NAMESPACES else ""
    if isinstance(target, HigherOrderOperator) or not (isinstance(target, str) or home in _HOMES):
        return True
    name = _name(target)
    return None if name in _UNDECIDED else name in _SEEING


def is_seen_in(call: torch.fx.Node) -> bool:
    """Return whether a call of which `is_seen_by` decides nothing may depend on the place of a tensor."""
    arguments = [*call.args, *call.kwargs.values()]
    if _name(call.target) == "getattr":
        return arguments[1] not in _ATTRIBUTES
    return any(isinstance(argument, torch.dtype) for argument in arguments)


def _name(target: Any) -> str:
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return _qualified(target).partition("::")[2]
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def _qualified(target: OpOverload | OpOverloadPacket) -> str:
    return target._schema.name if isinstance(target, OpOverload) else target._qualified_op_name


def itemsize(dtype: str) -> int:
    """Return the number of bytes of an element."""
    size: int = getattr(torch, dtype).itemsize
    return size


def is_misaligned(offset: int, device: str) -> bool:
    """Return whether Inductor compiles for an address that is not aligned; `offset` is in bytes."""
    return device != "cpu" and offset % _ALIGNMENT != 0
