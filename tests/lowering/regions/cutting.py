"""Models of equal blocks, and the pieces that their graphs are cut into, without compiling them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from fxpool.lowering.regions import cut as regions_cut
from fxpool.lowering.regions import plan
from fxpool.lowering.regions.cut_points import TracedGraph, UncuttableError
from fxpool.lowering.regions.pieces import Piece

WIDTH = 16


class Block(nn.Module):
    """A residual block; `scale` is a number of the program's."""

    def __init__(self, drop: float = 0.0, scale: float = 1.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(drop)
        self.activation: Callable[[torch.Tensor], torch.Tensor] = nn.functional.gelu
        self.scale = scale

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.down(self.activation(self.up(self.norm(x))))) * self.scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


class Stack(nn.Module):
    """Four blocks between two layers."""

    def __init__(self, block: Callable[[], nn.Module] = Block, count: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(count))
        self.last = nn.Linear(WIDTH, WIDTH)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.body(self.first(x)))


@contextmanager
def small_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Cut models that are too small for it to be worth anything."""
    with monkeypatch.context() as patch:
        patch.setattr(plan.repeated, "__defaults__", (4,))
        patch.setattr(plan, "is_worth_it", lambda *_: True)
        yield


class Outcome:
    """What became of one graph: its pieces and their names, or why it stays whole."""

    def __init__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> None:
        self.pieces: list[Piece] = []
        self.names: list[str] = []
        self.whole = ""
        try:
            made = regions_cut.Cut(TracedGraph(gm, inputs))
            self.pieces, self.names = made.pieces, made.names
        except UncuttableError as error:
            self.whole = error.reason

    def shared(self) -> set[str]:
        """The names of pieces that are there more than once."""
        return {name for name in self.names if self.names.count(name) > 1}

    def of_blocks(self) -> list[str]:
        """The names of the four largest pieces, in order: those of the blocks."""
        largest = sorted(range(len(self.pieces)), key=lambda n: -len(self.pieces[n].interval.nodes))[:4]
        return [self.names[n] for n in sorted(largest)]


def cut(model: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Outcome:
    """Cut the one graph of `model`, which runs eagerly."""
    made: list[Outcome] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        made.append(Outcome(gm, example_inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(model, backend=backend, dynamic=dynamic)(*inputs)
    (only,) = made
    return only
