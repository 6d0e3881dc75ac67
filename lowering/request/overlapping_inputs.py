"""Inputs that share memory: recorded at capture, checked at every call of a graph that mutates its inputs.

Code that was compiled for separate inputs and writes to one of them is wrong for inputs that overlap, and Dynamo guards
neither on overlap nor on storage offsets. So the layout of shared memory is part of a key, and a graph that mutates
inputs is only run on calls with the layout that it was compiled for; `Checked` sends every other call elsewhere.

Intervals of memory are compared, not elements: two interleaved views count as overlapping. That costs such callers a
separate compile, but never gives wrong results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpool.torch_compat.dynamo import tensors

# Per overlapping pair: positions, distance in bytes, and both storage offsets in elements.
Layout = tuple[tuple[int, int, int, int, int], ...]


def interval(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte that a dense tensor reaches and the byte after the last; (0, 0) without memory."""
    start = tensor.data_ptr()
    if start == 0 or tensor.numel() == 0:
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (reach + 1) * tensor.element_size()


def layout(inputs: Sequence[Any], written: Sequence[int] | None = None) -> Layout:
    """Return the pairs of tensors among `inputs` whose memory overlaps, ordered by position.

    With `written`, only pairs of which at least one tensor is written to.
    """
    spans: list[tuple[int, int, int, torch.Tensor]] = []
    for position, value in enumerate(inputs):
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and _has_memory(value):
            start, end = interval(value)
            if start:
                spans.append((start, end, position, value))
    return _pairs(spans, None if written is None else frozenset(written))


def _pairs(spans: list[tuple[int, int, int, torch.Tensor]], written: frozenset[int] | None) -> Layout:
    spans.sort(key=lambda span: span[:3])
    pairs: list[tuple[int, int, int, int, int]] = []
    active: list[tuple[int, int, int, torch.Tensor]] = []
    for span in spans:
        active = [other for other in active if other[1] > span[0]]
        for other in active:
            first, second = sorted((other, span), key=lambda s: s[2])
            if other[3].device != span[3].device:
                continue  # addresses on different devices
            if written is None or first[2] in written or second[2] in written:
                pairs.append(
                    (
                        first[2],
                        second[2],
                        second[0] - first[0],
                        int(first[3].storage_offset()),
                        int(second[3].storage_offset()),
                    )
                )
        active.append(span)
    pairs.sort()
    return tuple(pairs)


def _has_memory(tensor: torch.Tensor) -> bool:
    if tensors.is_fake(tensor):  # reading its address would cause a warning
        return False
    try:
        tensor.data_ptr()
    except RuntimeError:  # fake, functional or otherwise without storage
        return False
    return True


class Checked:
    """A compiled graph that writes to inputs, and the callable to run if their memory has another layout.

    Checking the same layout again costs one pass over the data pointers.
    """

    def __init__(
        self,
        compiled: Callable[..., Any],
        fallback: Callable[..., Any],
        written: Sequence[int],
        expected: Layout,
    ) -> None:
        self._compiled, self._fallback = compiled, fallback
        self._written, self._expected = tuple(written), expected
        self._seen: tuple[Any, ...] | None = None

    def __call__(self, *args: Any) -> Any:
        if self.holds(args):
            return self._compiled(*args)
        return self._fallback(*args)

    def holds(self, args: Sequence[Any]) -> bool:
        """Return whether this call's memory has the layout that the graph was compiled for."""
        try:
            # Shapes too: under dynamic shapes one address can reach further than before.
            pointers = tuple([(a.data_ptr(), a.shape) if isinstance(a, torch.Tensor) else None for a in args])
        except RuntimeError:
            return True  # no memory to overlap in (fake tensors: the graph is being traced)
        if pointers == self._seen:
            return True
        if layout(args, self._written) != self._expected:
            return False
        self._seen = pointers
        return True
