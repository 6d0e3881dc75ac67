"""Processes that start together on one graph, on one GPU: one of them has it compiled, all use it.

    python bench/gpu/together.py [--count 4] [--what infer|train] [--pairs 3] [--out results.json]

All import, build their model and wait; counted is the wall time from then until the last has had its first call, for
``backend="eager"``, stock Inductor and fxpool in turn, each with empty caches. Exits 1 when something that must hold
does not: exactly 1 compile, no GraphLowering in any of them, results equal stock's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.scripts import caches, finish
from workload import Llama, save, saved_difference

from fxpool.bench.witness import counting

BACKENDS = ("eager", "inductor", "fxpool")


def child(asked: dict[str, Any]) -> None:
    import torch

    counter = counting()
    work = Llama(asked["layers"], asked["what"] == "train")
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.perf_counter()
    results = work.step(torch.compile(work.model, backend=asked["backend"]))
    report: dict[str, Any] = {"first": time.perf_counter() - started, "lowerings": counter.count}
    if asked["save"]:
        save(results, asked["save"])
    if asked["backend"] == "fxpool":
        import fxpool

        stats = fxpool.stats()
        report |= {name: stats[name] for name in ("hits", "misses", "joined", "compiles", "fallbacks")}
    print(json.dumps(report), flush=True)


def at_once(root: Path, backend: str, asked: dict[str, Any], count: int) -> tuple[float, list[dict[str, Any]]]:
    """Seconds until the last of `count` processes is done, and what each says. Caches are empty before."""
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=root) as fresh:
        environment = {
            **os.environ,
            **caches(fresh, str(root)),
            "FXPOOL_POOL": "host",
            "FXPOOL_IDLE_TIMEOUT": "1",
        }
        Path(root, "r").mkdir(mode=0o700, exist_ok=True)
        children = []
        for number in range(count):
            one = {**asked, "backend": backend, "save": asked["save"] if number == count - 1 else ""}
            children.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--child", json.dumps(one)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
        try:
            for process in children:
                assert process.stdout is not None
                if process.stdout.readline() != "ready\n":
                    sys.exit(f"{backend}: a process did not get ready")
            started = time.perf_counter()
            for process in children:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            lines = [process.stdout.readline() for process in children if process.stdout is not None]
            seconds = time.perf_counter() - started
            return seconds, [json.loads(line) for line in lines]
        finally:
            for process in children:
                process.kill()
                process.communicate()
            end = time.monotonic() + 30
            while list(Path(root, "r").glob("host-*.socket")) and time.monotonic() < end:
                time.sleep(0.1)  # the next round starts a server of its own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--what", choices=["infer", "train"], default="infer")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    import torch

    failures: list[str] = []
    walls: dict[str, list[float]] = {backend: [] for backend in BACKENDS}
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for number in range(options.pairs):
            for backend in BACKENDS:
                asked = {"what": options.what, "layers": options.layers, "save": f"{root}/{backend}.pt"}
                seconds, reports = at_once(Path(root), backend, asked, options.count)
                walls[backend].append(seconds)
                print(json.dumps({"round": number, "backend": backend, "wall": seconds, "each": reports}), flush=True)
                if backend == "fxpool":
                    failures += check(reports, saved_difference(f"{root}/fxpool.pt", f"{root}/inductor.pt"))
    rounds = list(zip(*walls.values(), strict=True))
    beyond = [(ours - eager) / (theirs - eager) for eager, theirs, ours in rounds]
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.count} processes, {options.what}")
    for backend in BACKENDS:
        print(f"  {backend:9} median {statistics.median(walls[backend]):.2f} s")
    print(f"  beyond eager, fxpool / inductor: median {statistics.median(beyond):.2f} of {len(beyond)} rounds")
    finish(failures, options.out, {"walls": walls, "beyond": beyond})


def check(reports: list[dict[str, Any]], differs: float) -> list[str]:
    failures = []
    compiled = sum(report["compiles"]["worker"] for report in reports)
    if compiled != 1 or any(report["compiles"]["in_process"] for report in reports):
        failures.append(f"{compiled} compiles in workers: {[report['compiles'] for report in reports]}")
    if any(report["lowerings"] for report in reports):
        failures.append("a graph was lowered in a process that asked")
    if any(report["fallbacks"] for report in reports):
        failures.append(f"steps down: {[report['fallbacks'] for report in reports]}")
    if differs > 2e-2:
        failures.append(f"differs from stock Inductor by {differs:.3g}")
    return failures


if __name__ == "__main__":
    main()
