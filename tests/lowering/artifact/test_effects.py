"""What a compile does besides returning code, and what a shipped graph keeps of Dynamo's metadata."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import zoo

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import capture
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import compiler
from fxpool.torch_compat.inductor import aot


def configurations_of(toolchain_dir: str, function: Callable[..., Any], *inputs: Any) -> list[tuple[Any, Any]]:
    """(stock's, ours) ``AOTConfig.to_cacheable()`` for each graph of a call, with the tool chain's facts from there."""
    found: list[tuple[Any, Any]] = []

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        captured = capture.capture(gm, example_inputs, label="test", into=Destination(toolchain_dir=toolchain_dir))
        request = CompileRequest.load(captured.request.dump())  # through bytes, as a worker gets it
        with compiler.local_kernels() as kernel_jobs:
            ours = aot.load_result(compiler.compile_request(request, kernel_jobs).result)
        stock = aot.compile_graph(gm, example_inputs, keep_result=True)
        found.append((aot.aot_config_of(stock.result), aot.aot_config_of(ours)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found


def comparable(config: Any) -> dict[str, Any]:
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    fields.pop("aot_id")  # a process's running number: the test compiles everything twice
    return fields


@pytest.mark.slow
@pytest.mark.parametrize("what", ["infer", "train"])
def test_the_workers_aot_config_is_stocks(what: str, known_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(known_host / "i"))
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    tokens = torch.arange(6)
    with torch.set_grad_enabled(what == "train"):
        pairs = configurations_of(str(known_host / "c" / "toolchain"), model, tokens)
    assert pairs
    for stock, ours in pairs:
        assert comparable(ours) == comparable(stock)
        assert stock.static_input_indices, "parameters are static inputs: under cudagraphs they are not copied"
        assert stock.aot_autograd_arg_pos_to_source


def test_a_restart_that_a_pass_asks_for_is_replayed_cold_and_warm(shared_pool: Path, cache: Path) -> None:
    """A float that can't become a tensor must be specialized: Dynamo traces again."""

    def powers(x: torch.Tensor, exponent: float) -> torch.Tensor:
        return torch.nn.functional.dropout(x, exponent, training=False) + x**exponent

    x = torch.rand(8) + 1
    store = LocalStore(str(cache))
    for _ in ("cold", "warm"):
        for stored in store.scan():
            os.utime(cache / stored.path, (1.0, 1.0))
        torch._dynamo.reset()
        function = torch.compile(powers, backend="fxpool")
        for exponent in (0.5, 0.25, 0.75):
            torch.testing.assert_close(function(x, exponent), powers(x, exponent))
    stats = fxpool.stats()
    assert (stats["compiles"]["in_process"], stats["fallbacks"], stats["corrupt_entries"]) == (0, {}, 0)
    restarts = [one for one in store.scan() if one.entry is not None and content_of(one.entry).effects.restart]
    assert restarts and all(one.used > 1 for one in restarts), "it is in use: it is not the next to be evicted"


@pytest.mark.slow
def test_output_that_is_a_view_and_input_that_is_changed(shared_pool: Path, cache: Path) -> None:
    def step(x: torch.Tensor, counter: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        counter.add_(1)
        return x[1:], x * counter

    for _ in ("cold", "warm"):
        torch._dynamo.reset()
        x, counter = torch.ones(4, 3, requires_grad=True), torch.zeros(3)
        part, scaled = torch.compile(step, backend="fxpool")(x, counter)
        assert counter.tolist() == [1, 1, 1]
        assert part._base is x
        scaled.sum().backward()
        assert x.grad is not None
    assert (fxpool.stats()["hits"], fxpool.stats()["misses"]) == (1, 1)


@pytest.mark.slow
def test_equal_inputs_get_a_guard_and_not_each_others_code(shared_pool: Path, cache: Path) -> None:
    def add(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2)
        return a + b

    for _ in ("cold", "warm"):
        torch._dynamo.reset()
        function = torch.compile(add, backend="fxpool")
        same, apart = torch.ones(4), torch.ones(4)
        assert function(same, same).tolist() == [4.0] * 4
        assert function(apart, torch.ones(4)).tolist() == [3.0] * 4
    assert fxpool.stats()["hits"] == 2


@pytest.mark.slow
def test_constants_count_by_value(shared_pool: Path, cache: Path) -> None:
    class Scaled(torch.nn.Module):
        def __init__(self, by: list[float]) -> None:
            super().__init__()
            self.by = torch.tensor(by)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.by + torch.tensor([1.0, 2.0])

    for by in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0]):
        torch._dynamo.reset()
        model = Scaled(by)
        x = torch.randn(3, 2)
        torch.testing.assert_close(torch.compile(model, backend="fxpool")(x), model(x))


@pytest.mark.slow
def test_nothing_of_the_graph_is_changed_by_capturing_it() -> None:
    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def state() -> list[Any]:
            return [(n.name, n.op, str(n.target), list(n.meta)) for n in gm.graph.nodes] + [list(gm.__dict__)]

        before = state()
        capture.capture(gm, example_inputs, label="test", into=Destination())
        assert state() == before
        return gm.forward

    torch._dynamo.reset()
    zoo.step(torch.compile(zoo.build("llama"), backend=backend), zoo.inputs("llama"), "train")
