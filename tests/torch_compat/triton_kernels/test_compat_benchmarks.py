"""`benchmarks` runs candidates on a device for a process that has none; here is what it rebuilds of them."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import pytest
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from fxpool.torch_compat.triton import autotuning, benchmarks
from fxpool.torch_compat.triton.autotuning import Choice, Fused, Selection, Value
from fxpool.torch_compat.triton.benchmarks import Times

BASE = Value("base", 0, "bfloat16", (64, 64), (64, 1), 0, (64, 64))
VIEW = Value("base", 0, "bfloat16", (64, 32), (64, 1), 8, (64, 64), BASE)
PLAIN = Value("plain", 1, "float32", (8, 4), (4, 1), 0, (8, 8))
QUESTION = Selection("mm", [BASE, PLAIN], PLAIN, [Choice("a", b""), Choice("b", b"")])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device to time on")
@pytest.mark.parametrize(("question", "count"), [(QUESTION, 2), (Fused("source", 8), 1)])
def test_without_a_device_nothing_is_timed(question: Any, count: int) -> None:
    times = benchmarks.times(question)
    assert times == Times([None] * count, device=False)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(times), type=Times) == times


@pytest.mark.parametrize("value", [BASE, PLAIN, VIEW], ids=["base", "plain", "view"])
def test_a_value_becomes_inductor_s_node_and_is_described_the_same(value: Value) -> None:
    handler: Any = benchmarks._Graph([BASE, PLAIN], 1)
    with V.set_graph_handler(handler):
        node = benchmarks._node(value)
        assert isinstance(node, ir.BaseView if value.base is not None else ir.Buffer)
        assert autotuning._value(node, None) == value
        assert node.get_device() == torch.device("cuda", value.device)
    assert handler.get_current_device_or_throw() == torch.device("cuda", 1)


def test_sizes_with_padding_are_those_of_the_graph_that_was_lowered() -> None:
    graph = benchmarks._Graph([PLAIN], 0)
    assert tuple(graph.get_allocation_size(benchmarks._node(PLAIN))) == (8, 8)
    assert tuple(map(int, graph.get_allocation_size(benchmarks._node(BASE)))) == (64, 64)


@pytest.mark.parametrize("extern", [True, False])
def test_a_choice_is_rebuilt_as_torch_s_caller(extern: bool) -> None:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    choice = Choice("id", pickle.dumps({"how": "to run"}), extern, "name", [PLAIN], (True, False))
    made = benchmarks._runnable(choice)
    assert type(made) is (ExternKernelCaller if extern else TritonTemplateCaller)
    assert (made.name, made.bmreq, made.failed) == ("name", {"how": "to run"}, False)
    assert [node.get_name() for node in made.input_nodes] == ["plain"]


def test_torch_s_functions_that_run_candidates_are_there() -> None:
    import inspect

    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    inputs = inspect.signature(AlgorithmSelectorCache.get_inputs)
    inputs.bind("choices", "nodes", "layout", None)
    inspect.signature(AlgorithmSelectorCache.benchmark_choice).bind("choice", "inputs")
    inspect.signature(TritonScheduling.benchmark_codegened_module).bind("self", "module", 8)
