"""Finds torch functions and methods that a program replaced.

A graph names its calls: ``x.sin()`` is a call of ``sin``, whatever ``torch.Tensor.sin`` is when it runs, and torch's
Python functions look up the functions they call at run time. If a program has put one of torch's C functions under the
name of another, Dynamo takes it for the function of that name, in the program's process only. A function that the
program defines is traced through instead, unless torch's functions call it as a method.

Read in torch 2.11 to 2.13: a C function knows its own name, and torch itself has only few under two names.
"""

from __future__ import annotations

import types
from typing import Any

import torch

__all__ = ["of_the_program", "renamed"]

_C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.ClassMethodDescriptorType,
)
_PLACES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
# Methods that create, print, copy or store an object: they do not affect results computed with it.
_NOT_COMPUTED = frozenset(
    ("__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__format__", "__hash__", "__reduce__",
     "__reduce_ex__", "__setstate__", "__deepcopy__", "__dir__", "__doc__", "__torch_function__", "__torch_dispatch__")
)  # fmt: skip


def renamed() -> list[list[str]]:
    """Return [owner, name, the function's original name] of C functions that have another name than their own.

    This includes torch's own few, which are the same in every installation of this torch.
    """
    rows = [
        ["torch.Tensor", name, f"{value.__objclass__.__name__}.{value.__name__}"]
        for name, value in vars(torch.Tensor).items()
        if isinstance(value, _C_METHODS) and value.__name__ != name
    ]
    for place in _PLACES:
        for name, value in vars(place).items():
            if type(value) is types.BuiltinFunctionType and value.__name__ != name:
                rows.append([place.__name__, name, str(value.__name__)])
    return sorted(rows)


def of_the_program() -> list[tuple[str, Any]]:
    """Return (name, value) of tensor methods that a program replaced by its own."""
    own = vars(torch._C.TensorBase)
    return sorted(
        (f"torch.Tensor.{name}", value)
        for name, value in vars(torch.Tensor).items()
        if name in own
        and name not in _NOT_COMPUTED
        and not isinstance(value, (*_C_METHODS, types.BuiltinFunctionType))
        and not str(getattr(value, "__module__", None) or _module_of(value)).startswith("torch.")
    )


def _module_of(value: Any) -> str:
    """Return the module of a property's getter or of a method's function."""
    return str(getattr(getattr(value, "fget", None) or getattr(value, "__func__", None), "__module__", ""))
