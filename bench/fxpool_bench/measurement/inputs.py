"""Copies of inputs, used in turn, so that a call does not find the input of the previous call in a cache.

A real program reads each new input from memory; a program measured repeatedly on the same input does not. So enough
copies are made to exceed the size of all caches. If a call modifies its inputs, each copy keeps its modifications.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fxpool.torch_compat.dynamo.tensors import flatten

__all__ = ["rotated"]

# The largest number of bytes in all copies, and of copies.
_MOST_BYTES, _MOST_COPIES = 2 << 30, 64
_L2_BYTES = 50 << 20  # for a GPU that does not report its size
_L3_BYTES = 32 << 20  # for a processor that does not report its size


def rotated(fn: Callable[..., object], arguments: Sequence[Any], device: torch.device) -> tuple[Callable[[], Any], int]:
    """Return a function that calls `fn` with copies of `arguments` in turn, and the number of copies.

    Without tensors in `arguments`, it calls `fn` with the arguments themselves, and the number is 1.
    """
    copies = [tuple(arguments), *_copies(tuple(arguments), device)]
    if len(copies) == 1:
        return lambda: fn(*arguments), 1
    rotation: Iterator[tuple[Any, ...]] = itertools.cycle(copies)
    return lambda: fn(*next(rotation)), len(copies)


def _copies(arguments: tuple[Any, ...], device: torch.device) -> Iterator[tuple[Any, ...]]:
    values, rebuild = flatten(arguments)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    # A tensor in an autograd graph can't be copied without leaving that graph.
    if not tensors or not all(type(tensor) is torch.Tensor and tensor.is_leaf for tensor in tensors):
        return
    size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    wanted = 2 * _cache_bytes(device)
    count = min(_MOST_COPIES, -(-wanted // max(size, 1)), _MOST_BYTES // max(size, 1))
    for _ in range(max(0, count - 1)):
        yield rebuild(list(map(_copy, values)))


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # With the same strides, because code is compiled for them.
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    made.copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", _L2_BYTES))
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return _L3_BYTES
