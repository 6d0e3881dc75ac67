"""Describe inputs without their place in memory, for graphs that cannot see it.

Code for a tensor is valid for any slice of a larger tensor: it gets the address of the first element. A key therefore
leaves out the offset, the size of the storage and the tensor that was sliced, unless a function of the graph can read
them (`torch_compat.operators.memory_placement`), inputs share a storage, or autograd follows a view. On other devices
than the CPU, it keeps whether the address is aligned as Inductor's kernels want it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from fxpool.torch_compat.dynamo.tensors import TensorFacts
from fxpool.torch_compat.operators import memory_placement

__all__ = ["without_place"]

_BASE = TensorFacts._fields.index("base")


def without_place(values: Sequence[Any]) -> list[Any]:
    """Return a graph's encoded inputs without the facts about their place that compiled code does not depend on.

    Tensors with symbolic sizes or offsets stay as they are.
    """
    rows = [TensorFacts(*value[1]) if _is_tensor(value) else None for value in values]
    uses = Counter(row.storage for row in rows if row is not None)
    moved = [row if row is None or uses[row.storage] > 1 else _moved(row) for row in rows]
    if moved == rows:
        return list(values)
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})
    return [
        value if row is None else ["tensor", _renumbered(row, *numbers)]
        for value, row in zip(values, moved, strict=True)
    ]


def _is_tensor(value: Any) -> bool:
    return type(value) is list and len(value) == 2 and value[0] == "tensor"


def _moved(row: TensorFacts) -> TensorFacts:
    """Return the facts of an equal tensor at the start of its storage, or the same facts if that could be noticed."""
    if row.base is None:
        if row.offset == 0 and row.is_parameter:
            return row  # as most are
    elif not row.is_leaf or TensorFacts(*row.base).requires_grad:
        return row
    if not all(type(number) is int for number in (row.offset, row.nbytes, *row.size, *row.stride)):
        return row
    itemsize = memory_placement.itemsize(row.dtype)
    offset = int(memory_placement.is_misaligned(row.offset * itemsize, row.device[0]))
    reach = sum((size - 1) * stride for size, stride in zip(row.size, row.stride, strict=True)) + 1
    nbytes = 0 if 0 in row.size else (offset + reach) * itemsize
    return row._replace(offset=offset, nbytes=nbytes, base=None, creation_meta=None)


def _renumbered(row: TensorFacts, tensors: dict[int, int], storages: dict[int, int]) -> list[Any]:
    """Number tensors and storages in order of appearance again: dropped ones leave gaps."""
    identity = tensors.setdefault(row.identity, len(tensors))
    storage = storages.setdefault(row.storage, len(storages))
    base: Any = None if row.base is None else _renumbered(TensorFacts(*row.base), tensors, storages)
    return list(row._replace(identity=identity, storage=storage, base=base))
