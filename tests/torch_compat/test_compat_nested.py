"""`nested` takes containers apart as torch does: the order of the leaves is the order of a graph's inputs."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import torch

from fxpool.torch_compat.dynamo.tensors import flatten

Pair = namedtuple("Pair", "first second")


def test_leaves_come_in_order_and_others_take_their_places() -> None:
    value = {"a": [1, (2, None)], "b": Pair(3, OrderedDict(c=4))}
    leaves, restore = flatten(value)
    assert leaves == [1, 2, None, 3, 4]
    assert restore(leaves) == value
    tenfold = restore([leaf and leaf * 10 for leaf in leaves])
    assert tenfold == {"a": [10, (20, None)], "b": Pair(30, OrderedDict(c=40))}
    assert type(tenfold["b"]) is Pair and type(tenfold["b"].second) is OrderedDict


def test_tensors_are_leaves() -> None:
    tensor = torch.ones(2)
    leaves, restore = flatten((tensor, [tensor]))
    assert [leaf is tensor for leaf in leaves] == [True, True]
    # Any sequence will do, and its values are not looked at.
    assert restore(("x", "y")) == ("x", ["y"])
