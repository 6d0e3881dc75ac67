"""Templates chosen by time, where there is no GPU: what is asked, who is asked, and what becomes of the answer.

Times are made up here (`tuning_jobs`); everything else is real, the candidates' binaries included. On a GPU:
bench/gpu/tuned.py.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import json
import math
import pickle
import textwrap
import types
import warnings
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch._inductor.config as inductor_config
from capturing import captured, complete
from processes import HERE, run_python
from triton_place import path_with_triton

from fxpool.lowering.artifact.entry_content import Decisions
from fxpool.lowering.cuda import autotune
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.device_answers import UnansweredError
from fxpool.torch_compat.state import configs
from fxpool.torch_compat.triton import autotuning, benchmarks
from fxpool.torch_compat.triton.autotuning import Choice, Selection, Value

SMALL = "BLOCK_M : tl.constexpr = 64"
LARGE = "BLOCK_M : tl.constexpr = 128"


FUSION_TIMED = next(
    name for name in ("benchmark_template_fusion", "benchmark_epilogue_fusion") if name in inductor_config._config
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    wanted = ["none", f"template={SMALL}", "deadly", f"convolution={LARGE}"]
    environment = {"PYTHONPATH": path_with_triton(), "FXPOOL_POOL": "embedded"}
    printed = run_python([str(HERE / "tuning_child.py"), *wanted], 500, **environment)
    found: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_without_a_device_to_ask_torch_s_own_product_is_taken_and_that_is_recorded(compiled: dict[str, Any]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a device to ask")
    (found,) = compiled["none"]
    assert found["calls"] == ["extern_kernels.mm("]
    assert [row[1] for row in found["tuned"]] == ["not timed"] * 3
    assert found["guessed"] and not compiled["template"][0]["guessed"]


@pytest.mark.slow
def test_the_fastest_is_compiled_and_fused_with_what_follows(compiled: dict[str, Any]) -> None:
    found = compiled["template"][0]
    assert found["calls"] == ["triton_tem_fused_mm_relu_0.run("]
    assert found["kernels"] == ["triton_tem_fused_mm_relu_0"], "one kernel: the product with the rest in it"
    assert SMALL in found["blocks"]
    assert found["targets"] == [90]
    (described, count, best, milliseconds), *fused = found["tuned"]
    assert described == "mm 512x512 512x512 bfloat16"
    assert count > 5 and best.startswith("triton_mm-") and milliseconds == 0.01
    assert len(found["told"]) == 3 and found["told"][0] == f"0.0100 ms, {best}, of {count}"
    assert len(fused) == 2, "what follows alone, and fused with the fastest"


@pytest.mark.slow
def test_what_was_timed_is_kept_and_not_asked_again(compiled: dict[str, Any]) -> None:
    first, second = compiled["template"]
    assert second == first


@pytest.mark.slow
def test_a_candidate_that_kills_who_times_it_is_found_and_left_out(compiled: dict[str, Any]) -> None:
    (found,) = compiled["deadly"]
    described, count, _, milliseconds = found["tuned"][0]
    assert described.startswith("mm 512x512") and count > 5
    assert milliseconds == 0.5, "the last one; those beside the deadly one were timed, too"
    assert found["kernels"]


@pytest.mark.slow
def test_convolutions_have_templates_too(compiled: dict[str, Any]) -> None:
    (found,) = compiled["convolution"]
    assert any(name.startswith("triton_tem") for name in found["kernels"])
    assert LARGE in found["blocks"]


# ------------------------------------------------------------------------------ when


@pytest.mark.parametrize("option", ["max_autotune", "max_autotune_gemm"])
def test_templates_that_are_timed_need_no_worker_with_a_device(option: str) -> None:
    with configs.patched({option: True}):
        assert configs.times_templates()
        assert configs.measures() == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_autotune_gemm_backends", "ATEN,CUTLASS"), ("max_autotune_conv_backends", "CUTLASS"),
        (FUSION_TIMED, False), ("pipeline_max_autotune_gemm", True),
    ],
)  # fmt: skip
def test_what_is_timed_in_other_ways_does(name: str, value: Any) -> None:
    with configs.patched({name: value}):
        assert configs.measures() == "", "nothing is timed"
        with configs.patched({"max_autotune": True}):
            assert configs.measures() == name


def test_no_deprecated_option_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    deprecated = [name for name, one in inductor_config._config.items() if getattr(one, "deprecated", False)]
    for name in deprecated:  # each warns once in a process
        monkeypatch.setattr(inductor_config._config[name], "_deprecation_warned", False)
    if not deprecated:
        pytest.skip("this torch deprecates no option of Inductor's")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert configs.measures() == ""
        state, code = configs.captured()
        with configs.patched({"max_autotune": True}):
            assert configs.measures() == ""
            with configs.entered(state, code):
                assert not configs.times_templates()


class Compiles:
    """Stands for who times, and compiles what it knows no time of."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.answer: Future[bytes] = Future()

    def compile(self, name: str, source: str) -> Future[bytes]:
        self.compiled.append(source)
        return self.answer

    def is_known(self, question: autotuning.TimingQuestion) -> bool:
        return False

    def times(self, question: autotuning.TimingQuestion) -> list[float] | None:
        return [0.5]


def replaced() -> list[tuple[Any, str]]:
    from torch._inductor import scheduler, select_algorithm
    from torch._inductor.codegen.triton import TritonScheduling

    return [
        (select_algorithm.AlgorithmSelectorCache, "make_precompile_fn"),
        (select_algorithm.AlgorithmSelectorCache, "make_benchmark_fn"),
        (scheduler.Scheduler, "compile_kernel"),
        (TritonScheduling, "benchmark_fused_nodes"),
        (TritonScheduling, "benchmark_codegened_module"),
    ]


def test_what_stands_for_a_function_of_torch_s_takes_its_arguments() -> None:
    wanted = [inspect.signature(getattr(owner, name)) for owner, name in replaced()]
    with autotuning.measuring(Compiles()):
        for (owner, name), signature in zip(replaced(), wanted, strict=True):
            inspect.signature(getattr(owner, name)).bind(**dict.fromkeys(signature.parameters))


def test_a_fused_kernel_is_compiled_elsewhere_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    measure = Compiles()
    scheduler, scheduling = (owner for owner, name in replaced() if name in ("compile_kernel", "benchmark_fused_nodes"))
    graph = types.SimpleNamespace(generate_kernel_code_from_nodes=lambda nodes, **options: "text")
    with autotuning.measuring(measure):
        pending, module = scheduler.compile_kernel(graph, [])
        assert (pending, measure.compiled) == (None, ["text"])
        measure.answer.set_result(b"")
        module.triton_.precompile()  # as who fuses without timing does, since 2.14
        assert scheduling.benchmark_codegened_module(None, module) == (0.5, module.__file__)
        with pytest.raises(UnansweredError):
            scheduling.benchmark_codegened_module(None, types.ModuleType("loaded"))
        measure.answer = Future()
        measure.answer.set_exception(ValueError("registers"))
        _, module = scheduler.compile_kernel(graph, [])
        with pytest.raises(ValueError, match="registers"):
            module.triton_.precompile()
        assert scheduling.benchmark_codegened_module(None, module) == (math.inf, module.__file__)


def test_times_are_those_of_sizes_types_and_candidates() -> None:
    value = Value("a", 0, "bfloat16", (4, 4), (4, 1), 0, (4, 4))
    one = Selection("mm", [value], value, [Choice("x", b"1")])
    same = Selection("mm", [value], value, [Choice("x", b"another pickle")])
    assert (one.identity(), one.candidates()) == (same.identity(), same.candidates())
    renamed = msgspec.structs.replace(value, name="b")
    assert Selection("mm", [renamed], renamed, [Choice("x", b"1")]).identity() == one.identity(), "the next layer's"
    assert Selection("mm", [value], renamed, [Choice("x", b"1")]).identity() != one.identity(), "not the same buffer"
    for other in (
        Selection("bmm", [value], value, [Choice("x", b"1")]),
        Selection("mm", [value, value], value, [Choice("x", b"1")]),
        Selection("mm", [value], value, [Choice("y", b"1")]),
        Selection("mm", [value], value, [Choice("x", b"1"), Choice("y", b"1")]),
    ):
        assert (other.identity(), other.candidates()) != (one.identity(), one.candidates())


class Request:
    """Stands for torch's description of how a candidate is run."""

    benchmark_with_cudagraphs = False

    def benchmark(self, *inputs: torch.Tensor, out: torch.Tensor) -> float:
        return 0.25


@pytest.mark.parametrize("extern", [True, False])
def test_a_candidate_has_all_that_torch_reads_to_run_it(extern: bool) -> None:
    mask = (True, False, False, False)
    made = benchmarks._runnable(Choice("x", pickle.dumps(Request()), extern, "mm", [], mask))
    (method,) = ast.parse(textwrap.dedent(inspect.getsource(type(made).benchmark))).body
    names = [node for node in ast.walk(method) if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"]
    assert names
    missing = {node.attr for node in names if isinstance(node.ctx, ast.Load) and not hasattr(made, node.attr)}
    assert not missing
    assert made.benchmark(torch.zeros(1), out=torch.zeros(1)) == 0.25
    assert made.tunable_dyn_dims_mask == mask


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is run as candidates, on a device that is none."""
    found: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(benchmarks, "_graph", lambda question: contextlib.nullcontext())
    monkeypatch.setattr(benchmarks, "_of_selection", lambda question: iter(found))
    return found


def raising(error: Exception) -> Any:
    def run() -> float:
        raise error

    return run


def question(count: int) -> Selection:
    value = Value("a", 0, "bfloat16", (4, 4), (4, 1), 0, (4, 4))
    return Selection("mm", [value], value, [Choice(str(number), b"") for number in range(count)])


def test_a_candidate_that_fails_does_not_run(runs: list[Any]) -> None:
    runs += [lambda: 0.5, raising(RuntimeError("out of shared memory")), lambda: 0.25]
    assert benchmarks.times(question(3)).milliseconds == [0.5, math.inf, 0.25]


@pytest.mark.parametrize("error", [AttributeError("tunable_dyn_dims_mask"), TypeError("takes no parameters")])
def test_an_error_of_who_asks_is_none_of_the_candidate_s(runs: list[Any], error: Exception) -> None:
    runs += [lambda: 0.5, raising(error)]
    with pytest.raises(type(error), match=str(error)):
        benchmarks.times(question(2))


def test_times_of_another_format_are_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    (only,) = captured(torch.relu, torch.zeros(2))
    request = dataclasses.replace(
        complete(only, str(tmp_path)), devices=(COMMON["NVIDIA H200"],), toolchain_dir=str(tmp_path / "t")
    )

    def nobody(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("nothing is submitted")

    tuning = autotune.Tuning(request, nobody, str(tmp_path))
    tuning._keep(question(2), [0.5, 0.25])
    assert tuning.times(question(2)) == [0.5, 0.25]
    monkeypatch.setattr(autotune, "_FORMAT", autotune._FORMAT + 1)
    assert not tuning.is_known(question(2))


def test_an_entry_tells_people_what_was_decided_by_time() -> None:
    measured = [
        [["mm", [[4095, 4095], [4095, 1], "bfloat16", False], [[4095, 8], [8, 1], "bfloat16", True], None], True]
    ]
    tuned = [
        ["mm 4x4 4x4 bfloat16", 3, "triton_mm-c1", 0.25],
        ["a fused kernel", 1, "", None],
        ["bmm 2x4x4", "not timed"],
    ]
    assert Decisions(measured=measured, tuned=tuned).described() == {
        "decided 1, padding mm 4095x4095 4095x8": "pays",
        "decided 2, mm 4x4 4x4 bfloat16": "0.2500 ms, triton_mm-c1, of 3",
        "decided 3, a fused kernel": "no candidate runs",
        "decided 4, bmm 2x4x4": "not timed",
    }
    assert Decisions().described() == {}
