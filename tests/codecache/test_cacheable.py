"""What may be kept: a graph per rule, and torch's own rules for higher-order operators beside ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._higher_order_ops
from torch import fx
from torch._inductor import config as inductor_config

from fxpool.codecache.key import cacheable
from fxpool.codecache.key.cacheable import Bypass


def graph_of(
    target: Any, *, op: str = "call_function", meta: dict[str, Any] | None = None, arguments: int = 1
) -> fx.GraphModule:
    """A graph that calls one thing, on an input that is known to be a tensor, as often as `arguments` says."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2)
    node = graph.create_node(op, target, (x,) * arguments)
    node.meta.update(meta or {})
    graph.output(node)
    return fx.GraphModule(torch.nn.Module(), graph)


def refusal(gm: fx.GraphModule) -> str | None:
    try:
        cacheable.check_graph(gm)
    except Bypass as bypass:
        return bypass.reason
    return None


def of_the_program(x: Any) -> Any:
    return x


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (torch.ops.aten.sin.default, None),
        (torch.ops.aten.sin, None),
        (torch.sin, None),
        (torch.nn.functional.gelu, None),
        (torch.linalg.norm, None),
        (len, None),
        (of_the_program, "function"),
        (torch.utils._pytree.tree_flatten, "function"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_functions(target: Any, reason: str | None) -> None:
    assert refusal(graph_of(target)) == reason


def test_a_function_that_the_user_vouches_for() -> None:
    name = f"{__name__}.of_the_program"
    with inductor_config.patch(unsafe_marked_cacheable_functions={name: "version 1"}):
        assert refusal(graph_of(of_the_program)) is None
    wrapped = {"is_wrapped": True, "user_cache_hash": "version 1"}
    assert refusal(graph_of(of_the_program, meta=wrapped)) is None
    assert refusal(graph_of(of_the_program, meta={"is_wrapped": True})) == "function"


def test_a_method_of_a_tensor_and_of_something_unknown() -> None:
    gm = graph_of("sin", op="call_method")
    assert refusal(gm) is None
    for node in gm.graph.nodes:
        node.meta.clear()
    assert refusal(gm) == "method_of_unknown"


def test_a_checkpoint_counts_by_the_hash_of_its_context() -> None:
    def context() -> None:
        pass

    gm = graph_of(torch.sin)
    gm.meta["_checkpoint_context_fn"] = context
    assert refusal(gm) == "checkpoint_context_fn"
    context.cache_hash = "version 1"  # type: ignore[attr-defined]
    assert refusal(gm) is None


def test_graphs_within_a_graph_are_looked_into() -> None:
    outer, inner = graph_of(torch.sin), graph_of(of_the_program)
    assert refusal(outer) is None
    outer.add_module("body", inner)
    assert refusal(outer) == "function"


def _operators() -> list[Any]:
    found = torch._ops._higher_order_ops
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("operator", _operators(), ids=lambda operator: operator.name())
def test_higher_order_operators_as_torch_decides(operator: Any) -> None:
    """A graph with one is kept, or it is not, as by Inductor's cache; some end with autograd.

    With the exception of ``torch.autograd.Function``, whose graphs are in the key.
    """
    from torch._inductor.codecache import BypassFxGraphCache, FxGraphCache

    gm = graph_of(operator, arguments=4)  # some need several to be printed
    try:
        FxGraphCache._check_for_hop(gm)
        kept = True
    except BypassFxGraphCache:
        kept = False
    reason = refusal(gm)
    assert (reason is None) == (kept or operator.name() == "autograd_function_apply")
    assert reason in (None, "higher_order_operator", "higher_order_operator_of_autograd")
    assert (reason in cacheable.OF_DYNAMOS_GRAPH) == (operator.name() in _END_WITH_AUTOGRAD and not kept)


#: AOTAutograd puts what they do into their place.
_END_WITH_AUTOGRAD = ("flat_apply", "out_dtype", "strict_mode", "wrap")


def test_caches_that_are_off() -> None:
    switches: list[Callable[[], Any]] = [
        lambda: inductor_config.patch(force_disable_caches=True),
        lambda: torch.compiler.config.patch(force_disable_caches=True),
    ]
    for switch in switches:
        with switch(), pytest.raises(Bypass, match="caches_disabled"):
            cacheable.check(graph_of(torch.sin), None)
    cacheable.check(graph_of(torch.sin), None)
