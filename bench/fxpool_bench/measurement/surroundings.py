"""The other activity of the machine during a measurement: load, clock, temperature, other processes on a GPU.

Values that cannot be read (no sensors in a virtual machine, no NVML) are None, and no conclusions are drawn from them.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import asdict, dataclass
from typing import Any

import psutil

__all__ = ["Look", "Surroundings", "between", "look"]

# Clocks of processors normally vary by less than this.
_CLOCK = 0.05


@dataclass(frozen=True)
class Look:
    """The state of the machine at one time. `busy` and `own` are CPU seconds of all processes and of this process."""

    at: float
    busy: float
    own: float
    load: float
    megahertz: float | None
    celsius: float | None
    gpu: GpuLook | None = None


@dataclass(frozen=True)
class GpuLook:
    """The state of a GPU. `others` is the number of other processes that have it open and are not stopped."""

    megahertz: float
    celsius: float
    others: int


@dataclass(frozen=True)
class Surroundings:
    """The activity of the machine between two looks, in a period of `seconds`.

    `own_cores` and `other_cores` are the average numbers of cores that this process and all others kept busy. `load` is
    the load average (1 minute) before. `megahertz` and `celsius` are pairs, before and after. `gpu_*` are the same for
    the GPU; `gpu_processes` is the number of other processes that had it open and were not stopped.
    """

    seconds: float
    own_cores: float
    other_cores: float
    load: float
    megahertz: tuple[float, float] | None
    celsius: tuple[float, float] | None
    gpu_megahertz: tuple[float, float] | None = None
    gpu_celsius: tuple[float, float] | None = None
    gpu_processes: int | None = None

    def remarks(self) -> list[str]:
        """Return reasons to doubt a measurement in this period, as clauses."""
        said = []
        if self.other_cores > max(0.1, 0.05 * (os.cpu_count() or 1)):
            said.append(f"other processes kept {self.other_cores:.1f} cores busy")
        for name, clock in (("processor", self.megahertz), ("GPU", self.gpu_megahertz)):
            if clock is not None and clock[0] and abs(clock[1] / clock[0] - 1) > _CLOCK:
                said.append(f"the {name}'s clock went from {clock[0]:.0f} to {clock[1]:.0f} MHz")
        if self.gpu_processes:
            said.append(f"{self.gpu_processes} other processes had the GPU open")
        return said

    def facts(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        return asdict(self)


def look(gpu: str | None = None) -> Look:
    """Return the state of the machine, and of the GPU with this UUID. Takes a millisecond or two."""
    cpu = psutil.cpu_times()
    spent = os.times()
    # `user` already includes the time of guests. Time stolen by a hypervisor counts as busy.
    idle = cpu.idle + getattr(cpu, "iowait", 0.0) + getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)
    return Look(
        at=time.monotonic(),
        busy=sum(cpu) - idle,
        own=spent.user + spent.system + spent.children_user + spent.children_system,
        load=os.getloadavg()[0],
        megahertz=_megahertz(),
        celsius=_celsius(),
        gpu=_gpu(gpu) if gpu is not None else None,
    )


def between(before: Look, after: Look) -> Surroundings:
    """Return the activity of the machine between two looks."""
    seconds = max(after.at - before.at, 1e-9)
    own = after.own - before.own
    gpus = (before.gpu, after.gpu) if before.gpu is not None and after.gpu is not None else None
    return Surroundings(
        seconds=seconds,
        own_cores=own / seconds,
        # The kernel counts in ticks, so the difference may be a tick below zero.
        other_cores=max(0.0, (after.busy - before.busy - own) / seconds),
        load=before.load,
        megahertz=_both(before.megahertz, after.megahertz),
        celsius=_both(before.celsius, after.celsius),
        gpu_megahertz=(gpus[0].megahertz, gpus[1].megahertz) if gpus else None,
        gpu_celsius=(gpus[0].celsius, gpus[1].celsius) if gpus else None,
        gpu_processes=max(gpus[0].others, gpus[1].others) if gpus else None,
    )


def _both(before: float | None, after: float | None) -> tuple[float, float] | None:
    return (before, after) if before is not None and after is not None else None


def _megahertz() -> float | None:
    with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
        frequency = psutil.cpu_freq()
        return frequency.current if frequency is not None and frequency.current else None
    return None


def _celsius() -> float | None:
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sensors = psutil.sensors_temperatures()
        return max(one.current for name in ("coretemp", "k10temp", "cpu_thermal") for one in sensors.get(name, ()))
    return None


def _gpu(uuid: str) -> GpuLook | None:
    try:
        import pynvml  # nvidia-ml-py, an optional dependency
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(device)
            return GpuLook(
                megahertz=float(pynvml.nvmlDeviceGetClockInfo(device, pynvml.NVML_CLOCK_SM)),
                celsius=float(pynvml.nvmlDeviceGetTemperature(device, pynvml.NVML_TEMPERATURE_GPU)),
                others=sum(process.pid != os.getpid() and not _is_stopped(process.pid) for process in processes),
            )
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, like other processes of a suite. False if it is not visible."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
