"""Measures exclusively: takes the measurement lock of a device, and suspends this host's servers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fxpool import config
from fxpool.bench.measurement import clocks, surroundings
from fxpool.bench.measurement.surroundings import Surroundings
from fxpool.errors import MeasurementBusyError, PoolUnavailableError
from fxpool.pool.client import pausing
from fxpool.pool.host import measurement_lock
from fxpool.pool.host import runtime_dir as runtime_dirs

__all__ = ["Exclusive", "beside", "measuring"]

#: Seconds to wait for other measurements, and for servers to be suspended (a zygote finishes its start first).
PATIENCE, STANDSTILL = 600.0, 10.0
#: Seconds after which a server resumes, even during a measurement.
LONGEST = 60.0

_held = threading.local()


@dataclass
class Exclusive:
    """A period in which this process measured. Complete when the period is over.

    `device` is ``"cpu"`` or ``"cuda:0"``, `waited` the seconds spent waiting for the measurement lock, and `paused` the
    number of suspended workers. `remarks` lists problems in words; `surroundings` is the other activity of the machine.
    """

    device: str
    waited: float = 0.0
    paused: int = 0
    remarks: list[str] = field(default_factory=list)
    surroundings: Surroundings | None = None


@contextlib.contextmanager
def measuring(
    device: Any = None,
    *,
    patience: float = PATIENCE,
    longest: float = LONGEST,
    pause: bool = True,
    runtime_dir: str | None = None,
) -> Iterator[Exclusive]:
    """Measure exclusively in a ``with`` block: the host measures nothing else on `device`, and fxpool compiles nothing.

    Processes measure in the order of their requests. `device` is None (the CPU) or an argument of `torch.device`. A
    block for the CPU excludes all other blocks; a block for a GPU excludes those for the same GPU and for the CPU.
    During the block no compile job starts and running workers are suspended, for at most `longest` seconds. They resume
    when the block or its process ends. With `pause=False` they are not suspended. Waits up to `patience` seconds for
    other measurements. `runtime_dir` is the runtime directory that processes share, by default the configured one.

    A nested block of the same thread belongs to the outer block. If this process compiles a graph in the pool during
    the block, the pause ends, and a remark says so.

    Raises:
        errors.MeasurementBusyError: other measurements took longer than `patience`.
    """
    where = clocks.device_of(device)
    outer: dict[str, Exclusive] = getattr(_held, "devices", {})
    covering = outer.get("cpu") or outer.get(str(where))
    if covering is not None:
        yield covering
        return
    with contextlib.ExitStack() as stack:
        waited, paused, remarks = _begin(where, patience, longest if pause else 0.0, runtime_dir, stack)
        made = stack.enter_context(beside(where))
        made.waited, made.paused = waited, paused.workers
        made.remarks += remarks
        stack.callback(lambda: made.remarks.extend(paused.remarks))
        stack.callback(paused.end)
        _held.devices = {**outer, str(where): made}
        stack.callback(setattr, _held, "devices", outer)
        yield made


def _begin(
    where: torch.device, patience: float, longest: float, directory: str | None, stack: contextlib.ExitStack
) -> tuple[float, pausing.Pause, list[str]]:
    """Take the measurement lock and suspend the servers; `stack` undoes both. Return (waited, pause, remarks)."""
    try:
        configured = directory or config.current().runtime_dir
        root = runtime_dirs.runtime_root(configured)
        turn = measurement_lock.Turn(root, clocks.uuid_of(where) or measurement_lock.CPU)
    except PoolUnavailableError as error:
        return 0.0, pausing.Pause(), [f"other processes may have been measuring, as {error.message}: see fxpool doctor"]
    stack.callback(turn.end)
    began = time.monotonic()
    if not turn.wait(patience):
        raise MeasurementBusyError(str(where), patience)
    waited = time.monotonic() - began
    if not longest:
        return waited, pausing.Pause(), []
    paused = pausing.pause(root, longest, STANDSTILL)
    stack.callback(paused.end)
    return waited, paused, []


@contextlib.contextmanager
def beside(device: Any) -> Iterator[Exclusive]:
    """Measure without exclusion; only record the other activity of the machine."""
    where = clocks.device_of(device)
    gpu = clocks.uuid_of(where)
    made = Exclusive(str(where))
    before = surroundings.look(gpu)
    try:
        yield made
    finally:
        made.surroundings = surroundings.between(before, surroundings.look(gpu))
        made.remarks += made.surroundings.remarks()
