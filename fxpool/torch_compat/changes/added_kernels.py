"""Finds Python kernels that a program added to operators of torch (``py_impl``).

Dictionaries of each operator have them, of which all values are compared by identity.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fxpool.torch_compat.changes import container_displays
from fxpool.torch_compat.operators import code_owner, operators

__all__ = ["foreign"]


def foreign() -> list[tuple[str, Any]]:
    """Return (operator with dispatch key, kernel) of kernels that are not torch's."""
    return _kernels.foreign()


class _Kernels:
    """The Python kernels of torch's operators (``py_impl``). Those of an operator are read again if one is another."""

    def __init__(self) -> None:
        self._packets: list[Mapping[str, Any]] = []
        self._sizes = (-1, -1)
        self._tables: list[Mapping[Any, Any]] = []
        self._kernels: list[Any] = []
        self._operators: dict[int, _Operator] = {}
        self._foreign: list[tuple[str, Any]] = []

    def foreign(self) -> list[tuple[str, Any]]:
        spaces = [vars(space) for space in [*vars(torch.ops).values()] if isinstance(space, torch._ops._OpNamespace)]
        if self._sizes == self._measured(spaces) and container_displays.are_same(_values(self._tables), self._kernels):
            return self._foreign
        kinds = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)
        packets = [one for space in spaces for one in [*space.values()] if isinstance(one, kinds[0])]
        overloads: list[Any] = [
            one for packet in packets for one in [*vars(packet).values()] if isinstance(one, kinds[1])
        ]
        overloads += torch._ops._higher_order_ops.values()
        self._packets = [vars(packet) for packet in packets]
        self._tables = [table for operator in overloads for table in _tables(operator)]
        self._sizes, self._kernels = self._measured(spaces), _values(self._tables)
        self._operators = {id(operator): self._examined(operator) for operator in overloads}
        self._foreign = [pair for operator in self._operators.values() for pair in operator.foreign]
        return self._foreign

    def _examined(self, operator: Any) -> _Operator:
        kernels = _values(_tables(operator))
        before = self._operators.get(id(operator))
        if before is not None and container_displays.are_same(kernels, before.kernels):
            return before
        return _Operator(operator, kernels, [*_foreign_kernels(operator)])

    def _measured(self, spaces: list[dict[str, Any]]) -> tuple[int, int]:
        return len(torch._ops._higher_order_ops) + sum(map(len, spaces)), sum(map(len, self._packets))


class _Operator(NamedTuple):
    """An operator with its kernels and those that are not torch's. It is referenced so that its id stays its."""

    operator: Any
    kernels: list[Any]
    foreign: list[tuple[str, Any]]


def _values(tables: list[Mapping[Any, Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable([table.values() for table in tables])]


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
        if not code_owner.is_own(kernel) and (not isinstance(key, type) or code_owner.is_own(key))
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
