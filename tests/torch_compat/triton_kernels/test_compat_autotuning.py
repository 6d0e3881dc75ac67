"""`autotuning` hands out what Inductor would time on a device: candidates as data, with torch's way to run them."""

from __future__ import annotations

import math
import pickle
import types
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest
import sympy
import torch
from torch._inductor import ir
from torch._inductor.virtualized import V

from fxpool.torch_compat.cuda.device_answers import UnansweredError
from fxpool.torch_compat.triton import autotuning, benchmarks
from fxpool.torch_compat.triton.autotuning import Choice, Fused, Selection, Value


def value(name: str, *size: int, base: Value | None = None) -> Value:
    stride = (math.prod(size[1:]), 1)
    return Value(name, 0, "float32", size, stride, 0, size, base)


A, B, OUT = value("a", 64, 32), value("b", 32, 16), value("output", 64, 16)


class Measure:
    """Knows the times of candidates by their names, and compiles nothing."""

    def __init__(self, times: list[float] | None = None, knows: bool = False) -> None:
        self.given, self.knows = times, knows
        self.compiled: list[tuple[str, str]] = []
        self.asked: list[Any] = []
        self.fails = False

    def compile(self, name: str, source: str) -> Future[bytes]:
        self.compiled.append((name, source))
        future: Future[bytes] = Future()
        if self.fails:
            future.set_exception(RuntimeError("it does not compile"))
        else:
            future.set_result(b"")
        return future

    def is_known(self, question: Any) -> bool:
        return self.knows

    def times(self, question: Any) -> list[float] | None:
        self.asked.append(question)
        return self.given


@pytest.fixture
def graph() -> Iterator[None]:
    """A graph that is being lowered, as far as sizes are asked of it."""
    handler: Any = benchmarks._Graph([A, B, OUT], 0)
    with V.set_graph_handler(handler):
        yield


def product() -> Any:
    """ATen's product of two matrices on a device, as one of Inductor's choices."""
    from torch._inductor.kernel.mm import aten_mm

    device = torch.device("cuda", 0)
    layout = ir.FixedLayout(device, torch.float32, [sympy.Integer(64), sympy.Integer(16)])
    nodes = [benchmarks._node(one) for one in (A, B)]
    return aten_mm.bind(nodes, layout), nodes, layout


def test_a_choice_is_described_with_its_sizes_and_how_it_runs(graph: None) -> None:
    choice, nodes, layout = product()
    measure = Measure([2.5])
    with autotuning.measuring(measure):
        from torch._inductor.select_algorithm import AlgorithmSelectorCache

        benchmark = AlgorithmSelectorCache.make_benchmark_fn([choice], nodes, layout, None)
        assert benchmark([choice]) == {choice: 2.5}
    (selection,) = measure.asked
    assert selection.inputs == [A, B]
    assert msgspec.structs.replace(selection.output, name="output") == OUT
    (described,) = selection.choices
    assert described.extern and described.identity == choice.hash_key() and described.inputs == [A, B]
    assert type(pickle.loads(described.request)) is type(choice.bmreq)
    assert selection.operation == described.name == choice.name
    assert "64x32 32x16 float32" in selection.describe()
    # As in another process: the caller is rebuilt, without the parts that generate code.
    rebuilt = benchmarks._runnable(described)
    assert type(rebuilt) is type(choice) and rebuilt.name == choice.name
    assert [tuple(map(int, node.get_size())) for node in rebuilt.input_nodes] == [(64, 32), (32, 16)]


def test_without_a_device_torch_s_own_kernel_is_chosen(graph: None) -> None:
    choice, nodes, layout = product()
    assert autotuning._timed(Measure(None), [choice], nodes, layout, None) == {choice: 1.0}


def test_a_measurement_that_can_t_be_handed_out_is_named(graph: None) -> None:
    choice, nodes, layout = product()
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    with autotuning.measuring(Measure([1.0])):
        with pytest.raises(UnansweredError, match="inputs that are made for it"):
            AlgorithmSelectorCache.make_benchmark_fn([choice], nodes, layout, {0: print})
        with pytest.raises(UnansweredError, match="several ranks"):
            AlgorithmSelectorCache.make_benchmark_fn([choice], nodes, layout, None, is_collective=True)
    with pytest.raises(UnansweredError, match="a measurement of a SimpleNamespace"):
        autotuning._choice(types.SimpleNamespace(), None)
    with pytest.raises(UnansweredError, match="does not pickle"):
        autotuning._pickled(lambda: None)


def test_choices_for_the_cpu_are_left_to_inductor() -> None:
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    on_cpu = types.SimpleNamespace(layout=torch.ones(1))
    assert not autotuning._all_on_cuda([on_cpu]) and autotuning._all_on_cuda([])
    seen: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AlgorithmSelectorCache, "make_precompile_fn", lambda self, choices, *args: seen.append(choices))
        with autotuning.measuring(Measure()):
            AlgorithmSelectorCache.make_precompile_fn(None, [on_cpu])
    assert seen == [[on_cpu]]


def test_a_fused_kernel_is_compiled_and_timed_elsewhere(graph: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.scheduler import Scheduler

    source = types.SimpleNamespace(generate_kernel_code_from_nodes=lambda *args, **kwargs: "the source")
    measure = Measure([1.25])
    with autotuning.measuring(measure):
        compiled, module = Scheduler.compile_kernel(source, [])
        assert compiled is None and measure.compiled == [("triton_", "the source")]
        milliseconds, path = TritonScheduling.benchmark_codegened_module(source, module)
        with open(path, encoding="utf-8") as file:
            assert "the source" in file.read()
        assert milliseconds == 1.25 and measure.asked == [Fused("the source", 8)]
        assert TritonScheduling.benchmark_fused_nodes(source, [])[0] == 1.25
        measure.fails = True
        assert TritonScheduling.benchmark_fused_nodes(source, [])[0] == math.inf
        with pytest.raises(UnansweredError, match="torch loaded by itself"):
            TritonScheduling.benchmark_codegened_module(source, object())


def test_inductor_s_own_functions_are_back_afterwards() -> None:
    from torch._inductor import autotune_process
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    owners: list[tuple[Any, str]] = [
        (AlgorithmSelectorCache, "make_precompile_fn"),
        (AlgorithmSelectorCache, "make_benchmark_fn"),
        (Scheduler, "compile_kernel"),
        (TritonScheduling, "benchmark_fused_nodes"),
        (TritonScheduling, "benchmark_codegened_module"),
        (autotune_process, "get_tuning_process_pool"),
    ]
    before = [vars(owner).get(name) for owner, name in owners]
    with autotuning.measuring(Measure()):
        assert all(vars(owner)[name] is not one for (owner, name), one in zip(owners, before, strict=True))
    assert [vars(owner).get(name) for owner, name in owners] == before


def test_names_of_buffers_count_by_their_equality() -> None:
    def selection(first: str, second: str, size: int = 32) -> Selection:
        choices = [Choice("x", b""), Choice("y", b"", True)]
        return Selection("mm", [value(first, 64, size), value(second, 64, size)], OUT, choices)

    assert selection("a", "b").identity() == selection("c", "d").identity()
    assert selection("a", "a").identity() != selection("a", "b").identity()
    assert selection("a", "b").identity() != selection("a", "b", 16).identity()
    assert selection("a", "b").candidates() == ["x", "y"]
    view = value("v", 64, 32, base=value("a", 64, 64))
    numbered = autotuning._numbered(view, {})
    assert (numbered.name, numbered.base and numbered.base.name) == ("0", "1")


@pytest.mark.parametrize("question", [Selection("mm", [A, B], OUT, [Choice("x", b"r")]), Fused("source", 8)])
def test_a_question_travels_as_data(question: Any) -> None:
    data = msgspec.msgpack.encode(question)
    assert msgspec.msgpack.decode(data, type=autotuning.TimingQuestion) == question
    assert question.describe()
