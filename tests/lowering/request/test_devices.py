"""Which devices a graph is for: numbered by the graph, not by the process. Facts stand in for GPUs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
import pytest
import torch
from torch._subclasses import FakeTensorMode

from fxpool.codecache.graph.graph_codec import EncodedGraph, GraphEncoder
from fxpool.codecache.key import components, key, toolchain
from fxpool.errors import CannotTravelError
from fxpool.lowering.cuda import devices
from fxpool.lowering.request import device_placement
from fxpool.lowering.request.device_placement import Placement
from fxpool.torch_compat.cuda import attention, device_answers, device_facts
from fxpool.torch_compat.cuda.common_devices import COMMON
from fxpool.torch_compat.state import configs

H200, A100 = COMMON["NVIDIA H200"], COMMON["NVIDIA A100-SXM4-80GB"]
HERE = [H200, H200, H200, A100]


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(device_facts, "capture", HERE.__getitem__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    current(monkeypatch, 0)


def current(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: index)


def encoded(*named: torch.device | str, own_indices: bool = False) -> EncodedGraph:
    """A graph of nothing but these devices."""
    graph = torch.fx.Graph()
    for device in named:
        graph.call_function(torch.empty, (1,), {"device": device})
    return GraphEncoder(own_indices=own_indices).encode(torch.fx.GraphModule(torch.nn.Module(), graph))


def described(*named: torch.device | str, own_indices: bool = False) -> list[Any]:
    """How a graph's description has each of these devices."""
    return [row[3][1][1] for row in encoded(*named, own_indices=own_indices).description[1]]


def placed(*named: torch.device | str, default: str | None = None) -> Placement:
    return device_placement.placement_of(encoded(*named), default, None)


def test_a_graph_through_cpp_stays_here_if_its_kernels_are_compiled_when_it_is_called() -> None:
    for device in ("cuda", torch.device("cuda", 1)):
        graph = encoded(device, own_indices=True)
        device_placement.require_movable(graph)
        with torch._inductor.config.patch({"triton.autotune_at_compile_time": False}):
            device_placement.require_movable(encoded(own_indices=True))
            device_placement.require_movable(encoded(device))  # a package
            with pytest.raises(CannotTravelError, match="gpu_cpp_wrapper"):
                device_placement.require_movable(graph)


def test_the_worker_of_a_graph_through_cpp_sees_its_devices_under_their_own_indices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They stand in its library, and so in its key: a library holds what was loaded on one device."""
    monkeypatch.setattr(toolchain, "find_compiler", lambda _: object())
    found = []
    for rank in range(3):
        current(monkeypatch, rank)
        one = device_placement.placement_of(encoded(torch.device("cuda", rank), own_indices=True), None, None)
        assert one.needed == "cpp_wrapper"
        assert one.indices == tuple(range(rank + 1))
        assert one.current == rank
        assert one.visible() is None
        found.append(one.key_part())
    assert len({str(part) for part in found}) == 3


def test_the_current_device_of_a_graph_through_cpp_keeps_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    current(monkeypatch, 2)
    one = device_placement.placement_of(encoded("cuda", own_indices=True), None, None)
    assert (one.indices, one.current) == ((0, 1, 2), 2)


def test_devices_keep_their_indices_if_the_encoder_is_told_to() -> None:
    rows = described(torch.device("cuda", 3), "cuda:1", torch.device("cuda", 0), own_indices=True)
    assert rows == [["device", "cuda", 3], "cuda:1", ["device", "cuda", 0]]


def test_devices_are_numbered_as_the_graph_names_them() -> None:
    rows = described(torch.device("cuda", 3), torch.device("cuda", 1), "cuda:3", "cuda", torch.device("cpu"))
    assert rows == [["device", "cuda", 0], ["device", "cuda", 1], "cuda:0", "cuda", ["device", "cpu", None]]


@torch.library.custom_op("texts::at", mutates_args=())
def at(x: torch.Tensor, where: str, device: torch.device | None = None) -> torch.Tensor:
    return x * (int(where.partition(":")[2]) + 1)


@at.register_fake
def _(x: torch.Tensor, where: str, device: torch.device | None = None) -> torch.Tensor:
    return torch.empty_like(x)


def arguments(target: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """How a description has the arguments of a call, besides a first one that is on the device 3."""
    graph = torch.fx.Graph()
    first = graph.placeholder("x")
    call = graph.call_method if isinstance(target, str) else graph.call_function
    call(target, (first, *args), kwargs)
    encoder = GraphEncoder()
    encoder.value(torch.device("cuda", 3))
    *_, described_args, described_kwargs, _ = encoder.encode(
        torch.fx.GraphModule(torch.nn.Module(), graph)
    ).description[1][-1]
    return described_args[2:], list(described_kwargs[1:])


def of_the_program(x: torch.Tensor, *, device: str) -> torch.Tensor:
    return x


@pytest.mark.parametrize(
    ("target", "args", "kwargs", "expected"),
    [
        ("to", ["cuda:3"], {}, (["cuda:0"], [])),
        ("to", ["cuda:5", torch.float16], {}, (["cuda:1", ["dtype", "float16"]], [])),
        ("to", [], {"device": "cuda:3"}, ([], [["device", "cuda:0"]])),
        ("cuda", ["cuda:3"], {}, (["cuda:0"], [])),
        ("new_zeros", [2], {"device": "cuda:3"}, ([2], [["device", "cuda:0"]])),
        ("index_reduce", [0, "cuda:3"], {}, ([0, "cuda:3"], [])),
        (torch.as_tensor, [torch.float16, "cuda:3"], {}, ([["dtype", "float16"], "cuda:0"], [])),
        (torch.zeros_like, [], {"device": "cuda:3"}, ([], [["device", "cuda:0"]])),
        (torch.einsum, ["cuda:3"], {}, (["cuda:3"], [])),
        (torch.ops.aten.to.device, ["cuda:3", torch.float16], {}, (["cuda:0", ["dtype", "float16"]], [])),
        (torch.ops.texts.at, ["cuda:3"], {}, (["cuda:3"], [])),
        (torch.ops.texts.at.default, ["cuda:3"], {"device": "cuda:3"}, (["cuda:3"], [["device", "cuda:0"]])),
        (torch.ops.texts.at.default, [["cuda:3", "cuda:3"]], {}, ([["il", "cuda:3", "cuda:3"]], [])),
        (of_the_program, [], {"device": "cuda:3"}, ([], [["device", "cuda:3"]])),
    ],
)
def test_a_text_is_a_device_where_a_parameter_takes_one(target: Any, args: Any, kwargs: Any, expected: Any) -> None:
    assert arguments(target, *args, **kwargs) == expected


def test_a_text_for_an_operator_names_no_device() -> None:
    graph = torch.fx.Graph()
    graph.call_function(torch.ops.texts.at, (graph.placeholder("x"), "cuda:3"))
    assert GraphEncoder().encode(torch.fx.GraphModule(torch.nn.Module(), graph)).devices == set()


def test_ranks_on_devices_of_one_kind_share_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(4):
        current(monkeypatch, rank)
        found.append(placed(torch.device("cuda", rank), "cuda"))
    assert [one.indices for one in found] == [(0,), (1,), (2,), (3,)]
    assert found[0].key_part() == found[1].key_part() == found[2].key_part()
    assert found[3].key_part() != found[0].key_part(), "another kind of device"
    assert [one.needed for one in found] == [""] * 4


def test_devices_that_the_host_lacks_have_their_indices_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument of an operator can name one; the code names it by number."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = placed("cuda:1", "cuda:3")
    assert (found.indices, found.facts, found.key_part()) == ((1, 3), (), {})


def test_several_devices_keep_their_relation(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = placed(torch.device("cuda", 2), torch.device("cuda", 1), torch.device("cuda", 2))
    assert (pair.indices, pair.current) == ((2, 1), 0)
    assert pair.key_part() != placed(torch.device("cuda", 2)).key_part()
    other_kind = placed(torch.device("cuda", 2), torch.device("cuda", 3))
    assert other_kind.key_part() != pair.key_part()


def test_the_current_device_counts_where_it_is_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    current(monkeypatch, 1)
    assert placed(torch.device("cuda", 2)).indices == (2,), "a graph elsewhere than on the current device"
    both = placed(torch.device("cuda", 2), torch.device("cuda"))
    assert (both.indices, both.current) == ((2, 1), 1)
    assert placed("cuda").indices == (1,)
    assert placed(torch.device("cuda", 2), default="cuda:1").indices == (2, 1)


def test_a_graph_without_cuda_has_no_placement(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(torch.device("cpu")) == Placement()
    assert Placement().key_part() == {}
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert placed(torch.device("cuda", 0)) == Placement((0,)), "facts are of NVIDIA's devices"


@pytest.mark.parametrize(
    "option", ["benchmark_kernel", "benchmark_fusion", "triton.multi_kernel", "combo_kernel_compile_time_autotune"]
)
def test_what_lowering_measures_takes_a_worker_that_sees_the_device(option: str) -> None:
    if option not in configs.inductor_option_names():
        pytest.skip("this torch has no such option")
    with configs.patched({option: True if option != "triton.multi_kernel" else 1}):
        assert placed(torch.device("cuda", 0)).needed == option
    assert placed(torch.device("cuda", 0)).needed == ""


def test_memory_counts_where_lowering_decides_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    less = msgspec.structs.replace(H200, properties={**H200.properties, "total_memory": H200.memory // 2})
    monkeypatch.setattr(device_facts, "capture", [H200, less].__getitem__)

    def keys() -> list[dict[str, str]]:
        return [placed(torch.device("cuda", index)).key_part() for index in range(2)]

    one, other = keys()
    assert one == other
    with configs.patched({"partitioned_scatter_enabled": True}):
        one, other = keys()
    assert one != other
    assert one["cuda_needed"] == "partitioned_scatter_enabled", "a worker is to ask the device"


def attending(*before: Any, known: bool = True) -> EncodedGraph:
    """A graph that calls attention on a CUDA device after calls of `before`."""
    graph = torch.fx.Graph()
    query = graph.placeholder("query")
    if known:
        with FakeTensorMode():
            query.meta["example_value"] = torch.empty(2, 2, 8, 16, device="cuda:0")
    for function, *arguments in before:
        graph.call_function(function, tuple(arguments))
    graph.output(graph.call_function(attention.FUNCTION, (query, query, query)))
    encoder = GraphEncoder()
    encoder.value(torch.device("cuda", 0))
    return encoder.encode(torch.fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.skipif(
    torch.version.cuda is not None and not torch.cuda.is_available(), reason="a build with CUDA looks for a driver"
)
def test_attention_under_switches_of_the_graphs_own_is_decided_at_the_device() -> None:
    def needed(graph: EncodedGraph) -> str:
        return device_placement.placement_of(graph, None, None).needed

    plain = attending()
    (row,) = [row for row in plain.description[1] if row[0] == "call_function"]
    assert row[1] == ["attention", 0], "asked here, and sent along"
    assert needed(plain) == ""
    assert needed(attending(known=False)) == "attention"
    autocast = (torch.amp.autocast_mode._enter_autocast, "cuda", torch.bfloat16, True, None)
    assert needed(attending(autocast)) == "attention"
    assert needed(attending((torch.nn.attention._sdpa_kernel, []))) == "attention"


def test_other_reasons_to_see_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(torch.device("cuda", 0), default="cuda:2").needed == "default_device"
    graph = dataclasses.replace(encoded(torch.device("cuda", 0)), constants=[torch.ones(1, device="meta")])
    assert device_placement.placement_of(graph, None, None).needed == "constant"
    monkeypatch.setattr(toolchain, "find_compiler", lambda toolchain_dir: None)
    assert placed(torch.device("cuda", 0)).needed == "no_compiler"


def test_who_sees_devices_sees_them_in_the_graphs_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Placement((0, 1)).visible() is None
    assert Placement((2, 0)).visible() == "2,0"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 6,GPU-7")
    assert Placement((2, 0)).visible() == "GPU-7,4"


# ------------------------------------------------------------------------------ which host


def key_of(parts: dict[str, Any]) -> str:
    return key.GraphKey.of(parts).digest


def parts(**changed: Any) -> dict[str, Any]:
    named: dict[str, Any] = dict.fromkeys(components.ORDER, "")
    named["ambient"] = {"num_threads": 2, "grad": True}
    named["system"] = {"torch": "2.13.0", "cpu_extensions": "avx2", "cpu_capability": "AVX2", "libc": "glibc 2.36"}
    named["toolchain"] = {"compiler": "g++ 12"}
    for name, value in changed.items():
        for component in ("ambient", "system", "toolchain"):
            if name in named[component]:
                named[component] = {**named[component], name: value}
    return named


@pytest.mark.parametrize(
    "elsewhere",
    [{"num_threads": 16}, {"cpu_extensions": "avx512f"}, {"cpu_capability": "AVX512"}, {"libc": "glibc 2.39"},
     {"compiler": "g++ 13"}],
)  # fmt: skip
def test_code_for_a_gpu_is_for_any_host(elsewhere: dict[str, Any]) -> None:
    assert key_of(components.without_host(parts(**elsewhere))) == key_of(components.without_host(parts()))
    assert key_of(parts(**elsewhere)) != key_of(parts()), "with C++ in it, it is not"


@pytest.mark.parametrize("elsewhere", [{"torch": "2.11.0"}, {"grad": False}])
def test_but_not_for_any_torch(elsewhere: dict[str, Any]) -> None:
    assert key_of(components.without_host(parts(**elsewhere))) != key_of(components.without_host(parts()))


# ------------------------------------------------------------------------------ what is not answered


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no CUDA-capable device is detected"),
        RuntimeError("CUDA driver version is insufficient for CUDA runtime version"),
        AssertionError("Torch not compiled with CUDA enabled"),
        NotImplementedError("Could not run 'aten::empty_strided' with arguments from the 'CUDA' backend."),
        RuntimeError("No CUDA GPUs are available"),
    ],
)  # fmt: skip
def test_what_cpp_asks_of_a_device_that_is_not_there_is_a_question(error: Exception) -> None:
    assert "torch's C++" in device_answers.unanswered(error)
    wrapped = ValueError("a pass failed")
    wrapped.__cause__ = error
    assert "torch's C++" in device_answers.unanswered(wrapped)


def test_other_errors_are_none() -> None:
    assert device_answers.unanswered(RuntimeError("shapes differ")) == ""
    assert device_answers.unanswered(KeyError("CUDA error")) == ""


# ------------------------------------------------------------------------------ the library, made ahead

AHEAD = """
import os, subprocess, sys, time
import torch
from fxpool.lowering.cuda import devices

torch.cuda.is_initialized = lambda: True
os.sched_getaffinity = lambda pid: set(range(16))
begun = []
popen = subprocess.Popen
subprocess.Popen = lambda *args, **settings: begun.append(popen(*args, **settings)) or begun[-1]
devices.library_ahead(sys.argv[1])
while not any("devices.cpp" in " ".join(one.args) for one in begun):
    time.sleep(0.01)
if sys.argv[2] == "wait":
    begun[-1].wait()
    time.sleep(0.5)
print(begun[-1].pid)
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["wait", "end"])
def test_the_library_is_made_ahead_and_nobody_waits_for_it_at_the_end(tmp_path: Path, then: str) -> None:
    toolchain_dir = tmp_path / "toolchain"
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, str(toolchain_dir), then],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert not psutil.pid_exists(int(done.stdout)), "its compiler"
    made = sorted(path.suffix for path in (toolchain_dir / "devices").iterdir())
    assert made == ([".lock", ".sha256", ".so"] if then == "wait" else [".lock"]), "and nothing half made"


@pytest.mark.parametrize(("timing", "forgets"), [("0", True), (None, False)])
def test_a_worker_that_sees_devices_forgets_that_its_zygote_had_none(timing: str | None, forgets: bool) -> None:
    """Torch remembers whether Triton has a device: without one, each graph that needs to see it would be refused.

    The function looked at here is remembered in all releases, and asks no device.
    """
    from torch.utils._triton import has_triton_package

    has_triton_package()
    request: Any = SimpleNamespace(devices=(), timing=timing, toolchain_dir=None)
    with devices.answered(request) as answers:
        assert answers is None
        assert (has_triton_package.cache_info().currsize == 0) is forgets
