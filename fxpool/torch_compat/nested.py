"""Flattens and rebuilds nested containers as torch does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils import _pytree

__all__ = ["flatten"]


def flatten(value: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """Return the values in nested containers, and a function that rebuilds the containers from as many other values."""
    leaves, spec = _pytree.tree_flatten(value)
    return leaves, lambda others: _pytree.tree_unflatten(list(others), spec)
