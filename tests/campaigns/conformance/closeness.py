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
    # clone() would give an expanded tensor memory of its own, and other strides with it.
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
    for number, (one, two) in enumerate(zip(left, right, strict=True)):
        where = f"{what}leaf {number}"
        if type(one) is not type(two):
            raise AssertionError(f"{where}: {type(one).__name__} against {type(two).__name__}")
        if isinstance(one, np.ndarray):
            one, two = torch.from_numpy(one), torch.from_numpy(two)
        if isinstance(one, torch.Tensor):
            _check_tensors(one, two, where, values, strides)
        elif values and not _equal(one, two):
            raise AssertionError(f"{where}: {one!r} against {two!r}")


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, float):
        return (one != one and two != two) or math.isclose(one, two, rel_tol=1e-3, abs_tol=1e-4)
    return bool(one == two)


def _check_tensors(one: torch.Tensor, two: torch.Tensor, where: str, values: bool, strides: bool) -> None:
    if is_traceable_wrapper_subclass(one):
        names, context = one.__tensor_flatten__()
        others, _ = two.__tensor_flatten__()
        if names != others or tuple(map(str, one.shape)) != tuple(map(str, two.shape)):
            raise AssertionError(f"{where}: {type(one).__name__} of {names} against {others} ({context})")
        for name in names:
            _check_tensors(getattr(one, name), getattr(two, name), f"{where}.{name}", values, strides)
        return
    facts: tuple[Callable[[torch.Tensor], Any], ...] = (
        lambda x: x.dtype, lambda x: tuple(x.shape), lambda x: x.layout, lambda x: x.device,
        lambda x: _meaningful_strides(x) if strides and x.layout is torch.strided else (),
    )  # fmt: skip
    if (found := [fact(one) for fact in facts]) != (others := [fact(two) for fact in facts]):
        raise AssertionError(f"{where}: {found} against {others}")
    if not values:
        return
    if one.layout is not torch.strided:
        one, two = one.to_dense(), two.to_dense()  # little is done for other layouts
    if one.dtype.is_floating_point or one.dtype.is_complex:
        relative, absolute = _TOLERANCES.get(one.dtype, _COARSE)
        if one.dtype not in _TOLERANCES and one.dtype.itemsize == 1:
            one, two = one.float(), two.float()  # little is done for float8s
        largest = one[torch.isfinite(one)].abs().max().item() if torch.isfinite(one).any() else 1.0
        # Sums over many terms: what is allowed grows with the largest of them.
        torch.testing.assert_close(
            two, one, rtol=relative, atol=absolute * max(1.0, float(largest)), equal_nan=True, check_stride=False,
            msg=lambda text: f"{where}: {text}",
        )  # fmt: skip
    else:
        torch.testing.assert_close(two, one, rtol=0, atol=0, msg=lambda text: f"{where}: {text}")


def _meaningful_strides(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides along which there are at least two elements; the others mean nothing."""
    if not tensor.numel():
        return ()
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
