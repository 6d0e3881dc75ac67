"""Composes the callables of a graph's pieces into straight-line generated code.

    def composed(a0, a1, ...):
        v0, = f0([a0, a1])
        del a0                        # after its last use
        v1, v2, = f1([v0, a1])
        return (v1, v2)

It uses locals instead of dictionaries, and runs nothing per call besides the pieces. A piece takes its inputs in a list
that it may empty, to free memory early; a value is deleted here once the last piece that uses it has it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node
from torch.fx.node import map_aggregate

from fxpool.lowering.regions.cut_points import Interval, TracedGraph, UncuttableError

__all__ = ["Step", "compose", "run", "source"]

#: A piece to run: its interval, its callable, and whether that takes its inputs in a list (or one by one).
Step = tuple[Interval, Callable[..., Any], bool]


def compose(graph: TracedGraph, steps: Sequence[Step], label: str) -> Callable[..., Any]:
    """Return the callable for the whole graph, to be called with its inputs one by one.

    Raises UncuttableError: the graph's output contains a value that has no source text.
    """
    text = source(graph, [interval for interval, _, _ in steps], [boxed for _, _, boxed in steps])
    space: dict[str, Any] = {f"f{number}": call for number, (_, call, _) in enumerate(steps)}
    for number, node in enumerate(graph.attributes):
        if node not in graph.graph_nodes:
            space[f"c{number}"] = graph.attribute(node)
    return run(text, label, space)


def run(text: str, label: str, space: dict[str, Any]) -> Callable[..., Any]:
    """Return the callable that `text` of `source` defines; `space` has the names that it uses."""
    name = f"<fxpool: pieces of {label}>"
    exec(compile(text, name, "exec"), space)
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    composed: Callable[..., Any] = space["composed"]
    return composed


def source(graph: TracedGraph, intervals: Sequence[Interval], boxed: Sequence[bool]) -> str:
    """Return the code of `compose`, for the pieces ``f0``, ``f1``, ... Errors as there."""
    names = {node: f"a{number}" for number, node in enumerate(graph.placeholders)}
    names |= {node: f"c{number}" for number, node in enumerate(graph.attributes)}
    constant = set(graph.attributes)
    last_use = {node: number for number, interval in enumerate(intervals) for node in interval.inputs}
    last_use |= dict.fromkeys(graph.output.all_input_nodes, len(intervals))
    lines = [f"def composed({', '.join(names[node] for node in graph.placeholders)}):"]
    values = 0
    for number, interval in enumerate(intervals):
        for node in interval.outputs:
            names[node] = f"v{values}"
            values += 1
        given = ", ".join(names[node] for node in interval.inputs)
        call = f"f{number}([{given}])" if boxed[number] else f"f{number}({given})"
        targets = "".join(f"{names[node]}, " for node in interval.outputs)
        lines.append(f"    {targets and targets + '= '}{call}")
        over = [node for node in interval.inputs if last_use[node] == number and node not in constant]
        over += [node for node in interval.outputs if node not in last_use]
        if over:
            lines.append(f"    del {', '.join(names[node] for node in over)}")
    (result,) = graph.output.args
    shown = map_aggregate(result, lambda value: _Named(names[value]) if isinstance(value, Node) else value)
    lines.append(f"    return {_text(shown)}")
    return "\n".join(lines) + "\n"


class _Named(str):
    """The name of a local, as opposed to a string."""


def _text(value: Any) -> str:
    if isinstance(value, _Named):
        return str(value)
    if isinstance(value, (tuple, list)):
        return "(" + "".join(f"{_text(part)}, " for part in value) + ")"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return f"float({value!r})" if value == value and abs(value) != float("inf") else f"float({str(value)!r})"
    raise UncuttableError("output", type(value).__name__)
