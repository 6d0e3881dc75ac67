"""Measure alone: the host's turn for a device, and this host's servers at a standstill meanwhile."""

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
from fxpool.pool.host import runtime_dir as runtime_dirs
from fxpool.pool.host import turns

__all__ = ["Exclusive", "beside", "measuring"]

#: Seconds to wait for others who measure, and for servers to stand still (a zygote that starts does that first).
PATIENCE, STANDSTILL = 600.0, 10.0
#: Seconds after which a server goes on, whoever still measures.
LONGEST = 60.0

_held = threading.local()


@dataclass
class Exclusive:
    """A time in which this process measured; complete when that is over.

    `device`: ``"cpu"`` or ``"cuda:0"``. `waited`: seconds until its turn came. `paused`: workers that were stopped.
    `remarks`: what was not as it should be, in words. `surroundings`: what else the machine did meanwhile.
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
    """Have a ``with`` block to oneself: nobody else on this host measures on `device`, and fxpool compiles nothing.

    Over all processes of this user, in the order they asked. `device` is None (the CPU), or what `torch.device` takes.
    A block for the CPU excludes all others, one for a GPU those for the same GPU and for the CPU. Meanwhile no compile
    job begins, and running workers are stopped, for `longest` seconds at most; they go on when the block ends, or its
    process does. With `pause=False` they go on anyway. Waits up to `patience` seconds for others, who are found under
    `runtime_dir`, by default the configured one.

    A block in a block of the same thread is a part of it. A graph that this process has compiled in the block ends the
    pause, and is among the remarks.

    Raises:
        errors.MeasurementBusyError: others measured for longer than `patience`.
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
    """Wait for the turn, and for the servers; both end with `stack`. Returns the seconds waited, and remarks."""
    try:
        configured = directory or config.current().runtime_dir
        root = runtime_dirs.runtime_root(str(configured) if configured is not None else None)
        turn = turns.Turn(root, clocks.uuid_of(where) or turns.CPU)
    except PoolUnavailableError as error:
        return 0.0, pausing.Pause(), [f"others may have measured, too: {error.message}"]
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
    """The same without any exclusion: only what else the machine did is noted."""
    where = clocks.device_of(device)
    gpu = clocks.uuid_of(where)
    made = Exclusive(str(where))
    before = surroundings.look(gpu)
    try:
        yield made
    finally:
        made.surroundings = surroundings.between(before, surroundings.look(gpu))
        made.remarks += made.surroundings.remarks()
