"""`triton_launch` launches Triton's binaries with torch's static launcher; here the launcher is stood in for."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

from fxpool.torch_compat.triton import triton_launch
from fxpool.torch_compat.triton.triton_launch import Loaded


class Launcher:
    """Stands for torch's: notes the calls, and gives what a release of torch gives."""

    def __init__(self, *loaded: int) -> None:
        self.loaded, self.calls, self.unloaded = loaded, list[Any](), list[int]()

    def _load_kernel(self, path: str, symbol: str, shared: int, device: int) -> tuple[int, ...]:
        with open(path, "rb") as file:
            self.calls.append((file.read(), symbol, shared, device))
        return self.loaded

    def _unload_kernel(self, module: int) -> None:
        self.unloaded.append(module)

    def _launch_kernel(self, *arguments: Any) -> None:
        self.calls.append(arguments)


@pytest.fixture
def launcher(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Launcher]:
    def use(*loaded: int) -> Launcher:
        made = Launcher(*loaded)
        monkeypatch.setattr(torch._C, "_StaticCudaLauncher", made, raising=False)
        return made

    return use


def test_a_binary_is_loaded_from_memory(launcher: Callable[..., Launcher]) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    torchs = launcher(11, 40, 2)  # until torch 2.12: function, registers, spills
    kernel = Loaded(b"binary", "symbol", 1024, 3)
    assert torchs.calls == [(b"binary", "symbol", 1024, 3)]
    assert (kernel.function, kernel.registers, kernel.spills) == (11, 40, 2)
    kernel.unload()
    assert torchs.unloaded == [] and len(os.listdir("/proc/self/fd")) == descriptors


def test_a_module_is_unloaded_once(launcher: Callable[..., Launcher]) -> None:
    torchs = launcher(77, 11, 40, 2)
    kernel = Loaded(b"binary", "symbol", 0, 0)
    assert (kernel.function, kernel.registers, kernel.spills) == (11, 40, 2)
    kernel.unload()
    kernel.unload()
    assert torchs.unloaded == [77]


def test_torch_s_launch_is_handed_out(launcher: Callable[..., Launcher]) -> None:
    torchs = launcher()
    triton_launch.launcher()(1, 2, 3)
    assert torchs.calls == [(1, 2, 3)]


TOLD = {"kernel_name": "compat_kernel", "kernel_backend": "triton"}


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")  # torch 2.11 and 2.12
def test_a_launch_is_reported_to_a_profiler() -> None:
    launched: list[Any] = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert triton_launch.profiler._is_profiler_enabled
        triton_launch.observed(lambda *call: launched.append(call), ["a"], TOLD, (torch.ones(1), 3), 7)
    ((_, number, stream),) = launched
    assert (number, stream) == (3, 7)
    assert "compat_kernel" in [event.name for event in profile.events()]
    assert not triton_launch.profiler._is_profiler_enabled


def test_a_launch_is_reported_to_a_debug_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._dynamo import device_interface
    from torch.utils import _debug_mode

    assert triton_launch.debug_mode() is None
    recorded: list[Any] = []

    class Record:
        def finalize(self, interface: Any) -> None:
            recorded.append(interface)

    class Mode:
        def record_triton_kernel(self, *, kernel_name: str, kwargs: dict[str, Any]) -> Record:
            recorded.append((kernel_name, kwargs))
            return Record()

    monkeypatch.setattr(_debug_mode, "get_active_debug_mode", Mode)
    monkeypatch.setattr(device_interface, "get_interface_for_device", lambda device: device)
    triton_launch.observed(lambda *call: recorded.append(call), ["a", "b"], TOLD, (1, 2), 7)
    assert recorded == [("compat_kernel", {"a": 1, "b": 2}), (1, 2, 7), "cuda"]


def test_torch_s_debug_mode_takes_these_arguments() -> None:
    import inspect

    from torch.utils._debug_mode import DebugMode

    with DebugMode() as mode:
        assert triton_launch.debug_mode() is mode
    assert list(inspect.signature(DebugMode.record_triton_kernel).parameters) == ["self", "kernel_name", "kwargs"]


def test_a_copy_has_the_same_strides() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)[:, ::2].t()
    copy = triton_launch.clone(tensor)
    assert torch.equal(copy, tensor) and copy.stride() == tensor.stride() and copy.data_ptr() != tensor.data_ptr()
    assert triton_launch.clone(torch.empty(0, 3)).shape == (0, 3)
    expanded = torch.ones(1).expand(4)
    assert triton_launch.clone(expanded).stride() == (0,)


def test_contents_are_set_aside_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    def empty(size: Any, stride: Any, *, dtype: Any, device: Any, pin_memory: bool) -> torch.Tensor:
        assert pin_memory and device == "cpu"
        return torch.empty(size, dtype=dtype).as_strided(size, stride)

    monkeypatch.setattr(torch, "empty_strided", empty)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 60)
    small, large = torch.arange(8.0), torch.arange(16.0).reshape(4, 4).t()  # 32 and 64 bytes, of 40
    copies = triton_launch.set_aside([small, large])
    assert [tensor is large for tensor, _ in copies] == [True]
    expected = large.clone()
    large.zero_()
    triton_launch.put_back(copies)
    assert torch.equal(large, expected)

    def no_counts() -> int:
        raise RuntimeError("of another allocator")

    monkeypatch.setattr(torch.cuda, "memory_allocated", no_counts)
    assert triton_launch.set_aside([large]) == []


def test_measuring_is_told_to_torch_s_traces() -> None:
    from torch._dynamo.utils import compilation_time_metrics

    name = "CachingAutotuner.benchmark_all_configs"
    before = len(compilation_time_metrics.get(name, []))
    with triton_launch.tuning_told("compat_kernel"):
        pass
    assert len(compilation_time_metrics[name]) == before + 1


def test_candidates_are_timed_by_inductor_s_benchmarker(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import benchmarking

    asked: list[dict[str, Any]] = []

    def benchmark(**arguments: Any) -> float:
        asked.append(arguments)
        return 1.5

    call = test_a_copy_has_the_same_strides
    import inspect

    signature = inspect.signature(benchmarking.benchmarker.benchmark)
    monkeypatch.setattr(benchmarking.benchmarker, "benchmark", benchmark)
    assert triton_launch.milliseconds(call) == 1.5
    signature.bind(**asked[0])  # torch's own takes them, too
    assert asked[0]["fn"] is call and asked[0]["device"] == "cuda"


def test_a_kernel_is_compiled_here_if_no_binary_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.async_compile import AsyncCompile

    asked: list[Any] = []

    def triton(self: Any, name: str, source: str, device_str: str) -> Any:
        asked.append((name, source, device_str))
        return types.SimpleNamespace(result=lambda: "compiled") if name == "later" else "now"

    monkeypatch.setattr(AsyncCompile, "triton", triton)
    assert triton_launch.compile_here("later", "source") == "compiled"
    assert triton_launch.compile_here("first", "source") == "now"
    assert asked == [("later", "source", "cuda"), ("first", "source", "cuda")]
