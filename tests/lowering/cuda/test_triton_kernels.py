"""Triton kernels compiled to launches without a GPU, and what the process that calls them makes of those.

Compiling is Triton's own, in a process that has it (`make test` puts it beside the environment, where nothing else
imports it). There is no GPU here, so what loads and times a binary is faked; bench/gpu has the real thing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from processes import HERE
from torch._inductor.runtime import triton_heuristics
from triton_place import path_with_triton

from fxpool import counters
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.kernel_files import KernelFiles
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact import entry_parts
from fxpool.lowering.artifact.entry_content import Content, Effects
from fxpool.lowering.cuda import triton_kernels
from fxpool.lowering.cuda.triton_kernels import Candidate, Kernel, TritonLinking
from fxpool.lowering.cuda.triton_library import Choices, TritonLibrary
from fxpool.lowering.worker import wrapper_linking
from fxpool.torch_compat.inductor import output_code
from fxpool.torch_compat.triton import triton_compile, triton_launch


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `triton_child.py` reports."""
    done = subprocess.run(
        [sys.executable, str(HERE / "triton_child.py"), str(tmp_path_factory.mktemp("t"))],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": path_with_triton()},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.slow
@pytest.mark.parametrize("name", ["doubled", "turned", "summed"])
def test_launches_are_those_of_torchs_launcher(compiled: dict[str, Any], name: str) -> None:
    kernel = compiled["kernels"][name]
    assert kernel["launches"] >= 10
    assert kernel["same"], kernel


def test_registers_are_read_from_the_binary(compiled: dict[str, Any]) -> None:
    for kernel in compiled["kernels"].values():
        mine, said = kernel["registers"]
        assert mine == said


def test_a_kernel_with_too_many_registers_gets_a_smaller_candidate(compiled: dict[str, Any]) -> None:
    blocks = [dict(p.split("=") for p in v.split(",")) for v in compiled["kernels"]["summed"]["values"]]
    assert [int(b["R0_BLOCK"]) for b in blocks] == [2048, 1024]


def test_what_choosing_needs_is_kept(compiled: dict[str, Any]) -> None:
    kernel = compiled["kernels"]["doubled"]
    assert (kernel["written"], kernel["spill_limit"], kernel["candidates"]) == (["a"], 16, 2)
    assert kernel["parameters"] == ["a", "n", "xnumel"]


def test_a_kernel_of_an_earlier_graph_is_not_compiled_again(tmp_path: Path) -> None:
    sent: list[triton_kernels.KernelSource] = []

    def submit(function: str, payload: bytes, label: str) -> Future[bytes]:
        source = msgspec.msgpack.decode(payload, type=triton_kernels.KernelSource)
        sent.append(source)
        future: Future[bytes] = Future()
        made = Kernel(source.name, ["a"], [], [], False, None, [Candidate(b"elf", source.source, 0, "", {})])
        future.set_result(msgspec.msgpack.encode(triton_kernels.CompiledKernel(made)))
        return future

    def graph(*sources: str, conditions: str = "", width: int = 1, keep: bool = True) -> list[str]:
        sent.clear()
        files = KernelFiles(LocalStore(str(tmp_path / "store")), conditions)
        linking = TritonLinking(submit, lambda: width, files)
        for source in sources:
            linking.take("triton_0", source)
        part = linking.part()
        assert [one.candidates[0].symbol for one in part.kernels] == list(sources)
        assert set(part.names) == {output_code.kernel_digest(["triton_0"], source) for source in sources}
        if keep:
            linking.keep()
        return [one.source for one in sent]

    assert graph("one", "two", keep=False) == ["one", "two"]
    assert graph("one", "two") == ["one", "two"]
    assert graph("two", "three", width=4) == ["three"] and sent[0].width == 4
    assert graph("one", "two", "three") == []
    assert graph("one", conditions="another key") == ["one"]
    from torch._inductor import config

    with config.patch(autotune_lookup_table={"key": {"XBLOCK": 1}}):
        assert graph("one") == ["one"] and graph("one") == []


def test_candidates_are_compiled_side_by_side(compiled: dict[str, Any]) -> None:
    (alone, made_alone), (beside, made_beside), (wide, made_wide) = (compiled["beside"][n] for n in ("1", "2", "8"))
    assert alone == beside == wide
    count = len(alone)
    assert count > 2 and made_alone == count
    assert (made_beside, made_wide) == ((count + 1) // 2, 1), "the others were made by processes beside this one"


def test_no_driver_is_made_where_kernels_are_compiled(compiled: dict[str, Any]) -> None:
    assert compiled["driver"] is True


def test_what_needs_triton_comes_as_its_files(compiled: dict[str, Any]) -> None:
    for reason, (no_kernel, said, size) in compiled["left"].items():
        assert (no_kernel, said) == (True, reason)
        assert size > 10_000


def test_descriptors_made_on_the_host_need_triton(compiled: dict[str, Any]) -> None:
    if not hasattr(triton_heuristics.CompileResult, "_host_tma_pre_runner_lines"):
        pytest.skip("this torch's launcher makes no descriptors")
    assert compiled["left"]["host_tma"][:2] == [True, "host_tma"]


def test_a_kernel_of_other_arguments_than_names_is_refused() -> None:
    """As those are that a program gives descriptors to: each is several arguments of the binary."""
    kernel = types.SimpleNamespace(
        cubin_raw=b"", name="k", shared=0, num_warps=4, arg_names=["a", "n"], arg_tys="Mili",
        declared_constexprs=[], full_constexprs=[], has_global_scratch=False, has_profile_scratch=False,
    )  # fmt: skip
    config = types.SimpleNamespace(num_stages=1, kwargs={})
    lists = ("calls", ["a", "n"], set[str]())
    result = types.SimpleNamespace(kernel=kernel, config=config, inductor_meta={}, _get_arg_lists=lambda *_: lists)
    with pytest.raises(triton_compile.NotLaunchableError, match="arguments"):
        triton_compile.Candidate(result)


def test_tritons_own_error_comes_back(compiled: dict[str, Any]) -> None:
    name, text = compiled["error"]
    assert name == "CompilationError"
    assert "nobody" in text


@pytest.mark.parametrize("data", [b"", b"\x7fELF\x02\x01", b"\x7fELF\x02\x01" + bytes(80), bytes(100)])
def test_a_binary_that_is_none_says_nothing_of_registers(data: bytes) -> None:
    assert triton_compile.registers(data, "k") is None


# ------------------------------------------------------------ in the process that calls


class Device:
    """Stands for a GPU: which binaries it takes, how long they run, what was launched on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.name = "A"
        self.times: dict[bytes, float] = {}
        self.spills: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self.loaded: list[bytes] = []
        self.unloaded: list[bytes] = []
        self.measured: list[bytes] = []
        self.launched: list[Any] = []
        device = self

        class Loaded:
            def __init__(self, binary: bytes, symbol: str, shared: int, index: int) -> None:
                if binary in device.refused:
                    raise RuntimeError("too much shared memory")
                device.loaded.append(binary)
                self.function, self.spills = binary, device.spills.get(binary, 0)

            def unload(self) -> None:
                device.unloaded.append(self.function)

        def milliseconds(call: Callable[[], None]) -> float:
            before = len(self.launched)
            call()
            binary = self.launched[before][0]
            del self.launched[before:]
            self.measured.append(binary)
            return self.times[binary]

        def launch(function: bytes, *rest: Any) -> None:
            self.launched.append((function, *rest))
            arguments = rest[-2]
            for value in arguments:
                if isinstance(value, torch.Tensor):
                    value.add_(1)

        monkeypatch.setattr(triton_launch, "Loaded", Loaded)
        monkeypatch.setattr(triton_launch, "milliseconds", milliseconds)
        monkeypatch.setattr(triton_launch, "launcher", lambda: launch)
        monkeypatch.setattr(triton_launch, "current_device", lambda: 0)
        monkeypatch.setattr(triton_launch, "current_stream", lambda: 3)
        monkeypatch.setattr(triton_launch, "device_name", lambda: self.name)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


CODE = """
def launch(a, n, stream):
    _launch(_function, n, 1, 1, 4, 0, 'Oi', (a, n), stream)
def run(a, n, stream):
    if _profiler._is_profiler_enabled or _debug_mode() is not None:
        return _observed(launch, _names, _told, (a, n), stream)
    _launch(_function, n, 1, 1, 4, 0, 'Oi', (a, n), stream)
"""


def kernel(*binaries: bytes, **more: Any) -> Kernel:
    told = {"kernel_name": "k"}
    settings = {"written": [], "zeroed": [], "optimize_memory": False, "spill_limit": 16, **more}
    return Kernel("k", ["a", "n"], candidates=[Candidate(b, "k", 0, CODE, told) for b in binaries], **settings)


def library(*kernels: Kernel, choices: Choices | None = None) -> tuple[Any, list[Choices]]:
    """A library, whose kernels are attributes, and what was kept of its choices."""
    kept: list[Choices] = []
    return TritonLibrary(kernels, choices or {}, kept.append), kept


def test_one_candidate_is_loaded_when_it_is_called(device: Device) -> None:
    mine, kept = library(kernel(b"one"), kernel(b"two"))
    assert device.loaded == []
    for _ in range(3):
        mine.t1.run("a", 4, stream=9)
    assert device.loaded == [b"two"]
    assert device.launched == [(b"two", 4, 1, 1, 4, 0, "Oi", ("a", 4), 9)] * 3
    assert device.measured == []
    mine.keep_choices()
    assert kept == []


def test_the_fastest_candidate_is_kept_for_the_kind_of_device(device: Device) -> None:
    device.times = {b"slow": 2.0, b"fast": 1.0}
    mine, kept = library(kernel(b"slow", b"fast"))
    mine.t0.run("a", 4, stream=9)
    mine.t0.run("a", 4, stream=9)
    assert [call[0] for call in device.launched] == [b"fast", b"fast"]
    assert device.measured == [b"slow", b"fast"]
    assert device.unloaded == [b"slow"]
    assert mine.changed
    mine.keep_choices()
    mine.keep_choices()
    assert kept == [{"A": {"t0": 1}}]

    again, kept = library(kernel(b"slow", b"fast"), choices={"A": {"t0": 1}})
    device.measured.clear()
    again.t0.run("a", 4, stream=9)
    assert device.measured == []
    assert device.loaded[-1] == b"fast"
    device.name = "B"  # another kind of device: other times
    device.times = {b"slow": 1.0, b"fast": 2.0}
    other, kept = library(kernel(b"slow", b"fast"), choices={"A": {"t0": 1}})
    other.t0.run("a", 4, stream=9)
    other.keep_choices()
    assert kept == [{"A": {"t0": 1}, "B": {"t0": 0}}]


def test_a_candidate_that_spills_is_not_measured(device: Device) -> None:
    device.times, device.spills = {b"good": 5.0}, {b"bad": 17}
    mine, _ = library(kernel(b"bad", b"good"))
    mine.t0.run("a", 4, stream=9)
    assert device.measured == [b"good"]
    assert device.launched[0][0] == b"good"


def test_measuring_leaves_the_inputs_alone(device: Device) -> None:
    device.times = {b"x": 2.0, b"y": 1.0}
    mine, _ = library(kernel(b"x", b"y", written=["a"]))
    tensor = torch.zeros(6).as_strided((2, 2), (3, 1))
    mine.t0.run(tensor, 4, stream=9)
    assert tensor.tolist() == [[1.0, 1.0], [1.0, 1.0]]  # the one call that was asked for
    zeroed, _ = library(kernel(b"x", b"y", zeroed=["a"]))
    tensor = torch.zeros(3)
    zeroed.t0.run(tensor, 4, stream=9)
    assert tensor.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("size", [(4, 3), (0, 3), ()])
def test_a_copy_to_measure_on_has_the_same_strides(size: tuple[int, ...]) -> None:
    tensor = torch.rand(*size).t() if len(size) == 2 else torch.rand(size)
    copy = triton_launch.clone(tensor)
    assert (copy.stride(), copy.tolist()) == (tensor.stride(), tensor.tolist())
    assert tensor.numel() == 0 or copy.data_ptr() != tensor.data_ptr()


def test_a_binary_that_is_refused_leaves_the_others(device: Device) -> None:
    device.times, device.refused = {b"ok": 9.0}, {b"large"}
    mine, _ = library(kernel(b"large", b"ok"))
    mine.t0.run("a", 4, stream=9)
    assert device.launched[0][0] == b"ok"
    chosen, _ = library(kernel(b"large", b"ok"), choices={"A": {"t0": 0}})
    chosen.t0.run("a", 4, stream=9)
    assert device.launched[1][0] == b"ok"
    strange, _ = library(kernel(b"large", b"ok"), choices={"A": {"t0": 7}})
    strange.t0.run("a", 4, stream=9)
    assert device.launched[2][0] == b"ok"


def test_where_no_binary_is_taken_the_kernel_is_compiled_here(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.refused = {b"one"}
    asked = []

    class Made:
        def run(self, *args: Any, stream: int) -> str:
            return "made"

    def compile_here(name: str, source: str) -> Made:
        asked.append((name, source))
        return Made()

    monkeypatch.setattr(triton_launch, "compile_here", compile_here)
    counters.reset()
    mine, _ = library(kernel(b"one"))
    mine.texts.append("k = async_compile.triton('k', '''\nthe text\n''', device_str='cuda')")
    assert mine.t0.run("a", 4, stream=9) == "made"
    assert asked == [("k", "\nthe text\n")]
    assert counters.snapshot()["fallbacks"] == {"loader:triton_binary": 1}
    unknown, _ = library(kernel(b"one"))
    with pytest.raises(RuntimeError, match="none of the 1 binaries of Triton kernel k"):
        unknown.t0.run("a", 4, stream=9)


def test_a_profiler_is_told_of_launches(device: Device) -> None:
    mine, _ = library(kernel(b"one"))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as seen:
        mine.t0.run(torch.zeros(2), 4, stream=9)
    assert len(device.launched) == 1
    assert [event.name for event in seen.events() if event.name == "k"] == ["k"]


def test_choices_join_the_entry(device: Device, tmp_path: Path) -> None:
    device.times = {b"slow": 2.0, b"fast": 1.0}
    tmp_path.chmod(0o700)
    store = LocalStore(str(tmp_path))
    data = msgspec.msgpack.encode([kernel(b"slow", b"fast")])
    entry = Entry(key="ab" * 32, content=Content(level="aot", effects=Effects(mutated_inputs=[1])))
    entry = store.publish(entry, {entry_parts.RESULT: b"r", entry_parts.TRITON: data})
    parts = entry_parts.parts_of_entry(entry, store)
    mine = parts.triton()
    assert parts.triton() is mine  # backward and forward share them
    kernels: Any = mine
    kernels.t0.run("a", 4, stream=9)
    mine.keep_choices()

    (again,) = store.entries(entry.key)
    assert store.complete(again)
    parts = entry_parts.parts_of_entry(again, store)
    assert parts.effects == Effects(mutated_inputs=[1])
    device.measured.clear()
    kernels = parts.triton()
    kernels.t0.run("a", 4, stream=9)
    assert device.measured == []


def test_a_wrapper_takes_its_kernels_from_the_library() -> None:
    text = """
from torch._inductor.async_compile import AsyncCompile
import triton
from torch._inductor.runtime.triton_heuristics import start_graph
async_compile = AsyncCompile()
first = async_compile.triton('first', '''one''', device_str='cuda')
second = async_compile.triton('second', '''two''', device_str='cuda')
async_compile.wait(globals())
del async_compile
def call(args):
    first.run(args, stream=1)
"""
    names = {output_code.kernel_digest(["first"], "one"): "t0", output_code.kernel_digest(["second"], "two"): "t1"}
    linked = wrapper_linking.link(text, "<w>", {}, names)
    assert (linked.triton, linked.kernels, linked.unlinked) == (2, 0, [])
    partly = wrapper_linking.link(text, "<w>", {}, {output_code.kernel_digest(["first"], "one"): "t0"})
    assert partly.triton == 1
    assert partly.unlinked == ["async_compile.triton"]
