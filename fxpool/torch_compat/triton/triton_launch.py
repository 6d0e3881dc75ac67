"""Launching Triton's binaries with torch's static launcher, Triton itself not imported.

Also what Inductor does around a launch: measuring candidates as its autotuner does, and telling profilers and debug
modes of each kernel.
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
    """A kernel of a binary, loaded on a device: `function` is its handle, `spills` the registers it keeps in memory."""

    def __init__(self, binary: bytes, symbol: str, shared: int, device: int) -> None:
        """Raises RuntimeError where the driver refuses it, for one because it wants more than the device has."""
        # The driver takes paths only. One of a file without a place on disk will do.
        place = os.memfd_create(symbol[:200], os.MFD_CLOEXEC)
        try:
            with open(place, "wb", closefd=False) as file:
                file.write(binary)
            found = torch._C._StaticCudaLauncher._load_kernel(  # type: ignore[attr-defined]
                f"/proc/self/fd/{place}", symbol, shared, device
            )
        finally:
            os.close(place)
        # Since torch 2.13 the module's handle comes first.
        self._module: int | None = found[0] if len(found) == 4 else None
        self.function, self.registers, self.spills = found[-3:]

    def unload(self) -> None:
        """Give the binary's memory back; not everywhere can a binary be unloaded."""
        module, self._module = self._module, None
        if module is not None:
            torch._C._StaticCudaLauncher._unload_kernel(module)  # type: ignore[attr-defined]


def launcher() -> Launch:
    """``(function, x, y, z, warps, shared, types, arguments, stream)`` launches."""
    return torch._C._StaticCudaLauncher._launch_kernel  # type: ignore[attr-defined, no-any-return]


def current_device() -> int:
    return torch.cuda.current_device()


def current_stream() -> int:
    return torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())  # type: ignore[attr-defined, no-any-return]


def device_name() -> str:
    """What the kind of device that is current is called."""
    return torch.cuda.get_device_name()


def milliseconds(call: Callable[[], None]) -> float:
    """How long a launch takes, measured as Inductor's autotuner does; infinity for one that the device refuses."""
    from torch._inductor.runtime.benchmarking import benchmarker

    return float(benchmarker.benchmark(fn=call, device="cuda", rep=40, is_vetted_benchmarking=True))


@contextlib.contextmanager
def tuning_told(kernel: str) -> Iterator[None]:
    """Around measuring a kernel's candidates: torch's traces count it as what it is."""
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
"""Its `_is_profiler_enabled` is read before each launch."""


def debug_mode() -> Any:
    """The debug mode that records kernels, if one is active. Without its module there is none."""
    module = sys.modules.get("torch.utils._debug_mode")
    return module.get_active_debug_mode() if module is not None else None


def observed(
    launch: Launch, names: Sequence[str], told: dict[str, Any], arguments: tuple[Any, ...], stream: int
) -> None:
    """Launch, and tell the profiler or the debug mode that asks. `names` are those of the kernel's parameters."""
    mode, record = debug_mode(), None
    if mode is not None:
        values = dict(zip(names, arguments, strict=False))
        record = mode.record_triton_kernel(kernel_name=told["kernel_name"], kwargs=values)
    if profiler._is_profiler_enabled:
        with torch._C._profiler._RecordFunctionFast(told["kernel_name"], arguments, {**told, "stream": stream}):
            launch(*arguments, stream)
    else:
        launch(*arguments, stream)
    if record is not None:
        from torch._dynamo.device_interface import get_interface_for_device

        record.finalize(get_interface_for_device("cuda"))


def clone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, of memory that need not be dense."""
    length = _span(tensor)
    memory = torch.as_strided(tensor, (length,), (1,)).clone()
    return torch.as_strided(memory, tensor.size(), tensor.stride())


def set_aside(tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Copies in the CPU's memory of those whose copies on the device would raise the peak of its memory.

    As Inductor does before it measures a kernel that writes to its inputs; `put_back` undoes the writing.
    """
    try:
        free = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    except RuntimeError:  # an allocator of the user's that does not count
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
    for tensor, copy in copies:
        tensor.as_strided((_span(tensor),), (1,)).copy_(copy, non_blocking=True)


def _span(tensor: torch.Tensor) -> int:
    """Elements between a tensor's first and last in memory, both counted."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))


def compile_here(name: str, source: str) -> Any:
    """A kernel compiled by Triton in this process: where none of its binaries can be loaded."""
    from torch._inductor.async_compile import AsyncCompile

    made = AsyncCompile().triton(name, source, device_str="cuda")
    return made.result() if hasattr(made, "result") else made
