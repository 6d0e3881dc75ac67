"""Process groups by name, in graphs of functional collectives.

A graph refers to a group by a name that is valid in this process only: ranks that do the same computation in their own
groups have other names. Only a group's size matters to a compile. So groups are numbered in the encoded graph, a worker
gets placeholder groups of the same sizes, and the names are inserted when the code is loaded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

__all__ = ["name_in_code", "number_in_code", "position", "shown", "size"]

_NAMESPACES = frozenset(("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "symm_mem"))
_PREFIX = "fxpool:process group "


def position(target: Any) -> int | None:
    """Return the position of the argument that names a process group; None for an operator without such an argument."""
    if isinstance(target, torch._ops.OpOverloadPacket):
        if target._qualified_op_name.partition("::")[0] not in _NAMESPACES:
            return None
        target = getattr(target, target.overloads()[0])
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in _NAMESPACES:
        return None
    names = [argument.name for argument in target._schema.arguments]
    return names.index("group_name") if "group_name" in names else None


def size(name: str) -> int:
    """Return the number of ranks of a group of this process. Raises LookupError: there is no group of that name."""
    from torch.distributed import distributed_c10d

    try:
        return int(distributed_c10d._resolve_process_group(name).size())
    except (RuntimeError, ValueError) as error:
        raise LookupError(name) from error


def name_in_code(number: int) -> str:
    """Return a worker's name for a graph's group."""
    return f"{_PREFIX}{number}"


def number_in_code(name: str) -> int | None:
    """Return the number of the group that a text in a worker's code names; None for any other text."""
    number = name.removeprefix(_PREFIX)
    return int(number) if number != name and number.isdigit() else None


@contextlib.contextmanager
def shown(sizes: Sequence[int]) -> Iterator[None]:
    """Provide placeholder groups of these sizes, by their names in code; they cannot communicate."""
    if not sizes:
        yield
        return
    from torch._C import _distributed_c10d as c10d

    make: Any = c10d.ProcessGroup  # without a store, which torch's stubs do not know
    known: dict[str, Any] = {}  # keeps them alive, which the table does not
    try:
        for number, ranks in enumerate(sizes):
            known[name_in_code(number)] = group = make(0, ranks)
            c10d._register_process_group(name_in_code(number), group)
        yield
    finally:
        for name in known:
            c10d._unregister_process_group(name)
