"""Is this what eager execution gives? Trees of tensors and other values, compared leaf by leaf."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

__all__ = ["check", "snapshot"]

# Relative and absolute. Inductor's own tests allow about as much.
_TOLERANCES = {
    torch.float64: (1e-6, 1e-7),
    torch.complex128: (1e-6, 1e-7),
    torch.float32: (1e-3, 1e-4),
    torch.complex64: (1e-3, 1e-4),
}
_COARSE = (2e-2, 2e-2)  # a half's, and a float8's last bits


def snapshot(tree: Any) -> Any:
    """The same tree with copies of its tensors, which later calls do not change."""
    return pytree.tree_map_only(torch.Tensor, _copy, tree)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.detach()
    if is_traceable_wrapper_subclass(plain) or plain.layout is not torch.strided:
        return plain.clone()
    if plain.is_conj() or plain.is_neg():
        return plain.clone()
    # clone() would give an expanded tensor its own memory, and other strides with it.
    copy = torch.empty(0, dtype=plain.dtype, device=plain.device)
    return copy.set_(plain.untyped_storage().clone(), plain.storage_offset(), plain.shape, plain.stride())


def check(expected: Any, got: Any, what: str, *, values: bool = True, strides: bool = True) -> None:
    """Raise AssertionError unless `got` is `expected`, up to rounding.

    Without `values` (uninitialised memory, say) only shapes and types count.
    """
    left, form = pytree.tree_flatten(expected)
    right, other = pytree.tree_flatten(got)
    if form != other:
        raise AssertionError(f"{what}: structure {form} against {other}")
    for number, (first, second) in enumerate(zip(left, right, strict=True)):
        where = f"{what}leaf {number}"
        if type(first) is not type(second):
            raise AssertionError(f"{where}: {type(first).__name__} against {type(second).__name__}")
        if isinstance(first, np.ndarray):
            first, second = torch.from_numpy(first), torch.from_numpy(second)
        if isinstance(first, torch.Tensor):
            _check_tensors(first, second, where, values, strides)
        elif values and not _equal(first, second):
            raise AssertionError(f"{where}: {first!r} against {second!r}")


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, float):
        return (first != first and second != second) or math.isclose(first, second, rel_tol=1e-3, abs_tol=1e-4)
    return bool(first == second)


def _check_tensors(first: torch.Tensor, second: torch.Tensor, where: str, values: bool, strides: bool) -> None:
    if is_traceable_wrapper_subclass(first):
        names, context = first.__tensor_flatten__()
        others, _ = second.__tensor_flatten__()
        if names != others or tuple(map(str, first.shape)) != tuple(map(str, second.shape)):
            raise AssertionError(f"{where}: {type(first).__name__} of {names} against {others} ({context})")
        for name in names:
            _check_tensors(getattr(first, name), getattr(second, name), f"{where}.{name}", values, strides)
        return
    facts: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.dtype, lambda x: tuple(x.shape), lambda x: x.layout, lambda x: x.device,
        lambda x: _meaningful_strides(x) if strides and x.layout is torch.strided else (),
    )  # fmt: skip
    if (found := [fact(first) for fact in facts]) != (others := [fact(second) for fact in facts]):
        raise AssertionError(f"{where}: {found} against {others}")
    if not values:
        return
    if first.layout is not torch.strided:
        first, second = first.to_dense(), second.to_dense()  # little is done for other layouts
    if first.dtype.is_floating_point or first.dtype.is_complex:
        relative, absolute = _TOLERANCES.get(first.dtype, _COARSE)
        if first.dtype not in _TOLERANCES and first.dtype.itemsize == 1:
            first, second = first.float(), second.float()  # little is done for float8s
        largest = first[torch.isfinite(first)].abs().max().item() if torch.isfinite(first).any() else 1.0
        # Sums over many terms: the tolerance grows with the largest of them.
        torch.testing.assert_close(
            second, first, rtol=relative, atol=absolute * max(1.0, float(largest)), equal_nan=True, check_stride=False,
            msg=lambda text: f"{where}: {text}",
        )  # fmt: skip
    else:
        torch.testing.assert_close(second, first, rtol=0, atol=0, msg=lambda text: f"{where}: {text}")


def _meaningful_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides along which there are at least second elements; the others mean nothing."""
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
