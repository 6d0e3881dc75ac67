"""CUDA graphs where none can be: on a CPU stock Inductor skips them with a word in its counters, and so does a hit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from beside_stock import BesideStock, Seen
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor.output_code import CompiledFxGraph


@contextmanager
def watched() -> Iterator[list[dict[str, Any]]]:
    """What each graph is finished with before it is called: torch's own last step, on a compile and on a load."""
    found: list[dict[str, Any]] = []
    original = CompiledFxGraph.post_compile

    def post_compile(graph: Any, inputs: Any, constants: Any, arguments: Any) -> None:
        wanted = bool(arguments["cudagraphs"])
        original(graph, inputs, constants, arguments)
        found.append(
            {
                "backward": arguments["is_backward"],
                "static": sorted(graph.fx_kwargs.get("static_input_idxs") or ()),
                "written": sorted(graph.mutated_input_idxs),
                "wanted": wanted,
                "left": bool(arguments["cudagraphs"]),
                "why": graph.disabled_cudagraphs_reason,
            }
        )

    CompiledFxGraph.post_compile = post_compile
    try:
        yield found
    finally:
        CompiledFxGraph.post_compile = original


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        self.seen.add_(x.detach().sum(0))
        return self.linear(x).relu() * y


def _compile(backend: str) -> Any:
    options = {"triton.cudagraphs": True}
    if backend == "inductor":
        return torch.compile(Net(), mode="reduce-overhead")
    return torch.compile(Net(), backend=backend, options=options)


def _step(call: Any) -> Any:
    """Results and gradients of two calls; what graphs were finished with; what Inductor counts of CUDA graphs."""
    counters.clear()
    results: list[Any] = []
    with watched() as finished:
        for n in (1.0, 2.0):
            x = torch.full((4, 8), n, requires_grad=True)
            out = call(x, torch.full((4, 8), 3.0))
            out.sum().backward()
            results += [out.detach(), x.grad]
    counted = {name: count for name, count in counters["inductor"].items() if "cudagraph" in name}
    facts = sorted(finished, key=lambda one: bool(one["backward"]))
    # A graph that is compiled beside one that is loaded has another state.
    all_loaded = counters["inductor"]["fxgraph_cache_hit"] >= len(facts)
    loaded = bool(counters["aot_autograd"]["autograd_cache_hit"]) or all_loaded
    return {"results": results, "seen": call.seen.clone(), "finished": facts, "counted": counted, "loaded": loaded}


def _eager() -> list[Any]:
    model, expected = Net(), list[Any]()
    for n in (1.0, 2.0):
        x = torch.full((4, 8), n, requires_grad=True)
        out = model(x, torch.full((4, 8), 3.0))
        out.sum().backward()
        expected += [out.detach(), x.grad]
    return expected


def _loaded_by_stock(beside_stock: BesideStock) -> Seen:
    """Return what stock Inductor gives when it loads its graphs; its own cache missed a second time once, in CI."""
    for _ in range(4):
        stock = beside_stock.stock(_compile, _step)
        if stock.value["loaded"]:
            return stock
    pytest.fail(f"stock Inductor finds none of its graphs again: {dict(counters['inductor'])}")


def _as_stock(beside_stock: BesideStock, graphs: int) -> Seen:
    """Compare fxpool, whose workers compile `graphs` graphs, with stock Inductor that loads its graphs."""
    stock = _loaded_by_stock(beside_stock)
    for hits in (0, graphs):
        found = beside_stock.fxpool(_compile, _step)
        assert found.counts == {"worker": graphs - hits, "in_process": 0, "hits": hits}
        assert found.value["finished"] == stock.value["finished"]
        torch.testing.assert_close(found.value["seen"], stock.value["seen"])
        torch.testing.assert_close(found.value["results"], _eager())
    assert found.value["counted"] == stock.value["counted"]
    return stock


def test_a_cpu_has_none_and_nothing_else_changes(beside_stock: BesideStock) -> None:
    stock = _as_stock(beside_stock, 1)
    assert stock.value["counted"].get("cudagraph_skips")
    forward, backward = stock.value["finished"]
    assert (forward["wanted"], forward["left"], backward["wanted"]) == (True, False, False), "the backward follows"
    assert forward["static"] and backward["static"] and forward["written"] == [0]


def test_graphs_after_autograd_are_told_too(beside_stock: BesideStock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which inputs stay where they are is told to workers and to who loads, as AOTAutograd tells Inductor."""
    # What takes a graph to that level: AOTAutograd would ask the other ranks.
    monkeypatch.setattr("fxpool.torch_compat.inductor.aot.asks_other_ranks", lambda: True)
    with torch._functorch.config.patch(enable_autograd_cache=False):
        _as_stock(beside_stock, 2)
