"""The other activity of the machine during a measurement: load, clock, temperature, other processes on a GPU.

Values that cannot be read (no sensors in a virtual machine, no NVML) are None, and no conclusions are drawn from them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from fxpool import quantities

__all__ = ["Look", "Surroundings", "between", "look"]

# Clocks of processors normally vary by less than this.
_CLOCK = 0.05
_KEEP_CLOCK = {
    "processor": "let it cool, or fix its clock (cpupower frequency-set)",
    "GPU": "let it cool, or fix its clock (nvidia-smi --lock-gpu-clocks)",
}


@dataclass(frozen=True)
class Look:
    """The state of the machine at one time.

    `busy`, `own` and `stolen` are CPU seconds of all processes, of this process and of other virtual machines.
    `processes` maps the pids of other processes to their names and CPU seconds.
    """

    at: float
    busy: float
    own: float
    load: float
    megahertz: float | None
    celsius: float | None
    gpu: GpuLook | None = None
    stolen: float = 0.0
    processes: Mapping[int, tuple[str, float]] = field(default_factory=dict)


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
    the GPU; `gpu_processes` is the number of other processes that had it open and were not stopped. `stolen_cores` is
    the part of `other_cores` that a hypervisor gave to other virtual machines. `busiest` names the process that kept
    most of `other_cores` busy, if one did.
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
    stolen_cores: float = 0.0
    busiest: str | None = None

    def remarks(self) -> list[str]:
        """Return reasons to doubt a measurement in this period, each with its cause and the way to avoid it."""
        said = list(filter(None, [self.disturbance()]))
        for name, clock in (("processor", self.megahertz), ("GPU", self.gpu_megahertz)):
            if clock is not None and clock[0] and abs(clock[1] / clock[0] - 1) > _CLOCK:
                said.append(f"the {name}'s clock went from {clock[0]:.0f} to {clock[1]:.0f} MHz: {_KEEP_CLOCK[name]}")
        if self.gpu_processes:
            others = quantities.counted(self.gpu_processes, "other process", "other processes")
            said.append(f"{others} had the GPU open: end those that nvidia-smi lists")
        return said

    def disturbance(self) -> str | None:
        """Return which processes took processor time, or None if they took hardly any."""
        if self.other_cores <= max(0.1, 0.05 * (os.cpu_count() or 1)):
            return None
        if self.stolen_cores > self.other_cores / 2:
            return f"other virtual machines took {self.stolen_cores:.1f} cores: use a machine that is not shared"
        cores = f"other processes kept {self.other_cores:.1f} cores busy"
        if self.busiest is None:
            return f"{cores} together: see top, and measure when they are idle"
        return f"{cores}, most of them {self.busiest}: measure when it is idle or has ended"


def look(gpu: str | None = None) -> Look:
    """Return the state of the machine, and of the GPU with this UUID. Takes a few milliseconds."""
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
        stolen=getattr(cpu, "steal", 0.0),
        processes=_processes(),
    )


def between(before: Look, after: Look) -> Surroundings:
    """Return the activity of the machine between two looks."""
    seconds = max(after.at - before.at, 1e-9)
    own = after.own - before.own
    # The kernel counts in ticks, so the difference may be a tick below zero.
    others = max(0.0, (after.busy - before.busy - own) / seconds)
    gpus = (before.gpu, after.gpu) if before.gpu is not None and after.gpu is not None else None
    return Surroundings(
        seconds=seconds,
        own_cores=own / seconds,
        other_cores=others,
        load=before.load,
        megahertz=_both(before.megahertz, after.megahertz),
        celsius=_both(before.celsius, after.celsius),
        gpu_megahertz=(gpus[0].megahertz, gpus[1].megahertz) if gpus else None,
        gpu_celsius=(gpus[0].celsius, gpus[1].celsius) if gpus else None,
        gpu_processes=max(gpus[0].others, gpus[1].others) if gpus else None,
        stolen_cores=(after.stolen - before.stolen) / seconds,
        busiest=_busiest(before.processes, after.processes, others * seconds),
    )


def _busiest(
    before: Mapping[int, tuple[str, float]], after: Mapping[int, tuple[str, float]], spent: float
) -> str | None:
    """Return the name and pid of the process that took more than half of the CPU seconds `spent`."""
    for pid, (name, total) in after.items():
        if total - before.get(pid, (name, 0.0))[1] > spent / 2:
            return f"{name} (pid {pid})"
    return None


def _processes() -> dict[int, tuple[str, float]]:
    """Return the names and CPU seconds of all visible processes but this one. Takes 20 us a process."""
    tick = os.sysconf("SC_CLK_TCK")
    seen = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            before, _, after = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
            fields = after.split()
            seen[pid] = (before.partition("(")[2], (int(fields[11]) + int(fields[12])) / tick)
    seen.pop(os.getpid(), None)
    return seen


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
