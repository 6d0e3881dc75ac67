"""Graphs in other forms than Dynamo's: converts them into that form, and their callables back.

A direct caller of the back end may pass a graph that returns a single value or a nested structure, as pieces of a split
graph do, or one whose code takes and returns nested structures, as an exported graph does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxpool.torch_compat.inductor import aot

__all__ = ["as_from_dynamo"]

Call = Callable[..., Any]
#: Converts a callable for the changed graph to a callable for the original graph.
Restore = Callable[[Call], Call]


def as_from_dynamo(gm: Any, inputs: Sequence[Any]) -> tuple[Any, Sequence[Any], Restore]:
    """Return a graph that takes and returns flat values, its inputs, and a `Restore`. `gm` is not changed."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm, inputs, _as_it_is
    codegen: Any = gm.graph._codegen
    nested = isinstance(codegen, torch.fx.graph._PyTreeCodeGen)
    returned = _output(gm).args[0]
    flat = _is_flat(returned)
    if flat and not nested:
        return gm, inputs, _as_it_is
    gm = aot.copy_of(gm)
    restores: list[Restore] = []
    if not flat:
        restores.append(_with_flat_outputs(gm))
    if nested:
        gm.graph.set_codegen(torch.fx.graph.CodeGen())
        inputs = codegen.process_inputs(*inputs)
        restores.append(lambda call: _of_structures(call, codegen))
    gm.recompile()

    def restored(call: Call) -> Call:
        for restore in restores:
            call = restore(call)
        return call

    return gm, inputs, restored


def _as_it_is(call: Call) -> Call:
    return call


def _is_flat(returned: Any) -> bool:
    """Return whether a graph returns flat values: a sequence, or the several results of one operator."""
    if isinstance(returned, torch.fx.Node):
        results = getattr(getattr(returned.target, "_schema", None), "returns", ())
        return len(results) > 1 and all(str(result.type) == "Tensor" for result in results)
    return isinstance(returned, (tuple, list)) and all(map(_is_leaf, returned))


def _is_leaf(value: Any) -> bool:
    return not isinstance(value, (tuple, list, dict, slice))


def _output(gm: torch.fx.GraphModule) -> torch.fx.Node:
    return next(iter(reversed(gm.graph.nodes)))


def _with_flat_outputs(gm: torch.fx.GraphModule) -> Restore:
    output = _output(gm)
    leaves, spec = pytree.tree_flatten(_plain(output.args[0]))
    output.args = (tuple(leaves),)

    def restore(call: Call) -> Call:
        return lambda *args: pytree.tree_unflatten(list(call(*args)), spec)

    return restore


def _plain(returned: Any) -> Any:
    """Return a graph's output as plain lists and dictionaries; a node's own containers are immutable."""
    if isinstance(returned, list):
        return [_plain(one) for one in returned]
    if isinstance(returned, dict):
        return {key: _plain(one) for key, one in returned.items()}
    if not isinstance(returned, tuple):
        return returned
    values = map(_plain, returned)
    return type(returned)(*values) if hasattr(returned, "_fields") else tuple(values)


def _of_structures(call: Call, codegen: Any) -> Call:
    return lambda *args: codegen.process_outputs(call(*codegen.process_inputs(*args)))
