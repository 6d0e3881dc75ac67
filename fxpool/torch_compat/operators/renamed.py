"""Lists torch's functions in C that have another name than their own.

A graph names its calls: ``x.sin()`` is a call of ``sin``, whatever ``torch.Tensor.sin`` is when it runs. If a program
has put one of torch's C functions under the name of another, Dynamo takes it for the function of that name, in the
program's process only. Functions in Python are told by `own_code`.

Read in torch 2.11 to 2.13: a C function knows its own name, and torch itself has only few under two names.
"""

from __future__ import annotations

import types

import torch

__all__ = ["renamed"]

_C_METHODS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.ClassMethodDescriptorType,
)
_PLACES = (torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)


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
