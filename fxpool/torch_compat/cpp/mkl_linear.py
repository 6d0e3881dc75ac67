"""Weights that Inductor's freezing packs for MKL's linear layer.

A packed weight is bound to its address, because MKL stores alignments in it, and it contains uninitialized memory: it
can be neither copied nor hashed. The layer's call has the weight itself as well, from which the form is made again.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["Packing", "UnknownPackingError", "pack", "packing_of"]


class UnknownPackingError(Exception):
    """A packed weight is used in a way that does not say what it was made from."""


class Packing(NamedTuple):
    """The origin of a packed weight: the node of the weight, and the number of rows of the layer's input."""

    weight: torch.fx.Node
    rows: int


def packing_of(node: torch.fx.Node) -> Packing | None:
    """Return the origin of the constant of a ``get_attr`` node; None if no linear layer of MKL takes it.

    Raises:
        UnknownPackingError: it has other uses as well, or different ones.
    """
    if not torch._C.has_mkl or node.op != "get_attr":
        return None
    users = [user for one in node.graph.find_nodes(op="get_attr", target=node.target) for user in one.users]
    packings = {_packing(user) for user in users if _takes_packed(user, node.target)}
    if not packings:
        return None
    if len(packings) > 1 or None in packings or not all(_takes_packed(user, node.target) for user in users):
        raise UnknownPackingError(f"{node.target} is packed for MKL, and has other uses")
    return packings.pop()


def _takes_packed(user: torch.fx.Node, target: object) -> bool:
    linear = (torch.ops.mkl._mkl_linear, torch.ops.mkl._mkl_linear.default)
    return user.target in linear and len(user.args) > 1 and _is_constant(user.args[1], target)


def _packing(user: torch.fx.Node) -> Packing | None:
    packed, weight, *_, rows = user.args[1:]
    if len(user.args) != 5 or not _is_constant(weight) or user.args.count(packed) != 1 or type(rows) is not int:
        return None
    assert isinstance(weight, torch.fx.Node)
    return Packing(weight, rows)


def _is_constant(value: object, target: object = None) -> bool:
    return isinstance(value, torch.fx.Node) and value.op == "get_attr" and target in (None, value.target)


def pack(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Return `weight` packed for inputs of `rows` rows."""
    packed: torch.Tensor = torch.ops.mkl._mkl_reorder_linear_weight(weight.detach(), rows)
    return packed
