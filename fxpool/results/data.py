"""Types of the plain data that `fxpool.stats()` and `fxpool.wait()` return.

A test compares these names with the results of a real process.
"""

from __future__ import annotations

from typing import TypedDict

__all__ = ["BackgroundGraph", "Compiles", "Counts", "GraphRecord", "HostStats", "Quiesced", "Resources",
           "Stats", "StoreSizes"]  # fmt: skip


class Compiles(TypedDict):
    """Numbers of compiled graphs, by the process that compiled them."""

    worker: int
    in_process: int


class Counts(TypedDict):
    """Counters of one or several processes: numbers of graphs, and reason to number."""

    hits: int
    misses: int
    guard_misses: int
    joined: int
    entries_written: int
    corrupt_entries: int
    quarantined: int
    restarts: int
    bypasses: dict[str, int]
    fallbacks: dict[str, int]
    eager_calls: dict[str, int]
    switched_off: dict[str, int]
    once: dict[str, int]
    uncached: dict[str, int]
    seconds_saved: float


class HostStats(Counts):
    """Counters of all processes with one cache directory in the last 30 days."""

    processes: int
    compiles: dict[str, int]


class StoreSizes(TypedDict):
    """Numbers of entries and blobs in a cache directory, their bytes, and the number of evicted entries."""

    entries: int
    blobs: int
    bytes: int
    evicted: int


class _Explained(TypedDict, total=False):
    details: dict[str, str]
    function: str


class GraphRecord(_Explained):
    """A graph of this process.

    `outcome` is ``hit``, ``worker``, ``joined``, ``in_process``, ``async``, ``eager``, ``not_kept`` or empty (an error
    was raised), `level` ``aot``, ``fx`` or ``in_process``, `seconds` seconds by phase. `details` (an example for each
    of the `reasons`) and `function` are present if there are reasons.
    """

    label: str
    key: str | None
    outcome: str
    level: str
    stage: int
    reasons: list[str]
    seconds: dict[str, float]


class BackgroundGraph(TypedDict):
    """A graph that is compiled in the background; see `fxpool.wait`."""

    label: str
    state: str
    error: str | None
    stage: int | None
    stages: dict[int, str]
    eager_calls: int
    compiled_calls: int
    swaps: int
    outside_guards: int


class Resources(TypedDict):
    """Parts of a process that a checkpoint may refuse, as text.

    `threads`: names. `children`: pids and command lines. `descriptors`: numbers and targets.
    """

    threads: list[str]
    children: list[str]
    descriptors: list[str]


class Quiesced(TypedDict):
    """The result of `fxpool.quiesce`, which describes each item."""

    clean: bool
    pending: list[str]
    uploads_left: int
    servers_ended: list[int]
    remaining: Resources
    others: Resources
    mapped: list[str]


class Stats(Counts):
    """The result of `fxpool.stats`, which describes each item."""

    compiles: Compiles
    compile_seconds: float
    quarantine_retries: dict[str, int]
    borrowed: dict[str, int]
    remote: dict[str, int]
    remote_seconds: float
    leases: dict[str, int]
    captures: dict[str, int]
    farm: dict[str, int]
    regions: dict[str, int]
    frames: dict[str, int]
    graphs: list[GraphRecord]
    store: StoreSizes | None
    cache_disk_bytes: int
    host: HostStats
    background: list[BackgroundGraph]
