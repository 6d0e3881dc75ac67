"""Times calls: on the CPU by the wall clock, on a GPU by its own, which sees what a call has queued there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

__all__ = ["Clock", "clock_of", "device_of", "uuid_of"]

#: A sample takes at least so many seconds: that many calls are in it, so that the clock's own error is small.
_SAMPLE_SECONDS = 200e-6


class Clock(Protocol):
    """Times `count` calls of a function together."""

    def seconds(self, call: Callable[[], object], count: int) -> float:
        """Return the seconds of all calls together, until the device has done what they queued."""


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


def device_of(device: Any) -> torch.device:
    """Return the device, with its index; the CPU for None.

    Raises ValueError: nothing can be timed there.
    """
    found = torch.device("cpu" if device is None else device)
    if found.type not in ("cpu", "cuda"):
        raise ValueError(f"there is no clock for {found}: it has to be the CPU or a CUDA device")
    if found.type == "cpu":
        return torch.device("cpu")
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def uuid_of(device: torch.device) -> str | None:
    """Return what NVML calls a GPU, whatever number it has in this process; None for the CPU."""
    if device.type == "cpu":
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CpuClock() if device.type == "cpu" else CudaClock(device)


def calls_per_sample(clock: Clock, call: Callable[[], object]) -> int:
    """Return how many calls make a sample that the clock can tell from others."""
    count = 1
    while (taken := clock.seconds(call, count)) < _SAMPLE_SECONDS:
        count = max(2 * count, min(10 * count, int(count * _SAMPLE_SECONDS / max(taken, 1e-9)) + 1))
    return count
