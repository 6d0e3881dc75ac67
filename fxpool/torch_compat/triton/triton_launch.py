"""Launches Triton's binaries with torch's static launcher, without importing Triton.

It also does what Inductor does around a launch: measures candidates as its autotuner does, and reports each kernel to
profilers and debug modes.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

Launch = Callable[..., None]


class Loaded:
    """A kernel loaded on a device: `function` is its handle, `spills` the number of registers it spills to memory."""

    def __init__(self, binary: bytes, symbol: str, shared: int, device: int) -> None:
        """Load a binary. Raises RuntimeError: the driver refuses it, for example as it exceeds the device's limits."""
        # The driver accepts only paths; a file in memory has one.
        place = os.memfd_create(symbol[:200], os.MFD_CLOEXEC)
        try:
            with open(place, "wb", closefd=False) as file:
                file.write(binary)
            loaded = torch._C._StaticCudaLauncher._load_kernel(f"/proc/self/fd/{place}", symbol, shared, device)
        finally:
            os.close(place)
        # Since torch 2.13 the module's handle comes first.
        self._module: int | None = loaded[0] if len(loaded) == 4 else None
        self.function, self.registers, self.spills = loaded[-3:]

    def unload(self) -> None:
        """Free the binary's memory, in releases that support unloading."""
        module, self._module = self._module, None
        if module is not None:
            torch._C._StaticCudaLauncher._unload_kernel(module)


def launcher() -> Launch:
    """Return torch's launch: ``(function, x, y, z, warps, shared, types, arguments, stream)``."""
    return torch._C._StaticCudaLauncher._launch_kernel


def current_device() -> int:
    return torch.cuda.current_device()


def current_stream() -> int:
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())


def device_name() -> str:
    """Return the name of the current device's kind."""
    return torch.cuda.get_device_name()


def milliseconds(call: Callable[[], None]) -> float:
    """Return the milliseconds of a launch, measured as Inductor's autotuner does; infinity if the device refuses it."""
    from torch._inductor.runtime.benchmarking import benchmarker

    return float(benchmarker.benchmark(fn=call, device="cuda", rep=40, is_vetted_benchmarking=True))


@contextlib.contextmanager
def tuning_told(kernel: str) -> Iterator[None]:
    """Record the measurement of a kernel's candidates in torch's traces, during a ``with`` block."""
    from torch._dynamo.utils import dynamo_timed

    with dynamo_timed(
        "CachingAutotuner.benchmark_all_configs",
        log_pt2_compile_event=True,
        metadata={"kernel_name": kernel},
        dynamo_compile_column_us="runtime_triton_autotune_time_us",
        log_waitcounter=True,
        waitcounter_name_override="triton_autotuner",
    ):
        yield


profiler = torch.autograd.profiler
"""A namespace whose `_is_profiler_enabled` is read before each launch."""


def debug_mode() -> Any:
    """Return the active debug mode that records kernels, if any. It cannot be active if its module is not imported."""
    module = sys.modules.get("torch.utils._debug_mode")
    return module.get_active_debug_mode() if module is not None else None


def observed(
    launch: Launch, names: Sequence[str], report: dict[str, Any], arguments: tuple[Any, ...], stream: int
) -> None:
    """Launch, and report to an active profiler or debug mode. `names` are those of the kernel's parameters."""
    mode, record = debug_mode(), None
    if mode is not None:
        values = dict(zip(names, arguments, strict=False))
        record = mode.record_triton_kernel(kernel_name=report["kernel_name"], kwargs=values)
    if profiler._is_profiler_enabled:
        with torch._C._profiler._RecordFunctionFast(report["kernel_name"], arguments, {**report, "stream": stream}):
            launch(*arguments, stream)
    else:
        launch(*arguments, stream)
    if record is not None:
        from torch._dynamo.device_interface import get_interface_for_device

        record.finalize(get_interface_for_device("cuda"))


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the same strides, of memory that need not be dense."""
    length = _span(tensor)
    memory = torch.as_strided(tensor, (length,), (1,)).clone()
    return torch.as_strided(memory, tensor.size(), tensor.stride())


def set_aside(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copy to CPU memory those tensors whose copies on the device would raise its memory peak; return the pairs.

    Inductor does the same before it measures a kernel that writes to its inputs; `put_back` restores the contents.
    """
    try:
        free = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    except RuntimeError:  # a custom allocator without statistics
        return []
    copies = []
    for tensor in tensors:
        size = _span(tensor) * tensor.element_size()
        if size <= free:
            free -= size
            continue
        copy = torch.empty_strided((_span(tensor),), (1,), dtype=tensor.dtype, device="cpu", pin_memory=True)
        copy.copy_(tensor.as_strided((_span(tensor),), (1,)), non_blocking=True)
        copies.append((tensor, copy))
    return copies


def put_back(copies: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy saved contents back to their tensors."""
    for tensor, copy in copies:
        tensor.as_strided((_span(tensor),), (1,)).copy_(copy, non_blocking=True)


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements between a tensor's first and last in memory, both included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def compile_here(name: str, source: str) -> Any:
    """Compile a kernel with Triton in this process, as a fallback for binaries that cannot be loaded."""
    from torch._inductor.async_compile import AsyncCompile

    made = AsyncCompile().triton(name, source, device_str="cuda")
    return made.result() if hasattr(made, "result") else made
