"""Graphs compiled for GPUs where there is none, by ordinary workers: entries with binaries, from facts of the devices.

There is no GPU to run them on; bench/gpu has what takes one.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from processes import HERE, run_python
from triton_place import path_with_triton

from fxpool.torch_compat.cuda import device_answers
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.cuda.device_answers import UnansweredError
from fxpool.torch_compat.cuda.device_facts import DeviceFacts

A100, H200, B200 = "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "NVIDIA B200"
TARGETS = {A100: 80, H200: 90, B200: 100}
# Compiled in one process for all tests here; the rest is of the second tier.
FIRST = [f"convolution@{A100}", f"attention@{H200}"]
REST = [
    name
    for model in ("convolution", "attention", "gpt2", "llama", "bert")
    for device in TARGETS
    if (name := f"{model}@{device}") not in FIRST
]


def _report(wanted: list[str], **environment: str) -> dict[str, Any]:
    environment |= {"PYTHONPATH": path_with_triton(), "FXPOOL_POOL": "embedded"}
    printed = run_python([str(HERE / "gpu_child.py"), *wanted], 900, **environment)
    report: dict[str, Any] = json.loads(printed.strip().splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """With a compiler that only ``CXX`` names: processes that do not know of it would take another."""
    compiler = tmp_path_factory.mktemp("compiler") / "g++-of-ours"
    compiler.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo "g++ of ours 1.0"; exit; }\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    more = [f"{name}@{H200}" for name in ("product", "product32", "constants", "misaligned")]
    return _report([*FIRST, *more], CXX=str(compiler))


def _is_compiled(found: dict[str, Any], name: str) -> None:
    assert found["graphs"] == 2, "forward and backward"
    assert found["kernels"]
    assert found["targets"] == [TARGETS[name.split("@")[1]]], "binaries say in their headers what they are for"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FIRST)
def test_forward_and_backward_for_a_gpu_that_is_not_here(name: str, compiled: dict[str, Any]) -> None:
    if not torch.cuda.is_available():
        assert not compiled["cuda"]
    _is_compiled(compiled[name], name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_models_for_all_gpus() -> None:
    report = _report(REST)
    for name in REST:
        _is_compiled(report[name], name)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_graph_that_cuda_graphs_will_replay() -> None:
    """Inductor cuts it into partitions, which its module calls through a runner."""
    name = f"constants@{H200}"
    report = _report([name], TORCHINDUCTOR_CUDAGRAPHS="1")
    _is_compiled(report[name], name)
    for graph in report[name]["inputs"]:
        assert graph["recorded"] and graph["not recorded"] is None


def test_places_of_parameters_are_known_and_those_of_inputs_looked_at(compiled: dict[str, Any]) -> None:
    """Who loads a graph copies an input that is not aligned; a CUDA graph copies those that may lie elsewhere."""
    forward, backward = compiled[f"convolution@{A100}"]["inputs"]
    assert len(forward["static"]) == 9, "two convolutions' and a normalization's parameters and buffers"
    assert len(forward["looked at"]) == len(backward["looked at"]) == 1, "the image; its result's gradient"
    assert len(forward["written"]) == 3 and set(forward["written"]) < set(forward["static"]), "running statistics"
    for graph in (forward, backward):
        assert not set(graph["looked at"]) & set(graph["static"])


def test_an_input_that_is_not_aligned_is_compiled_for(compiled: dict[str, Any]) -> None:
    """There is nothing to look at: its code assumes nothing."""
    (graph,) = compiled[f"misaligned@{H200}"]["inputs"]
    assert graph["looked at"] == [0]


def test_what_torch_warns_of_precision_is_said_to_the_program(compiled: dict[str, Any]) -> None:
    def warned(name: str) -> bool:
        return any("TensorFloat32 tensor cores" in text for text in compiled[name]["warned"])

    assert warned(f"product32@{H200}")
    assert not warned(f"attention@{H200}") and not warned(f"convolution@{A100}")


def test_a_device_without_bfloat16_is_left_to_eager_execution(compiled: dict[str, Any]) -> None:
    end, *warned = compiled["old"]
    assert end == "SkipFrame", "Dynamo runs the frame as it is, as under stock Inductor"
    assert any("does not support bfloat16 compilation natively" in text for text in warned)


def test_a_convolution_is_cudnns(compiled: dict[str, Any]) -> None:
    assert {"convolution", "convolution_backward"} <= set(compiled[f"convolution@{A100}"]["calls"])


def test_attention_is_that_of_the_device(compiled: dict[str, Any]) -> None:
    """Half types, no mask: flash attention. Made of ordinary operators it would be none of these calls."""
    calls = compiled[f"attention@{H200}"]["calls"]
    assert "_scaled_dot_product_flash_attention" in calls
    assert "_scaled_dot_product_flash_attention_backward" in calls


def test_what_takes_a_clock_is_asked_and_the_answer_is_in_the_entry(compiled: dict[str, Any]) -> None:
    found = compiled[f"product@{H200}"]
    (question,) = found["questions"]
    assert question[0] == "mm"
    assert question[1][:2] == [[4095, 4095], [4095, 1]]
    assert found["measured"] == [[question, True]]
    assert found["afterwards"] == [[question], [[question, True]]], "a caller that is not asked meanwhile"
    assert len(found["kernels"]) == 2, "padded, as the answer was: a kernel that pads, and one that takes it off again"


def test_tensors_made_of_numbers_in_the_graph(compiled: dict[str, Any]) -> None:
    """Tracing computes what follows from them, on their device where there is one."""
    _is_compiled(compiled[f"constants@{H200}"], f"constants@{H200}")


def test_what_nobody_captured_is_named_and_not_guessed(compiled: dict[str, Any]) -> None:
    assert compiled["unanswered"] == "a device's properties for multi_processor_count"


def test_kernels_that_are_compiled_on_the_device_are_named() -> None:
    from torch._inductor.async_compile import AsyncCompile

    methods = inspect.getmembers(AsyncCompile, inspect.isfunction)
    of_text = {name for name, method in methods if "source_code" in inspect.signature(method).parameters}
    assert {"triton", "cutedsl", "cuda"} <= of_text
    for kind in of_text - {"triton", "cpp_pybinding", "cuda"}:
        text = f"async_compile = AsyncCompile()\nkernel = async_compile.{kind}('k', '''text''')\n"
        with pytest.raises(UnansweredError, match=f"a kernel of the kind {kind}"):
            device_answers._read(text, "module.py")


def test_the_library_that_stands_for_devices_is_made_once(compiled: dict[str, Any]) -> None:
    """By who asks, in this case; workers find it."""
    assert len([name for name in compiled[f"convolution@{A100}"]["ambient"] if name.endswith(".so")]) == 1


ESTIMATES = """
import inspect, json, sys
import msgspec, torch
from torch._inductor import utils
from fxpool.lowering.cuda import devices
from fxpool.torch_compat.cuda.common_devices import COMMON

by_device = bool(inspect.signature(torch._utils_internal.max_clock_rate).parameters)
name = "of no data sheet"
facts = [msgspec.structs.replace(one, name=name, properties={**one.properties, "name": name})
         for one in (COMMON["NVIDIA H200"], COMMON["NVIDIA A100-SXM4-80GB"])]
with devices.unseen(facts, 1, sys.argv[1]):
    estimates = [utils.get_device_tflops(dtype) for dtype in (torch.bfloat16, torch.float32)]
    clock = torch._utils_internal.max_clock_rate
    clocks = [clock(0), clock(1)] if by_device else []
    print(json.dumps([estimates, utils.get_gpu_dram_gbps(), clock(), clocks, by_device]))
"""


@pytest.mark.slow
def test_estimates_are_those_of_the_current_device(tmp_path: Path) -> None:
    """Whoever asks for one takes an error for none: for "compute bound", or for a time of 0."""
    printed = run_python(["-c", ESTIMATES, str(tmp_path)], PYTHONPATH=path_with_triton())
    (half, single), bandwidth, clock, clocks, by_device = json.loads(printed.splitlines()[-1])
    assert half > single > 0 and bandwidth > 0 and clock == 1980
    if by_device:  # since 2.15, in the unit that its name says
        assert clocks == [1980, 1410]
        assert half == pytest.approx(108 * 4 * 512 * 1.410e6 * 1e-9)


# ------------------------------------------------------------------------------ facts


@pytest.mark.parametrize("facts", COMMON.values(), ids=str)
def test_both_facts_of_a_clock_agree(facts: DeviceFacts) -> None:
    assert facts.properties["clock_rate"] == facts.driver["sm_clock_rate"] == facts.clock * 1000


@pytest.mark.parametrize("facts", COMMON.values(), ids=str)
def test_facts_travel(facts: DeviceFacts) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(facts), type=DeviceFacts) == facts
    assert facts.target in ("sm_80", "sm_90", "sm_100")


def test_two_of_a_kind_are_described_equally() -> None:
    one = COMMON[H200]
    other = msgspec.structs.replace(one, properties={**one.properties, "uuid": "GPU-7", "pci_bus_id": 3})
    assert one.described() == other.described()
    assert one.described() != COMMON["NVIDIA H100 80GB HBM3"].described()
    assert one.described() != msgspec.structs.replace(one, cudnn=90000).described()
