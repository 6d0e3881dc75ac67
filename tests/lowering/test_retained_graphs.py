"""Backward passes that run again: a worker lowered them without knowing that the program would retain the graph.

Inductor's code of a backward overwrites tensors that autograd saved, where nothing else uses them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from beside_stock import BesideStock, Seen, layout
from processes import HERE, run_python
from tiers import first_tier
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxpool

WIDTH = 32


class Head(nn.Module):
    """A small network whose backward overwrites results of its first layers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(WIDTH, 64), nn.Linear(64, 64), nn.Linear(64, WIDTH)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.second(self.norm(nn.functional.gelu(self.first(x)))).softmax(-1)
        made: torch.Tensor = self.third(scores).sigmoid()
        return made


class Sliced(Head):
    """Saves a part of a result, whose strides are those of the whole."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([x.sigmoid(), x.tanh()], -1)
        return super().forward((wide.exp() * 2)[:, :WIDTH])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x[None])[0].tanh()
        return made


class Recomputed(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return made


class Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        made = (x @ weight).softmax(-1)
        ctx.save_for_backward(made, weight, x)
        return made.exp()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        made, weight, x = ctx.saved_tensors
        inner = gradient * made.exp() * made.sin()
        return inner @ weight.t(), x.t() @ inner


class Own(Head):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.third(Scores.apply(self.first(x).sigmoid(), self.second.weight)).sigmoid()
        return made


MODELS: dict[str, type[nn.Module]] = {
    "linear layers": Head,
    "a part of a result": Sliced,
    "attention": Attention,
    "recomputed": Recomputed,
    "autograd.Function": Own,
}


def compiled(model: type[nn.Module], **settings: Any) -> Callable[[str], Any]:
    """Return what compiles a new model for a back end; `settings` are of ``torch.compile``."""

    def compile_(backend: str) -> Any:
        options = settings.get("options") if backend == "fxpool" else None
        return torch.compile(model(), backend=backend, **{**settings, "options": options})

    return compile_


def leaves(call: Any) -> tuple[torch.Tensor, list[torch.Tensor]]:
    call.zero_grad()
    x = torch.linspace(-2, 2, 6 * WIDTH).sin().view(6, WIDTH).requires_grad_()
    return x, [x, *call.parameters()]


def once(call: Any) -> list[torch.Tensor]:
    """Result and gradients of a backward that does not retain the graph."""
    x, wanted = leaves(call)
    out = call(x)
    out.square().sum().backward()
    return [out.detach(), *(one.grad for one in wanted if one.grad is not None)]


def repeatedly(call: Any) -> list[torch.Tensor]:
    """Result and gradients of each of four backward passes through a graph, which have to be equal to the last bit."""
    x, wanted = leaves(call)
    out = call(x)
    loss = out.square().sum()
    passes = [torch.autograd.grad(loss, wanted, retain_graph=True, allow_unused=True) for _ in range(2)]
    loss.backward(retain_graph=True)
    passes.append(tuple(one.grad for one in wanted))
    for one in wanted:
        one.grad = None
    loss.backward()
    passes.append(tuple(one.grad for one in wanted))
    for other in passes[1:]:
        torch.testing.assert_close(other, passes[0], rtol=0, atol=0)
    return [out.detach(), *(one for one in passes[0] if one is not None)]


def cold_stock(judge: BesideStock, compile_: Callable[[str], Any], step: Callable[..., Any]) -> Seen:
    """Run a step under stock Inductor without caches, whose entries are of graphs that were retained, or were not."""
    with torch.compiler.config.patch(force_disable_caches=True):
        return judge.stock(compile_, step)


def agree(judge: BesideStock, compile_: Callable[[str], Any], step: Callable[..., Any]) -> Seen:
    """Compare a miss and a hit with cold stock Inductor, to the last bit; return stock's."""
    stock = cold_stock(judge, compile_, step)
    miss, hit = judge.fxpool(compile_, step), judge.fxpool(compile_, step)
    assert miss.counts == {"worker": 1, "in_process": 0, "hits": 0}, fxpool.stats()["graphs"]
    assert hit.counts == {"worker": 0, "in_process": 0, "hits": 1}, fxpool.stats()["graphs"]
    for other in (miss, hit):
        torch.testing.assert_close(other.value, stock.value, rtol=0, atol=0)
        assert layout(other.value) == layout(stock.value)
    return stock


@pytest.mark.parametrize("model", first_tier(MODELS, "linear layers", "a part of a result"))
def test_gradients_of_a_retained_graph_are_stocks_to_the_last_bit(beside_stock: BesideStock, model: str) -> None:
    stock = agree(beside_stock, compiled(MODELS[model]), repeatedly)
    plain = beside_stock.fxpool(compiled(MODELS[model]), once)
    assert plain.counts["hits"] == 1
    torch.testing.assert_close(plain.value, stock.value, rtol=0, atol=0)


def test_a_graph_may_be_retained_after_another_was_not(beside_stock: BesideStock) -> None:
    """Stock has lowered the backward by then, and refuses."""

    def later(call: Any) -> Any:
        return once(call), repeatedly(call)

    for _ in ("miss", "hit"):
        first, second = beside_stock.fxpool(compiled(Head), later).value
        torch.testing.assert_close(first[0], second[0], rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="retain_graph=False"):
        cold_stock(beside_stock, compiled(Head), later)


@pytest.mark.slow
def test_a_gradient_with_a_graph_is_as_by_stock(beside_stock: BesideStock) -> None:
    def step(call: Any) -> Any:
        x, wanted = leaves(call)
        made = torch.autograd.grad(call(x).square().sum(), wanted, create_graph=True)
        with pytest.raises(RuntimeError, match="double backward") as caught:
            torch.autograd.grad(sum((one.sum() for one in made), torch.zeros(())), wanted)
        assert all(one.requires_grad for one in made) and "does not currently support" in str(caught.value)
        return [one.detach() for one in made]

    agree(beside_stock, compiled(Head), step)


@pytest.mark.slow
def test_sizes_that_are_symbols(beside_stock: BesideStock) -> None:
    """Stock lowers such a backward with its forward if it saves a size, and refuses, as it does for all of these."""
    made = beside_stock.fxpool(compiled(Head, dynamic=True), repeatedly)
    assert made.counts["worker"] >= 1
    stock = cold_stock(beside_stock, compiled(Head, dynamic=True), once)
    torch.testing.assert_close(made.value, stock.value, rtol=1e-4, atol=1e-5)
    with pytest.raises(RuntimeError, match="retain_graph=False"):
        cold_stock(beside_stock, compiled(Head, dynamic=True), repeatedly)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"triton.cudagraphs": True},
        {"regions": True},
        {"cpp_wrapper": True},
        {"mode": "serialize"},
        {"mode": "normal"},
        {"mode": "async+subprocess"},
        {"mode": "progressive+subprocess"},
        {"mode": "progressive+async+subprocess"},
    ],
    ids=str,
)
def test_modes(shared_pool: Path, cache: Path, options: dict[str, Any]) -> None:
    expected = repeatedly(Head())
    for _ in ("miss", "hit"):
        torch._dynamo.reset()
        call = compiled(Head, options=options)("fxpool")
        for _ in ("before a swap", "after it"):
            torch.testing.assert_close(repeatedly(call), expected, rtol=1e-4, atol=1e-5)
            fxpool.wait(200)
    assert not fxpool.stats()["fallbacks"]


PROGRAM = """
import json, sys
import torch
import fxpool
from fxpool.bench.witness import counting
lowered = counting()
from test_retained_graphs import Head, repeatedly
made = repeatedly(torch.compile(Head(), backend="fxpool"))
torch.testing.assert_close(made, repeatedly(Head()), rtol=1e-4, atol=1e-5)
stats = fxpool.stats()
print(json.dumps({"sum": float(sum(one.double().sum() for one in made)), "lowered": lowered.count,
                  **{name: stats[name] for name in ("hits", "misses", "frames")}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("frames", ["off", "on"])
def test_the_next_process(shared_pool: Path, cache: Path, frames: str) -> None:
    def run() -> dict[str, Any]:
        paths = f"{HERE}:{HERE.parent}"
        found: dict[str, Any] = json.loads(
            run_python(["-c", PROGRAM], FXPOOL_FRAMES=frames, PYTHONPATH=paths).splitlines()[-1]
        )
        return found

    first, second = run(), run()
    assert first["sum"] == second["sum"] and first["lowered"] == second["lowered"] == 0
    assert (first["misses"], second["misses"]) == (1, 0)
    assert second["frames"].get("served", 0) if frames == "on" else second["hits"] == 1
