"""The same function under stock Inductor and under fxpool, side by side in one process that lowers for stock alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _pytree as pytree

import fxpool
from fxpool import counters

__all__ = ["BesideStock", "Seen", "counted", "layout"]

#: Calls something compiled; returns what is to be compared.
Step = Callable[[Callable[..., Any]], Any]
#: Compiles for a back end of this name.
Compile = Callable[[str], Callable[..., Any]]


def layout(value: Any) -> Any:
    """Return sizes, strides, offset and type for each tensor of a structure, and what else is in it."""
    return pytree.tree_map(
        lambda x: (
            (tuple(x.shape), x.stride(), x.storage_offset(), x.dtype, x.requires_grad)
            if isinstance(x, torch.Tensor)
            else x
        ),
        value,
    )


class Seen:
    """What came of one compile: the result, the warnings, and how often fxpool did what."""

    def __init__(self, value: Any, warned: list[str], counts: dict[str, int]) -> None:
        self.value, self.warned, self.counts = value, warned, counts


def counted() -> dict[str, int]:
    """Return how many graphs workers compiled, this process compiled, and the cache had."""
    found = counters.snapshot()
    return {**found["compiles"], "hits": found["hits"]}


class BesideStock:
    """Runs steps as in a new process; whatever lowers a graph here for fxpool fails."""

    def __init__(self) -> None:
        from torch._inductor.graph import GraphLowering

        self._class: Any = GraphLowering
        self._original = GraphLowering.__init__
        self._allowed = False

    @contextmanager
    def in_force(self) -> Iterator[None]:
        original = self._original

        def watched(graph: Any, *args: Any, **kwargs: Any) -> None:
            assert self._allowed, "lowered in the user's process"
            original(graph, *args, **kwargs)

        self._class.__init__ = watched
        try:
            yield
        finally:
            self._class.__init__ = original

    def stock(self, compile_: Compile, step: Step) -> Seen:
        self._allowed = True
        try:
            return self._seen(compile_, step, "inductor")
        finally:
            self._allowed = False

    def fxpool(self, compile_: Compile, step: Step, *, lowered_here: bool = False) -> Seen:
        self._allowed = lowered_here
        try:
            return self._seen(compile_, step, "fxpool")
        finally:
            self._allowed = False

    def _seen(self, compile_: Compile, step: Step, backend: str) -> Seen:
        torch._dynamo.reset()
        before = counted()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            value = step(compile_(backend))
        after = counted()
        texts = [str(one.message) for one in warned]
        return Seen(value, texts, {name: after[name] - before[name] for name in after})

    def agree(self, compile_: Compile, step: Step, *, graphs: int = 1) -> tuple[Seen, Seen, Seen]:
        """Compare a miss and a hit with stock Inductor, values and layouts; workers compile `graphs` of them."""
        stock = self.stock(compile_, step)
        miss, hit = self.fxpool(compile_, step), self.fxpool(compile_, step)
        for one in (miss, hit):
            torch.testing.assert_close(one.value, stock.value, rtol=1e-4, atol=1e-4)
            assert layout(one.value) == layout(stock.value)
        assert miss.counts == {"worker": graphs, "in_process": 0, "hits": 0}, fxpool.stats()["graphs"]
        assert hit.counts == {"worker": 0, "in_process": 0, "hits": graphs}, fxpool.stats()["graphs"]
        return stock, miss, hit
