"""Graphs that another back end has split: compiled side by side in workers, kept, and written into files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpool

pytestmark = pytest.mark.usefixtures("cache", "nothing_lowered_here")

W = torch.randn(8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _same_numbers_in_each_run() -> None:
    torch.manual_seed(0)


class Split:
    """A back end that compiles each matrix product and what follows it as a graph of its own, as servers do."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.inputs: list[list[Any]] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch.fx.passes.split_module import split_module

        number = -1

        def part(node: torch.fx.Node) -> int:
            nonlocal number
            number += node.target is torch.matmul or "matmul" in node.name
            return max(number, 0)

        split = split_module(gm, gm, part)

        class Compile(torch.fx.Interpreter):
            def call_module(this, target: Any, args: Any, kwargs: Any) -> Any:
                self.made.append(fxpool.standalone_compile(getattr(split, target), list(args)))
                self.inputs.append(list(args))
                return super().call_module(target, args, kwargs)

        context = torch._guards.TracingContext.get()
        assert context.fake_mode is not None
        fakes = [context.fake_mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        with context.fake_mode, torch.no_grad():
            Compile(split).run(*fakes)
        names = [name for name, _ in split.named_children()]
        for name, made in zip(names, self.made, strict=True):
            delattr(split, name)
            setattr(split, name, _Call(made))
        return split.forward


class _Call(torch.nn.Module):
    def __init__(self, made: Any) -> None:
        super().__init__()
        self.made = made

    def forward(self, *inputs: Any) -> Any:
        return self.made(*inputs)


def model(x: torch.Tensor) -> torch.Tensor:
    for scale in (1.0, 2.0, 3.0):
        x = torch.matmul(x, W).sin() * scale
    return x


def test_pieces_compile_side_by_side_and_are_found_again() -> None:
    x = torch.randn(4, 8)
    split = Split()
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(model, backend=split)(x), model(x))
        assert len(split.made) == 3
        assert fxpool.stats()["compiles"] == {"worker": 3, "in_process": 0}
        torch._dynamo.reset()
        torch.testing.assert_close(torch.compile(model, backend=Split())(x), model(x))
    assert fxpool.stats()["hits"] == 3
    assert fxpool.stats()["compiles"]["worker"] == 3


def traced(function: Callable[..., Any], *inputs: torch.Tensor) -> torch.fx.GraphModule:
    """The graph that Dynamo makes of a function."""
    found: list[torch.fx.GraphModule] = []

    def keep(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        found.append(gm)
        return gm.forward

    torch._dynamo.reset()  # sizes that differ from an earlier test's are not to become symbols
    torch.compile(function, backend=keep, fullgraph=True)(*inputs)
    return found[0]


def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (x @ w).relu(), x.sum()


@pytest.mark.slow
def test_what_is_saved_is_read_by_torch(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    gm = traced(two, x, W)
    made = fxpool.standalone_compile(gm, [x, W])
    path = str(tmp_path / "piece")
    made.save(path=path)
    fxpool.close()
    loaded = torch._inductor.CompiledArtifact.load(path=path)
    for got, expected in zip(loaded(x, W), two(x, W), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_gradients_go_through_a_piece() -> None:
    x, w = torch.randn(4, 8), W.clone().requires_grad_()
    made = fxpool.standalone_compile(traced(two, x, w), [x, w])
    (got,) = torch.autograd.grad(made(x, w)[0].sum(), w)
    (expected,) = torch.autograd.grad(two(x, w)[0].sum(), w)
    torch.testing.assert_close(got, expected)


@pytest.mark.slow
def test_sizes_of_the_graph_stay_symbols() -> None:
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0)
    gm = traced(two, x, W)
    placeholders = [node.meta["example_value"] for node in gm.graph.nodes if node.op == "placeholder"]
    made = fxpool.standalone_compile(gm, placeholders)
    sizes = sum(isinstance(one, torch.SymInt) for one in placeholders)
    for rows in (4, 9):
        given = torch.randn(rows, 8)
        torch.testing.assert_close(made(*[rows] * sizes, given, W)[0], two(given, W)[0])


@pytest.mark.slow
def test_sizes_of_examples_are_fixed() -> None:
    x = torch.randn(5, 8)
    made = fxpool.standalone_compile(traced(two, x, W), [x, W], dynamic_shapes="from_example_inputs")
    torch.testing.assert_close(made(x, W)[0], two(x, W)[0])


@pytest.mark.slow
def test_threads_may_wait_for_the_same_piece() -> None:
    x = torch.randn(4, 8)
    made = fxpool.standalone_compile(traced(two, x, W), [x, W])
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(made(x, W)[0])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    for one in got:
        torch.testing.assert_close(one, two(x, W)[0])


@pytest.mark.slow
def test_what_can_not_be_done_is_said(tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    gm = traced(two, x, W)
    with pytest.raises(ValueError, match="from_graph"):
        fxpool.standalone_compile(gm, [x, W], dynamic_shapes="from_nowhere")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="only valid in a back end"):
        fxpool.standalone_compile(gm, [x, W], dynamic_shapes="from_tracing_context")
    made = fxpool.standalone_compile(gm, [x, W])
    with pytest.raises(ValueError, match="binary"):
        made.save(path=str(tmp_path / "f"), format="unpacked")
    made.wait()  # a worker is at it
    with pytest.raises(fxpool.errors.ConfigurationError):
        fxpool.standalone_compile(gm, [x, W], options={"no_such_option": 1})
