"""Llama on a GPU, compiled behind its back: the first step is eager's, later ones are compiled.

    python bench/gpu/background.py [--what infer|train] [--pairs 5] [--layers 8] [--backends eager,inductor,fxpool]
                                   [--modes async+subprocess,progressive+async+subprocess] [--out results.json]

First steps of ``backend="eager"``, stock Inductor and fxpool's ``async+subprocess`` in turn, each a fresh process with
empty caches, the clock started before ``torch.compile()``; fxpool's steps on until compiled code is in use, of pieces
where the graph was cut. Then one process for each mode steps on until nothing is pending. Exits 1 when something that
must hold does not: the first step equals eager's bit for bit, no GraphLowering in the process, compiled code in use and
close to stock's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from typing import Any

from harness.scripts import caches, finish, report_or_exit
from workload import Llama, difference, spread

from fxpool.bench.measurement.statistics import paired
from fxpool.bench.witness import counting

BACKENDS = ("eager", "inductor", "fxpool")
MODES = ("async+subprocess", "progressive+async+subprocess")


def child(asked: dict[str, Any]) -> None:
    import torch

    counter = counting()
    work = Llama(asked["layers"], asked["what"] == "train")
    started = time.perf_counter()
    options = {"options": {"mode": asked["mode"]}} if asked["backend"] == "fxpool" else {}
    compiled = torch.compile(work.model, backend=asked["backend"], **options)
    results = work.step(compiled)
    report: dict[str, Any] = {"first": time.perf_counter() - started}
    expected = work.step(work.model)
    report["difference"] = difference(results, expected)
    if asked["backend"] == "fxpool":
        import fxpool

        states = fxpool.wait(0)
        while not any(one["compiled_calls"] for one in states):
            if not any(one["state"] == "pending" for one in states):
                sys.exit(f"no compiled code came into use: {states}")
            work.step(compiled)
            states = fxpool.wait(0)
        report["compiled_from"] = time.perf_counter() - started
    if asked["until"]:
        while any(one["state"] == "pending" for one in fxpool.wait(0)):
            begun = time.perf_counter()
            results = work.step(compiled)
            report["longest"] = max(report.get("longest", 0.0), time.perf_counter() - begun)
        report["in_use"] = time.perf_counter() - started
        results = work.step(compiled)
        report["later_difference"] = difference(results, expected)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            work.step(compiled)
        report["triton"] = sum(event.count for event in profile.key_averages() if event.key.startswith("triton_"))
        stats = fxpool.stats()
        report |= {name: stats[name] for name in ("compiles", "fallbacks", "bypasses")}
        report["background"] = stats["background"]
        report["graphs"] = [(g["outcome"], g["stage"], g["seconds"]) for g in stats["graphs"]]
    print(json.dumps(report | {"lowerings": counter.count}), flush=True)


def run(asked: dict[str, Any], root: str) -> dict[str, Any]:
    """The report of a process with empty caches."""
    with tempfile.TemporaryDirectory(prefix="fresh-", dir=root, ignore_cleanup_errors=True) as fresh:
        report = report_or_exit(__file__, asked, caches(fresh, root))
    print(json.dumps(asked), json.dumps(report), flush=True)
    return report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--what", choices=["infer", "train"], default="infer")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--modes", default=",".join(MODES), help="the longer runs; empty for none")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    import torch

    failures: list[str] = []
    backends = options.backends.split(",")
    firsts: dict[str, list[float]] = {backend: [] for backend in backends}
    compiled_from: list[float] = []
    asked = {"what": options.what, "layers": options.layers, "mode": "async+subprocess", "until": False}
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for _ in range(options.pairs):
            for backend in backends:
                report = run({**asked, "backend": backend}, root)
                firsts[backend].append(report["first"])
                compiled_from += [report["compiled_from"]] if backend == "fxpool" else []
                if backend == "fxpool" and (report["difference"] or report["lowerings"]):
                    failures.append(f"the first step is not eager's: {report}")
        modes = options.modes.split(",") if options.modes else []
        longer = {mode: run({**asked, "backend": "fxpool", "mode": mode, "until": True}, root) for mode in modes}
    for mode, report in longer.items():
        failures += [f"{mode}: {text}" for text in check(report)]
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.what}, first steps, caches empty")
    for backend in backends:
        print(f"  {backend:9} median {statistics.median(firsts[backend]):.2f} s")
    if compiled_from:
        print(f"  compiled code in use from {statistics.median(compiled_from):.2f} s on")
    for rival in backends:
        for what, ours in (("first step", firsts.get("fxpool", [])), ("compiled code in use", compiled_from)):
            if ours and rival != "fxpool":
                print(f"  {what} / {rival}: median {spread(paired(ours, firsts[rival]))} of {len(ours)} pairs")
    finish(failures, options.out, {"firsts": firsts, "compiled_from": compiled_from, "longer": longer})


def check(report: dict[str, Any]) -> list[str]:
    failures = []
    if report["difference"] or report["lowerings"]:
        failures.append("the first step is not eager's, or a graph was lowered in the process")
    if report["later_difference"] > 2e-2:
        failures.append(f"compiled code differs from eager by {report['later_difference']:.3g}")
    if not report["triton"]:
        failures.append("no Triton kernel was seen at work")
    if report["fallbacks"] or report["compiles"]["in_process"]:
        failures.append(f"steps down: {report['fallbacks']}, {report['compiles']}")
    if any(one["state"] != "ready" for one in report["background"]):
        failures.append(f"not in use: {report['background']}")
    return failures


if __name__ == "__main__":
    main()
