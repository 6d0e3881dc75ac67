"""Names in a graph: of nodes, inputs, attributes and parameters.

`graph_codec` numbers them, so that renaming a variable of the program changes no key, and records the names beside the
description, a row per graph: nested graphs follow the graph that contains them, in order of their attributes. The names
are for people, and for passes of the program that may read them.

    [names of nodes, targets of inputs, names of attributes (parameters and buffers first), metadata of names]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["OF_ATTRIBUTES", "named"]

#: Kinds of nodes whose target is an attribute.
OF_ATTRIBUTES = frozenset(("get_attr", "call_module"))


def named(description: Sequence[Any], names: Sequence[Any]) -> list[Any]:
    """Return a description with its names, as rows ``[op, name, target, args, kwargs, meta]``.

    Attributes and parameters are preceded by their names. Raises ValueError: the names are another graph's.
    """
    return _named(description, iter(names))


def _named(description: Sequence[Any], names: Iterator[Any]) -> list[Any]:
    _, nodes, attributes, lifted, meta = description
    own, inputs, of_attributes, of_meta = next(names, ((), (), (), ()))
    targets = iter(inputs)
    rows = []
    for (op, target, *rest), name in zip(nodes, own, strict=True):
        if op == "placeholder":
            target = next(targets)
        elif op in OF_ATTRIBUTES:
            target = of_attributes[target]
        rows.append([op, name, target, *rest])
    parameters = [[name, *row] for name, row in zip(of_attributes, lifted, strict=False)]
    described = [_named(row, names) if row[0] == "graph" else row for row in attributes]
    return [
        "graph",
        rows,
        [[name, row] for name, row in zip(of_attributes[len(lifted) :], described, strict=True)],
        parameters,
        [*meta, *of_meta],
    ]
