"""Arguments that name a device, by the schemas of operators and of torch's functions.

A graph may contain a device as text, such as ``x.to("cuda:3")``. Whether a text is a device is up to the parameter that
takes it: an operator may have a parameter for text that happens to look like a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

__all__ = ["with_devices"]

# Methods and functions without an operator of the same name and parameters: the position of the device.
_OTHERS: Mapping[str, int] = {"_enter_autocast": 0, **dict.fromkeys(("cuda", "xpu", "mtia", "hpu"), 1)}
_KEYWORDS = frozenset(("device", "device_type"))


def with_devices(
    target: OpOverload | OpOverloadPacket | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    make: Callable[[str], Any],
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call, with each text that a parameter takes for a device replaced by `make` of it.

    `target` is an operator, or the name of a method of tensors or of a function that comes with torch.
    """
    positions, names = _of_torch(target) if isinstance(target, str) else _of_operator(target)

    def replaced(declared: bool, value: Any) -> Any:
        return make(value) if declared and isinstance(value, str) else value

    return (
        [replaced(at in positions, value) for at, value in enumerate(args)],
        {name: replaced(name in names, value) for name, value in kwargs.items()},
    )


_Places = tuple[frozenset[int], frozenset[str]]


def _of_operator(target: OpOverload | OpOverloadPacket) -> _Places:
    """Return positions and names of parameters that are a device in some overload, and text in none."""
    overloads = [target] if isinstance(target, OpOverload) else [getattr(target, name) for name in target.overloads()]
    devices, texts = (
        [
            (at, argument.name)
            for overload in overloads
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
def _of_torch(name: str) -> _Places:
    """Return the same for a method or function of torch: the operator of that name has its parameters."""
    packet = getattr(torch.ops.aten, name, None)
    positions, names = _of_operator(packet) if isinstance(packet, OpOverloadPacket) else (frozenset(), frozenset())
    return positions | ({_OTHERS[name]} if name in _OTHERS else set()), names | _KEYWORDS
