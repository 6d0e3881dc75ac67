"""Finds Python kernels that a program added to operators of torch (``py_impl``).

A dictionary of each operator has them, so their sizes tell whether there is a new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fxpool.torch_compat.operators import operators, own_code

__all__ = ["foreign"]


def foreign() -> list[tuple[str, Any]]:
    """Return (operator with dispatch key, kernel) of kernels that are not torch's."""
    return _kernels.foreign()


class _Kernels:
    """The Python kernels of torch's operators (``py_impl``), read again if one of their dictionaries has grown."""

    def __init__(self) -> None:
        self._packets: list[Mapping[str, Any]] = []
        self._kernels: list[Mapping[Any, Any]] = []
        self._sizes = (-1, -1, -1)
        self._foreign: list[tuple[str, Any]] = []

    def foreign(self) -> list[tuple[str, Any]]:
        spaces = [vars(space) for space in [*vars(torch.ops).values()] if isinstance(space, torch._ops._OpNamespace)]
        if self._sizes != self._measured(spaces):
            kinds = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)
            packets = [one for space in spaces for one in [*space.values()] if isinstance(one, kinds[0])]
            overloads: list[Any] = [
                one for packet in packets for one in [*vars(packet).values()] if isinstance(one, kinds[1])
            ]
            overloads += torch._ops._higher_order_ops.values()
            self._packets = [vars(packet) for packet in packets]
            self._kernels = [table for operator in overloads for table in _tables(operator)]
            self._sizes = self._measured(spaces)
            self._foreign = [pair for operator in overloads for pair in _foreign_kernels(operator)]
        return self._foreign

    def _measured(self, spaces: list[dict[str, Any]]) -> tuple[int, int, int]:
        hops = len(torch._ops._higher_order_ops)
        return hops + sum(map(len, spaces)), sum(map(len, self._packets)), sum(map(len, self._kernels))


_kernels = _Kernels()


def _tables(operator: Any) -> list[Mapping[Any, Any]]:
    """Return an operator's kernels by dispatch key, and those by the class of a mode or a tensor."""
    return [getattr(operator, name) for name in ("py_kernels", "python_key_table") if hasattr(operator, name)]


def _foreign_kernels(operator: Any) -> Iterator[tuple[str, Any]]:
    """Yield kernels of one of torch's operators. Those for a class of the program's need its objects, which refuse."""
    added = [
        (key, kernel)
        for table in _tables(operator)
        for key, kernel in [*table.items()]
        if not own_code.is_own(kernel) and (not isinstance(key, type) or own_code.is_own(key))
    ]
    # Last, because whose an operator is takes longest to find out.
    if added and _is_torchs(operator):
        for key, kernel in added:
            name = key.__qualname__ if isinstance(key, type) else getattr(key, "name", key)
            yield f"{operator} for {name}", kernel


def _is_torchs(operator: Any) -> bool:
    if operators.is_higher_order(operator):
        return operators.is_torchs_higher_order(operator)
    return operators.is_builtin(operator)
