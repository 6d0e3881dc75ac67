"""Decides how many processes of a suite live at once, which one comes next, and which measure. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fxpool.bench.case import Run

__all__ = ["GUESS", "expected_bytes", "in_order", "may_begin", "turns"]

#: Bytes of a process of which nothing is known yet: torch, a model, and its compile.
GUESS = 1500 << 20
# Part of the host's memory that stays free of processes.
_RESERVE = 0.1


def in_order(runs: Sequence[Run]) -> list[Run]:
    """Return the runs in the order to begin them: those that are not compiled last, in each repetition.

    They have nothing that could go on beside others' measurements, and fill the end, where few are left to compile.
    """
    return sorted(runs, key=lambda run: (run.repetition, run.backend == "eager"))


def expected_bytes(run: Run, peaks: Mapping[Run, int]) -> int:
    """Return the memory to expect of a run, from the `peaks` of those that ended."""
    same = [peak for ended, peak in peaks.items() if (ended.case, ended.mode) == (run.case, run.mode)]
    return max(same, default=max([GUESS, *peaks.values()]))


def may_begin(expected: int, growing: Sequence[tuple[int, int]], available: int, total: int, jobs: int) -> bool:
    """Return whether another process may begin.

    `growing` are those that live: bytes each is expected to take, and bytes it takes now. `available` and `total` are
    the host's. The first may always begin: else nothing ever would.
    """
    if not growing:
        return True
    if len(growing) >= jobs:
        return False
    still_to_come = sum(max(0, will - does) for will, does in growing)
    return expected + still_to_come <= available - _RESERVE * total


def turns(measuring: Sequence[str], waiting: Sequence[str]) -> list[int]:
    """Return which of those that wait may measure now, as places in `waiting`; both are devices.

    None measures beside another on its device, and nothing beside one on the CPU. None overtakes one that it would keep
    waiting.
    """
    found = []
    before = list(measuring)
    for place, device in enumerate(waiting):
        if not any(device == other or "cpu" in (device, other) for other in before):
            found.append(place)
        before.append(device)
    return found
