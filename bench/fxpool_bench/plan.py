"""Decides how many processes of a suite run at once, in what order, and which of them measure. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fxpool.bench.case import Run

__all__ = ["GUESS", "expected_bytes", "in_order", "may_begin", "turns"]

#: Assumed bytes of a process before any has ended: torch, a model, and its compile.
GUESS = 1500 << 20
# Share of the host's memory that is kept free.
_RESERVE = 0.1


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order to start them: in each repetition, the runs with eager come last.

    Eager runs have no compile that could overlap with others, so they fill the end, where few compiles are left.
    """
    return sorted(runs, key=lambda run: (run.repetition, run.backend == "eager"))


def expected_bytes(run: Run, peaks: Mapping[Run, int]) -> int:
    """Return the expected memory of a run in bytes, from the `peaks` of ended runs."""
    same = [peak for ended, peak in peaks.items() if (ended.case, ended.mode) == (run.case, run.mode)]
    return max(same, default=max([GUESS, *peaks.values()]))


def may_begin(expected: int, growing: Sequence[tuple[int, int]], available: int, total: int, jobs: int) -> bool:
    """Return whether another process may start.

    `growing` has the running processes: the bytes that each is expected to take, and that it takes now. `available` and
    `total` are the host's memory. If no process runs, one may always start.
    """
    if not growing:
        return True
    if len(growing) >= jobs:
        return False
    still_to_come = sum(max(0, will - does) for will, does in growing)
    return expected + still_to_come <= available - _RESERVE * total


def turns(measuring: Sequence[str], waiting: Sequence[str]) -> list[int]:
    """Return which waiting runs may measure now, as indices into `waiting`. `measuring` and `waiting` are devices.

    Only one run at a time measures on a device, and none beside a run on the CPU. A run does not overtake an earlier
    one that it would delay.
    """
    found = []
    before = list(measuring)
    for place, device in enumerate(waiting):
        if not any(device == other or "cpu" in (device, other) for other in before):
            found.append(place)
        before.append(device)
    return found
