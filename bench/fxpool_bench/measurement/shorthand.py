"""`measure` under the names of torch's benchmark functions. Unlike those, it reports units and intervals.

here                   torch (Inductor)                         difference
do_bench()             do_bench, do_bench_using_profiling       exclusive on the device; an interval, not one number
timed()                timed                                    synchronizes once, after all calls; sets no seed
print_performance()    print_performance                        as `do_bench`
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import IO, Any

from fxpool.bench.measurement import clocks, timing
from fxpool.bench.measurement.result import Measurement

__all__ = ["do_bench", "print_performance", "timed"]


def do_bench(
    fn: Callable[[], object], *, device: Any = None, seconds: float = 1.0, timer: clocks.Timer = "clock"
) -> Measurement:
    """Time repeated calls of ``fn()`` for at most `seconds`; the times are in seconds per call.

    `device` is the device to time, by default a GPU if the host has one, else the CPU. ``timer="profiler"`` counts only
    kernels, on the CPU operators. Unlike `measure`, this does not copy arguments.

    Raises:
        Exception: the errors of `measure`.
    """
    where = clocks.device_of(_default() if device is None else device)
    return timing.measure(fn, device=where, seconds=seconds, rotate=False, timer=timer)


def timed(fn: Callable[..., object], *arguments: Any, calls: int = 1, device: Any = None) -> float:
    """Return the seconds that `calls` calls of ``fn(*arguments)`` take together. Not exclusive.

    The first call and its compile are included. `device` is that of `measure`.

    Raises:
        ValueError: `calls` is below 1.
        Exception: any exception of `fn`.
    """
    if calls < 1:
        raise ValueError(f"calls must be at least 1, got {calls}")
    where = clocks.device_of(timing.device_among(arguments) if device is None else device)
    return clocks.clock_of(where).seconds(functools.partial(fn, *arguments), calls)


def print_performance(
    fn: Callable[..., object],
    *arguments: Any,
    label: str = "",
    to: IO[str] | None = None,
    **options: Any,
) -> Measurement:
    """Measure ``fn(*arguments)``, print a line with median, interval and remarks, and return the measurement.

    The line starts with `label`, by default the function's name, and goes to standard output, or to `to`. `options` are
    those of `measure`.

    Raises:
        Exception: the errors of `measure`.
    """
    found = timing.measure(fn, *arguments, **options)
    name = label or getattr(fn, "__qualname__", type(fn).__name__)
    print(f"{name}: {found}", file=sys.stdout if to is None else to)
    return found


def _default() -> Any:
    import torch  # imported already, by `clocks`

    return "cuda" if torch.cuda.is_available() else "cpu"
