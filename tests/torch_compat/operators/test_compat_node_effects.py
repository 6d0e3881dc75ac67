"""`node_effects` says what a node of a Dynamo graph writes to and what state it sets: a graph is cut by that."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from fxpool.torch_compat.operators import node_effects

aten = torch.ops.aten


def node_of(target: Any, *args: Any, op: str = "call_function", **kwargs: Any) -> tuple[Node, dict[str, Node]]:
    """A node that calls `target`; texts that begin with % among its arguments are inputs of the graph."""
    graph = Graph()
    inputs: dict[str, Node] = {}

    def given(value: Any) -> Any:
        if isinstance(value, str) and value.startswith("%"):
            return inputs.setdefault(value[1:], graph.placeholder(value[1:]))
        if isinstance(value, (list, tuple)):
            return type(value)(map(given, value))
        return value

    args, kwargs = given(args), {name: given(value) for name, value in kwargs.items()}
    return graph.create_node(op, target, args, kwargs), inputs


def written(target: Any, *args: Any, **kwargs: Any) -> list[str]:
    node, _ = node_of(target, *args, **kwargs)
    return sorted({str(one) for one in node_effects.written_by(node)})


class Elsewhere:
    @staticmethod
    def call(x: Any, y: Any) -> None: ...


@pytest.mark.parametrize(
    ("expected", "target", "args", "kwargs"),
    [
        ([], torch.add, ("%x", "%y"), {}),
        (["o"], torch.add, ("%x", "%y"), {"out": "%o"}),
        ([], operator.add, ("%x", "%y"), {}),
        (["x"], operator.iadd, ("%x", "%y"), {}),
        (["x"], operator.setitem, ("%x", 0, "%y"), {}),
        ([], operator.getitem, ("%x", 0), {}),
        (["x"], torch.relu_, ("%x",), {}),
        (["x"], aten.add_.Tensor, ("%x", "%y"), {}),
        (["x"], aten.add_, ("%x", "%y"), {}),
        ([], aten.add.Tensor, ("%x", "%y"), {}),
        (["o"], aten.add.out, ("%x", "%y"), {"out": "%o"}),
        (["a", "b"], aten._foreach_add_.List, (["%a", "%b"], ["%c", "%d"]), {}),
        ([], F.relu, ("%x",), {}),
        (["x"], F.relu, ("%x",), {"inplace": True}),
        (["x"], F.dropout, ("%x",), {"inplace": True}),
        (["mean", "var"], F.batch_norm, ("%x", "%mean", "%var"), {"training": True}),
        ([], F.batch_norm, ("%x", "%mean", "%var"), {}),
        (["mean", "var"], F.instance_norm, ("%x", "%mean", "%var"), {}),
        ([], F.instance_norm, ("%x", "%mean", "%var"), {"use_input_stats": False}),
        (["mean", "var", "w", "z"], torch.batch_norm, ("%x", "%w", "%z", "%mean", "%var", True, 0.1, 1e-5, True), {}),
        (["table"], F.embedding, ("%x", "%table"), {"max_norm": 1.0}),
        ([], F.embedding, ("%x", "%table"), {}),
        ([], len, ("%x",), {}),
        (["x", "y"], Elsewhere.call, ("%x", "%y"), {}),  # not known, so anything
    ],
)
def test_what_a_call_writes_to(expected: list[str], target: Any, args: Any, kwargs: Any) -> None:
    assert written(target, *args, **kwargs) == expected


@pytest.mark.parametrize(
    ("expected", "method"),
    [(["x"], "add_"), ([], "add"), (["x"], "__setitem__"), (["x"], "__iadd__"), ([], "__invert__"), ([], "__add__")],
)
def test_what_a_method_writes_to(expected: list[str], method: str) -> None:
    assert written(method, "%x", "%y", op="call_method") == expected
    assert written(method, "%x", "%y", op="call_method", out="%z") == sorted([*expected, "z"])


def test_nodes_are_found_in_nested_arguments() -> None:
    graph = Graph()
    a, b, c, d = map(graph.placeholder, "abcd")
    assert list(node_effects.nodes_in((a, [b, 1], {"k": c}, slice(None, d)))) == [a, b, c, d]


def traced(function: Any, *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph that Dynamo makes of a function."""
    seen: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        seen.append(gm)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend, fullgraph=True)(*inputs)
    torch._dynamo.reset()
    (gm,) = seen
    return gm


def named(nodes: list[str]) -> list[str]:
    return [name.rpartition(".")[2] for name in nodes if name]


def test_a_branch_that_writes_to_an_input_counts_for_the_whole() -> None:
    def pure(x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    gm = traced(pure, torch.ones(3))
    (cond,) = [node for node in gm.graph.nodes if str(node.target) == "cond"]
    bodies = list(node_effects.bodies(cond))
    assert len(bodies) == 2 and node_effects.written_by(cond) == []
    (target, *_) = [n for n in bodies[0].graph.nodes if n.op in ("call_function", "call_method")]
    (placeholder, *_) = bodies[0].graph.find_nodes(op="placeholder")
    with bodies[0].graph.inserting_before(target):
        bodies[0].graph.call_method("add_", (placeholder, 1))
    tensors = [n for n in cond.all_input_nodes if isinstance(node_effects.value_of(n), torch.Tensor)]
    assert node_effects.written_by(cond) == tensors != []


def test_autocast_is_entered_and_left() -> None:
    def mixed(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ x
        return y.float() + 1

    gm = traced(mixed, torch.ones(2, 2))
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    states = named([node_effects.state_set_by(node) for node in calls])
    assert states == ["_enter_autocast", "_exit_autocast"]
    (begin,) = filter(node_effects.enters, calls)
    (end,) = filter(node_effects.leaves, calls)
    assert end.args[0] is begin
    assert all(node_effects.gradients_set_by(node) is None for node in calls)


def test_gradients_are_switched_off_and_on() -> None:
    def partly(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        return x + y

    gm = traced(partly, torch.ones(2, requires_grad=True))
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert [v for node in calls if (v := node_effects.gradients_set_by(node)) is not None] == [False, True]
    states = [node_effects.state_set_by(node) for node in calls]
    assert named(states) == ["_set_grad_enabled"] * 2


def test_a_transform_sets_state() -> None:
    def mapped(x: torch.Tensor) -> Any:
        return torch.func.vmap(torch.sin)(x)

    gm = traced(mapped, torch.ones(2, 3))
    states = [node_effects.state_set_by(node) for node in gm.graph.nodes]
    assert any("vmap" in state for state in states)


def test_values_and_their_memory() -> None:
    def views(x: torch.Tensor) -> Any:
        return x.t(), x * 2

    gm = traced(views, torch.ones(2, 3))
    (x,) = gm.graph.find_nodes(op="placeholder")
    view, product = (node for node in gm.graph.nodes if node.op in ("call_function", "call_method"))
    memory = [set(node_effects.storages_of(node_effects.value_of(node))) for node in (x, view, product)]
    assert memory[0] == memory[1] != memory[2] and len(memory[0]) == 1
    assert tuple(node_effects.value_of(view).shape) == (3, 2)
    assert list(node_effects.storages_of((3, None))) == []
    bare, _ = node_of(torch.neg, "%x")
    assert node_effects.value_of(bare) is None
