"""measure(): times a function, with copies of its inputs in turn."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from fxpool import quantities
from fxpool.bench.measurement import clocks, exclusive, statistics
from fxpool.bench.measurement.result import Measurement
from fxpool.torch_compat.dynamo.tensors import flatten

__all__ = ["device_among", "measure", "rotated"]

# Seconds to hold the measurement lock before other processes that wait get it.
_TURN_SECONDS = 5.0
# Calls that do not count after taking the lock, in which caches and clocks return to their earlier states.
_CALLS_BEFORE = 2
# The shortest time for samples, in seconds: in less, the kernel's ticks do not show the activity of other processes.
_LEAST_SECONDS = 0.2
# Seconds to wait for code that is compiled in the background; before it is in use, other code would be measured.
_BACKGROUND_SECONDS = 600.0
# The largest number of bytes in all copies, and of copies.
_MOST_BYTES, _MOST_COPIES = 2 << 30, 64
_L2_BYTES = 50 << 20  # for a GPU that does not report its size
_L3_BYTES = 32 << 20  # for a processor that does not report its size


def measure(
    fn: Callable[..., object],
    *arguments: Any,
    device: Any = None,
    seconds: float = 5.0,
    precision: float = 0.01,
    least: int = 10,
    warm_up: int = 3,
    rotate: bool = True,
    alone: bool = True,
    patience: float = exclusive.PATIENCE,
    timer: clocks.Timer = "clock",
) -> Measurement:
    """Time ``fn(*arguments)`` while fxpool runs nothing else on this host.

    `device` is the device to time, by default that of the first GPU tensor in the arguments, else the CPU. Before the
    clock starts, `fn` is called `warm_up` times, its background compiles are awaited, and other processes finish their
    measurements (`measuring`). Samples are taken until at least `least` of them determine the median to `precision`
    (half of its 95 % interval by the sign test, relative to the median), or until `seconds` have passed. A sample is
    the mean of as many calls as take 0.2 ms. With `rotate`, calls use copies of the arguments in turn, more than fit
    into the caches. `alone=False` measures without exclusion, and a remark says so.

    With ``timer="profiler"``, torch's profiler returns the time of the function's kernels on the GPU, without the gaps
    in which it waited for the host; on the CPU, the time of its operators and compiled graphs. A sample is a session of
    the profiler with up to 100 calls. The clock times the same calls, and where it says less, its time is the sample.

    The caller controls random numbers, gradients and autograd's mode.

    Raises:
        ValueError: `seconds` or `precision` is not positive, `device` has no clock, or `timer` is invalid.
        RuntimeError: torch's profiler is in use, or saw nothing.
        errors.MeasurementBusyError: other measurements took longer than `patience`.
        Exception: any exception of `fn`.
    """
    if seconds <= 0 or precision <= 0 or least < 1 or warm_up < 1:
        raise ValueError(f"seconds={seconds}, precision={precision}, least={least}, warm_up={warm_up}")
    where = clocks.device_of(device_among(arguments) if device is None else device)
    clock = clocks.clock_of(where, timer)
    # By the clock, because most of the first call's time is not spent in kernels.
    first = clocks.clock_of(where).seconds(lambda: fn(*arguments), 1)
    _until_compiled()
    call, copies = rotated(fn, arguments, where) if rotate else (lambda: fn(*arguments), 1)
    for _ in range(warm_up - 1):
        call()
    taken: list[float] = []
    waited, turns, remarks = 0.0, [], []
    calls = 0
    left = seconds
    while left > 0 and not statistics.enough(taken, precision, least):
        with _turn(where, alone, patience) as turn:
            clock.seconds(call, _CALLS_BEFORE)
            calls = calls or clocks.calls_per_sample(clock, call)
            start = time.monotonic()
            for_now = min(left, _TURN_SECONDS)
            while True:
                taken.append(clock.seconds(call, calls) / calls)
                spent = time.monotonic() - start
                if spent >= for_now or (spent >= _LEAST_SECONDS and statistics.enough(taken, precision, least)):
                    break
            left -= spent
        waited += turn.waited
        turns.append(turn)
        remarks += [remark for remark in turn.remarks if remark not in remarks]
    if isinstance(clock, clocks.ProfilerClock) and clock.capped > clock.sessions / 2:
        remarks.append("the profiler slows these operators, so these are the clock's times: use timer='clock'")
    estimate = statistics.estimate(taken)
    if not alone:
        remarks.insert(0, "measured beside other processes, which may have been compiling: leave out alone=False")
    if not statistics.enough(taken, precision, least):
        remarks.append(_imprecise(estimate, precision, seconds))
    if drift := statistics.drifts(taken):
        took = _compared(1 + drift)
        remarks.append(f"later calls took {took}, as caches or clocks were still settling: raise warm_up={warm_up}")
    return Measurement(
        samples=taken,
        median=estimate.median,
        low=estimate.low,
        high=estimate.high,
        calls=calls,
        device=str(where),
        copies=copies,
        warm_up=first,
        waited=waited,
        surroundings=[turn.surroundings for turn in turns if turn.surroundings is not None],
        remarks=remarks,
        timer=timer,
    )


def _imprecise(estimate: statistics.Estimate, precision: float, seconds: float) -> str:
    allow = f"allow more than seconds={seconds:g}"
    if math.isinf(estimate.precision):
        samples_are = "1 sample is" if estimate.count == 1 else f"{estimate.count} samples are"
        return f"{samples_are} too few for an interval, as calls take long: {allow}"
    wanted = f"not to the requested {quantities.percent(precision, 1)}, as the calls' times vary"
    return f"the median is known to {quantities.percent(estimate.precision, 1)}, {wanted}: {allow}"


def _compared(ratio: float) -> str:
    """Format a ratio of times as ``25 % less time``, ``25 % more time`` or ``94 times as long``."""
    if ratio >= 2:
        return f"{ratio:.0f} times as long"
    percent = abs(ratio - 1)
    return f"{quantities.percent(percent, 1 if percent < 0.1 else 0)} {'less' if ratio < 1 else 'more'} time"


def _turn(where: torch.device, alone: bool, patience: float) -> Any:
    return exclusive.measuring(where, patience=patience) if alone else exclusive.beside(where)


def device_among(arguments: tuple[Any, ...]) -> torch.device | None:
    """Return the device of the first GPU tensor in the arguments, or None."""
    tensors = [value for value in flatten(arguments)[0] if isinstance(value, torch.Tensor)]
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)


def _until_compiled() -> None:
    background = sys.modules.get("fxpool.lowering.background.compiles")  # only imported if needed
    if background is not None:
        background.wait(_BACKGROUND_SECONDS)


def rotated(fn: Callable[..., object], arguments: Sequence[Any], device: torch.device) -> tuple[Callable[[], Any], int]:
    """Return a function that calls `fn` with copies of `arguments` in turn, and the number of copies.

    A real program reads each new input from memory; a program measured repeatedly on the same input does not. So enough
    copies are made to exceed the size of all caches. If a call modifies its inputs, each copy keeps its modifications.
    Without tensors in `arguments`, it calls `fn` with the arguments themselves, and the number is 1.
    """
    copies = [tuple(arguments), *_copies(tuple(arguments), device)]
    if len(copies) == 1:
        return lambda: fn(*arguments), 1
    rotation: Iterator[tuple[Any, ...]] = itertools.cycle(copies)
    return lambda: fn(*next(rotation)), len(copies)


def _copies(arguments: tuple[Any, ...], device: torch.device) -> Iterator[tuple[Any, ...]]:
    values, rebuild = flatten(arguments)
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    # A tensor in an autograd graph can't be copied without leaving that graph.
    if not tensors or not all(type(tensor) is torch.Tensor and tensor.is_leaf for tensor in tensors):
        return
    size = sum(tensor.untyped_storage().nbytes() for tensor in tensors)
    wanted = 2 * _cache_bytes(device)
    count = min(_MOST_COPIES, -(-wanted // max(size, 1)), _MOST_BYTES // max(size, 1))
    for _ in range(max(0, count - 1)):
        yield rebuild(list(map(_copy, values)))


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    # With the same strides, because code is compiled for them.
    made = torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)
    made.copy_(value.detach())
    return made.requires_grad_(value.requires_grad)


def _cache_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", _L2_BYTES))
    try:
        text = Path("/sys/devices/system/cpu/cpu0/cache/index3/size").read_text().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError, IndexError):
        return _L3_BYTES
