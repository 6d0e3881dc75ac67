"""`frames` says for people which function of the program is traced, and what a graph's inputs are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpool.torch_compat.dynamo import frames
from fxpool.torch_compat.dynamo.frames import Frame
from fxpool.torch_compat.dynamo.tracing import placeholder_source


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(self: Any, *args: Any) -> Any:
        return function(self, *args)

    return wrapper


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Decorated(torch.nn.Module):
    @logged
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def step(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    torch._dynamo.graph_break()
    return y * 2


def traced(function: Any, *args: Any) -> list[tuple[Frame | None, tuple[list[str], int]]]:
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        sources = [placeholder_source(node) for node in gm.graph.find_nodes(op="placeholder")]
        seen.append((frames.current_frame(), frames.shown_inputs(inputs, sources)))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*args)
    torch._dynamo.reset()
    return seen


def line_of(function: Callable[..., Any]) -> int:
    return int(function.__code__.co_firstlineno)


def test_a_function_is_named_with_file_and_line() -> None:
    ((frame, shown),) = traced(step, torch.ones(2, 4))
    assert frame is not None
    assert frame == Frame("", "step", frame.file, line_of(step), False)
    assert Path(frame.file).name == Path(__file__).name and not Path(frame.file).is_absolute()
    assert frame.name == "step" and shown == (["float32[2, 4]"], 0)


def test_a_model_is_named_by_its_class_and_its_parameters_are_counted() -> None:
    ((frame, shown),) = traced(Model(), torch.ones(2, 4, dtype=torch.float32))
    assert frame is not None
    assert (frame.model, frame.name, frame.line) == ("Model", "Model.forward", line_of(Model.forward))
    assert shown == (["float32[2, 4]"], 3)


def test_the_function_behind_a_decorator_is_meant() -> None:
    ((frame, _),) = traced(Decorated(), torch.ones(2))
    assert frame is not None
    # The line of the decorator, at which the decorated function's code begins.
    assert (frame.name, frame.line) == ("Decorated.forward", line_of(Decorated.forward.__wrapped__))


def test_the_rest_after_a_graph_break_is_of_the_same_function() -> None:
    (first, _), (second, _) = traced(broken, torch.ones(2))
    assert first is not None and second is not None
    assert (first.name, first.resumed) == (second.name, False) == ("broken", False)
    assert second.resumed and line_of(broken) < second.line <= line_of(broken) + 3


def test_a_module_of_torch_s_is_its_model() -> None:
    ((frame, shown),) = traced(torch.nn.Linear(4, 2), torch.ones(3, 4))
    assert frame is not None and frame.name == "Linear.forward"
    assert frame.file == "torch/nn/modules/linear.py"
    assert shown == (["float32[3, 4]"], 2)


def test_outside_of_a_trace_there_is_no_frame() -> None:
    assert frames.current_frame() is None


@pytest.mark.parametrize("count", [8, 11])
def test_many_inputs_are_cut_short(count: int) -> None:
    values = [torch.ones(2, dtype=torch.int64)] * count + [torch.nn.Parameter(torch.ones(1)), 3]
    shown, kept = frames.shown_inputs(values, [])
    assert kept == 1
    assert shown == ["int64[2]"] * 8 + ([f"{count - 8} more"] if count > 8 else [])


def test_another_device_is_named() -> None:
    assert frames.shown_inputs([torch.ones((), device="meta")], [None]) == (["float32[] meta"], 0)
