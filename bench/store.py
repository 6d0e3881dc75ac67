"""A store of many entries: how long a lookup takes, alone and while another process or thread evicts.

    python bench/store.py                                20,000 entries, three rounds
    python bench/store.py --entries 2000 --rounds 1      a minute less
    python bench/store.py --directory /mnt/nfs           on another file system

A lookup is what a hit asks of the store: find the entries of a key, verify the digests of their blobs, mark the entry
as used. The process has seen none of these blobs before. A miss is a key that has no entry. Between two of them the
process sleeps for a millisecond. Lookups during which the scheduler took the core away are listed apart: on a busy
machine that takes as long as it takes, whoever evicts.

Each round measures lookups alone, beside a process that only computes, beside a process that evicts a tenth of the
entries, and beside a thread of the same process that does; then what was evicted is written again. The second says what
the machine does to a lookup when it is busy, without any eviction.

Files are written without fsync here; publications are timed with it.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fxpool.codecache.store import catalogue, collector, layout
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Component, Entry, Metadata
from fxpool.codecache.store.store import LocalStore

RESULT, LIBRARY, SHARED = 8 << 10, 24 << 10, 4 << 10
GOAL_LOOKUP, GOAL_STALL = 2.0, 20.0  # ms


def key(n: int) -> str:
    return hashlib.sha256(b"graph %d" % n).hexdigest()


def contents(n: int) -> dict[str, bytes]:
    """Blobs of usual sizes; one in four is shared by a hundred entries."""
    rng = random.Random(n)
    shared = random.Random(-1 - n // 100).randbytes(SHARED)
    return {"result": rng.randbytes(RESULT), "library": rng.randbytes(LIBRARY), "triton": shared}


def entry(n: int) -> Entry:
    components = [Component(name, key(n + number), "x" * 60) for number, name in enumerate("abcdefgh")]
    return Entry(
        key=key(n), components=components, guards=[], metadata=Metadata(label=f"graph {n}", compile_seconds=1.0)
    )


def fill(store: LocalStore, entries: int) -> None:
    """Write the entries that are missing, and make all of them old, in a random order."""
    real, os.fsync = os.fsync, lambda fd: None
    try:
        for n in range(entries):
            if not os.path.isdir(layout.key_directory(store.root, key(n))):
                store.publish(entry(n), contents(n))
    finally:
        os.fsync = real
    rng, now = random.Random(0), time.time()
    for one in catalogue.entries(store.root):
        when = now - rng.uniform(3600, 86400 * 30)
        os.utime(os.path.join(store.root, one.path), (when, when))
    for blob in catalogue.blobs(store.root):
        os.utime(os.path.join(store.root, blob.path), (now - 86400 * 30,) * 2)


def lookup(store: LocalStore, n: int) -> tuple[float, str]:
    """Return milliseconds, and ``hit``, ``miss`` or ``preempted``: the scheduler gave the core to somebody else."""
    switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    begun = time.perf_counter()
    found = [one for one in store.entries(key(n)) if store.complete(one)]
    if found:
        store.mark_used(found[0])
    seconds = time.perf_counter() - begun
    if resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw != switches:
        return seconds * 1e3, "preempted"
    return seconds * 1e3, "hit" if found else "miss"


def look_up(root: str, entries: int, seed: int, until: Callable[[int], bool]) -> dict[str, list[float]]:
    """Look up graphs in random order until told to stop; return milliseconds by how they ended."""
    store = LocalStore(root)
    gc.collect()  # of what this process did before: a pass over all of its objects takes 20 ms
    order = random.Random(seed).sample(range(entries), entries)
    times: dict[str, list[float]] = {"hit": [], "miss": [], "preempted": []}
    for count, n in enumerate(order):
        if until(count):
            break
        for graph in (n, entries + n):
            milliseconds, end = lookup(store, graph)
            times[end].append(milliseconds)
        time.sleep(0.001)
    return times


def evict(root: str) -> dict[str, float]:
    """Evict a tenth of the files, as a publication does that finds the directory one over its bound."""
    size = collector.collect(root, Bounds(), dry_run=True).before
    begun = time.perf_counter()
    collected = collector.collect(root, Bounds(max_files=size.files - 1))
    return {"seconds": time.perf_counter() - begun, "entries": collected.entries, "files": collected.freed.files}


# ---------------------------------------------------------------- processes


def child(role: str, root: str, *, wait: bool = False) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--role", role, "--directory", root], stdout=-1, stdin=-1, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def start(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def play(role: str, root: str) -> None:
    print("ready", flush=True)
    sys.stdin.readline()
    if role == "evict":
        print(json.dumps(evict(root)), flush=True)
    else:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            pass
        print("{}", flush=True)


def beside(role: str, root: str, entries: int, seed: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    process = child(role, root)
    start(process)
    times = look_up(root, entries, seed, lambda count: process.poll() is not None)
    report: dict[str, float] = json.loads(process.communicate()[0])
    return times, report


def beside_thread(root: str, entries: int, seed: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    reports: list[dict[str, float]] = []
    thread = threading.Thread(target=lambda: reports.append(evict(root)))
    thread.start()
    times = look_up(root, entries, seed, lambda count: not thread.is_alive())
    thread.join()
    return times, reports[0]


# ---------------------------------------------------------------- what publishing costs


def publications(store: LocalStore, entries: int, number: int) -> dict[str, list[float]]:
    """Milliseconds of publications without bounds and with them, in turn."""
    times: dict[str, list[float]] = {"unbounded": [], "bounded": []}
    bounded = LocalStore(store.root, Bounds(1 << 50, 1 << 30))
    bounded.publish(entry(entries), contents(entries))
    for n in range(number):
        for name, one in (("unbounded", store), ("bounded", bounded)):
            graph = entries + 1 + 2 * n + (name == "bounded")
            new, blobs = entry(graph), contents(graph)
            begun = time.perf_counter()
            one.publish(new, blobs)
            times[name].append((time.perf_counter() - begun) * 1e3)
    for graph in range(entries, entries + 2 * number + 2):
        store.remove(key(graph))
    return times


def scans(root: str) -> dict[str, float]:
    """Seconds to look at everything, without an index and with one."""
    shutil.rmtree(os.path.join(root, "index"), ignore_errors=True)
    seconds = {}
    for name in ("without an index", "with it"):
        begun = time.perf_counter()
        collector.collect(root, Bounds())
        seconds[name] = time.perf_counter() - begun
    return seconds


# ---------------------------------------------------------------- the table


def quantile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))] if values else float("nan")


def row(times: Sequence[float]) -> list[str]:
    numbers = [statistics.median(times) if times else float("nan"), quantile(times, 0.99), quantile(times, 0.999)]
    return [str(len(times)), *(f"{number:.2f}" for number in (*numbers, max(times, default=float("nan"))))]


def measure(root: str, entries: int, rounds: int) -> dict[str, Any]:
    store = LocalStore(root)
    kinds = ("alone", "beside a busy process", "beside a process that evicts", "beside a thread that evicts")
    times: dict[str, dict[str, list[float]]] = {kind: {"hit": [], "miss": [], "preempted": []} for kind in kinds}
    evictions: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds[2:]}

    def add(kind: str, found: dict[str, list[float]]) -> None:
        for name, values in found.items():
            times[kind][name] += values

    print("filling", file=sys.stderr)
    fill(store, entries)
    scanned = scans(root)
    for number in range(rounds):
        print(f"round {number + 1}", file=sys.stderr)
        add(kinds[0], look_up(root, entries, number, lambda count: count >= min(2000, entries)))
        add(kinds[1], beside("compute", root, entries, 10 + number)[0])
        for kind in kinds[2:4]:
            fill(store, entries)
            seed = 20 + number
            found, report = (
                beside("evict", root, entries, seed) if kind == kinds[2] else beside_thread(root, entries, seed)
            )
            add(kind, found)
            evictions[kind].append(report)
    fill(store, entries)
    return {"times": times, "evictions": evictions, "scans": scanned, "publications": publications(store, entries, 60)}


def show(result: dict[str, Any]) -> None:
    table = Table("lookup", "number", "p50, ms", "p99", "p99.9", "max")
    for kind, found in result["times"].items():
        for name, values in found.items():
            table.add_row(f"{name}, {kind}", *row(values))
    for name, values in result["publications"].items():
        table.add_row(f"publication, {name}", *row(values))
    console = Console(width=120)
    console.print(table)
    for kind, reports in result["evictions"].items():
        seconds = statistics.median(one["seconds"] for one in reports)
        entries = statistics.median(one["entries"] for one in reports)
        console.print(f"{kind.removeprefix('beside ')}: {entries:.0f} entries in {seconds:.2f} s (median)")
    for name, seconds in result["scans"].items():
        console.print(f"looking at everything {name}: {seconds:.2f} s")
    p50 = statistics.median(result["times"]["alone"]["hit"])
    evicting = [times for kind, times in result["times"].items() if kind.endswith("process that evicts")]
    stall = max(max(times["hit"] + times["miss"]) for times in evicting)
    calm = [times for kind, times in result["times"].items() if "evicts" not in kind]
    longest = max(max(times["hit"] + times["miss"]) for times in calm)
    for text, value, goal in (
        ("lookup, p50", p50, GOAL_LOOKUP),
        ("longest beside eviction", stall, GOAL_STALL),
    ):
        console.print(f"{text}: {value:.2f} ms, goal {goal:.0f} ms: {'met' if value <= goal else 'not met'}")
    console.print(f"longest without eviction: {longest:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to make the store; the temporary directory if left out")
    parser.add_argument("--json", type=Path, help="write the raw numbers here")
    parser.add_argument("--role", choices=("evict", "compute"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.role:
        play(arguments.role, arguments.directory)
        return
    with tempfile.TemporaryDirectory(prefix="fxpool-store-", dir=arguments.directory) as scratch:
        result = measure(os.path.join(scratch, "cache"), arguments.entries, arguments.rounds)
    show(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
