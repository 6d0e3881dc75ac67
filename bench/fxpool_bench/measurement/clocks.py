"""Times calls: on the CPU by the wall clock, on a GPU by events, which include the work that a call queues.

torch's profiler is the alternative: on a GPU it sums the times of kernels, without the gaps between them; on the CPU,
those of operators and compiled graphs, without the Python code between them. Its records cost time of the operators
that they are about: of a product of 16 x 16 numbers more than the product takes. So a session has many calls, the same
calls are timed by the clock too, and the smaller figure counts.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, Protocol

import torch

__all__ = ["Clock", "Timer", "clock_of", "device_of", "uuid_of"]

#: The device's clock, or torch's profiler.
Timer = Literal["clock", "profiler"]

#: The minimum duration of a sample, in seconds. It has as many calls as that takes, so that the clock's error is small.
_SAMPLE_SECONDS = 200e-6
#: The same for a session of torch's profiler, whose start slows the calls after it.
_SESSION_SECONDS = 10e-3
#: Calls in a session, unless one takes longer than the minimum, and the seconds that reading their records may take:
#: 70 us a record, and a layer of a model has ten.
_SESSION_CALLS, _READING_SECONDS = (10, 100), 0.1


class Clock(Protocol):
    """Times `count` calls of a function together."""

    def seconds(self, call: Callable[[], object], count: int) -> float:
        """Return the seconds of all calls together, until the device has finished the work that they queued."""


class CpuClock:
    """The wall clock."""

    def seconds(self, call: Callable[[], object], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            call()
        return time.perf_counter() - start


class CudaClock:
    """Events on the current stream of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def seconds(self, call: Callable[[], object], count: int) -> float:
        with torch.cuda.device(self._device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(count):
                call()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3


class ProfilerClock:
    """torch's profiler: the sum of the times of kernels or, on the CPU, of operators and compiled graphs that no other
    operator called; or the device's clock, if that says less. `capped` counts the times that it did, of `sessions`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.clock = clock_of(device)
        self.sessions = self.capped = 0

    def seconds(self, call: Callable[[], object], count: int) -> float:
        """Raises RuntimeError if a profiler is already running, or the profiler saw nothing."""
        recorded = self._recorded(call, count)
        self.clock.seconds(call, count)  # reading the records has emptied the processor's caches
        clocked = self.clock.seconds(call, count)
        self.sessions += 1
        self.capped += recorded > clocked
        return min(recorded, clocked)

    def _recorded(self, call: Callable[[], object], count: int) -> float:
        from torch.profiler import ProfilerActivity, profile  # only profiling needs its imports

        on_gpu = self._device.type == "cuda"
        activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
        with torch.cuda.device(self._device) if on_gpu else contextlib.nullcontext():
            if on_gpu:
                torch.cuda.synchronize()
            with profile(activities=[activity]) as seen:
                for _ in range(count):
                    call()
                if on_gpu:
                    torch.cuda.synchronize()
        times = [_kernel_time(event) if on_gpu else _operator_time(event) for event in seen.events() or ()]
        taken = [one for one in times if one is not None]
        if not taken:
            what = "GPU kernel of the function" if on_gpu else "operator that the function calls"
            raise RuntimeError(f"torch's profiler saw no {what}")
        return float(sum(taken)) / 1e6


def _kernel_time(event: Any) -> float | None:
    """Return the microseconds of a kernel, copy or fill; None for other events."""
    if event.device_type != torch.autograd.DeviceType.CUDA or event.name == "Context Sync":
        return None
    return float(event.self_device_time_total)


def _operator_time(event: Any) -> float | None:
    """Return the microseconds of an operator; None if another operator called it, and for events of the profiler."""
    own = event.name.startswith(("ProfilerStep", "[memory]"))
    return None if event.cpu_parent is not None or own else float(event.cpu_time_total)


def device_of(device: Any) -> torch.device:
    """Return the device with its index; the CPU for None.

    Raises ValueError for a device that is neither the CPU nor a CUDA device.
    """
    found = torch.device("cpu" if device is None else device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"cannot time code on {found}, only on the CPU or a CUDA device")
    if found.type == "cpu":
        return torch.device("cpu")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def uuid_of(device: torch.device) -> str | None:
    """Return the UUID by which NVML identifies a GPU, whatever its index in this process; None for the CPU."""
    if device.type == "cpu":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def clock_of(device: torch.device, timer: Timer = "clock") -> Clock:
    """Return the clock of a device, or the profiler. Raises ValueError for another timer."""
    if timer == "profiler":
        return ProfilerClock(device)
    if timer != "clock":
        raise ValueError(f"timer must be 'clock' or 'profiler', got {timer!r}")
    return CpuClock() if device.type == "cpu" else CudaClock(device)


def calls_per_sample(clock: Clock, call: Callable[[], object]) -> int:
    """Return the number of calls that make a sample long enough for the clock."""
    if not isinstance(clock, ProfilerClock):
        return _calls_of(clock, call, _SAMPLE_SECONDS, sys.maxsize)
    fewest, most = _SESSION_CALLS
    count = _calls_of(clock.clock, call, _SESSION_SECONDS, most)
    began = time.perf_counter()
    clock.seconds(call, count)
    share = _READING_SECONDS / (time.perf_counter() - began)
    return min(count, max(fewest, int(count * share)))


def _calls_of(clock: Clock, call: Callable[[], object], seconds: float, most: int) -> int:
    count = 1
    while (taken := clock.seconds(call, count)) < seconds and count < most:
        count = min(most, max(2 * count, min(10 * count, int(count * seconds / max(taken, 1e-9)) + 1)))
    return count
