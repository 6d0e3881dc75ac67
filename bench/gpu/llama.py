"""Llama on a GPU: compiled by a forked worker, equal to stock Inductor, served in a second process.

    python bench/gpu/llama.py [--layers 8] [--what infer|train] [--pairs 5 [--states warm,known,server,bare]]
                              [--sides eager,inductor,fxpool,pieces] [--out results.json]

`pieces` is fxpool with graphs cut at repeated modules (``options={"regions": True}``).
Needs a CUDA device, transformers, and fxpool with its dependencies importable. Each measurement is a fresh process; the
clock starts before ``torch.compile()``. Prints a table and exits 1 when something that must hold does not.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from typing import Any

from harness.scripts import caches, finish, report_or_exit
from workload import Llama, parts, save, saved_difference, spread

from fxpool.bench.measurement.statistics import paired
from fxpool.bench.witness import counting

#: Modules that a hit has no use for.
COMPILER = (
    "torch._inductor.compile_fx", "torch._inductor.graph", "torch._inductor.lowering", "torch._inductor.scheduler",
    "torch._inductor.select_algorithm", "torch._inductor.async_compile", "torch._inductor.runtime.triton_heuristics",
)  # fmt: skip

#: Rivals, and what is compared with theirs: seconds of the first and of a later call, peak memory.
COMPARED = (
    ("inductor", "first"), ("eager", "first"), ("inductor", "call"), ("inductor", "memory_MiB"), ("fxpool", "call"),
    ("fxpool", "memory_MiB"),
)  # fmt: skip


def child(asked: dict[str, Any]) -> None:
    counter = counting()
    pieces = asked["backend"] == "pieces"
    backend = "fxpool" if pieces else asked["backend"]
    work = Llama(asked["layers"], asked["what"] == "train")
    import torch

    if asked.get("server"):
        from fxpool.lowering.core.runtime import runtime
        from fxpool.pool import JobSpec

        runtime.pool().start(wait=True)
        time.sleep(0.5)  # it begins to warm up when nobody asks for anything
        runtime.pool().submit("builtins:bytes", b"", JobSpec(label="nothing")).result()  # and answers when it has
    before = set(sys.modules)
    started = time.perf_counter()
    compiled = torch.compile(work.model, backend=backend, options={"regions": True} if pieces else None)
    results = work.step(compiled)
    first = time.perf_counter() - started
    imported = [name for name in COMPILER if name in sys.modules and name not in before]
    times = []
    for _ in range(20):
        begun = time.perf_counter()
        work.step(compiled)
        times.append(time.perf_counter() - begun)
    save(results, asked["save"])
    report: dict[str, Any] = {"first": first, "call": sorted(times)[10], "lowerings": counter.count}
    report["memory_MiB"] = torch.cuda.max_memory_allocated() >> 20
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        report["compiler"] = imported
        report |= {k: stats[k] for k in ("hits", "misses", "compiles", "fallbacks", "bypasses", "entries_written")}
        report |= {"graphs": [(g["outcome"], g["level"], g["seconds"]) for g in stats["graphs"]]}
        report |= {"regions": stats["regions"]}
    print(json.dumps(report))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--what", choices=["infer", "train"], action="append")
    parser.add_argument("--pairs", type=int, default=1, help="rounds of first calls, each back end in turn")
    parser.add_argument("--states", default="warm", help="warm, known (to the host, the graph is not), server, bare")
    parser.add_argument("--sides", default="eager,inductor,fxpool", help="of the rounds; `pieces` is another")
    parser.add_argument("--only-rounds", action="store_true", help="begin with the rounds; not for warm")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    import torch

    failures: list[str] = []
    rows: list[dict[str, Any]] = []
    again: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for what in options.what or ("infer", "train"):
            for backend in ("eager", "inductor", "fxpool") if not options.only_rounds else ():
                environment = caches(f"{root}/{backend}-{what}", root)
                for state in ("cold", "warm"):
                    if backend == "eager" and state == "warm":
                        continue
                    if backend == "fxpool" and state == "warm":
                        # Nothing but the store is kept: what an entry needs must be in it.
                        environment["TORCHINDUCTOR_CACHE_DIR"] += "2"
                        environment["TRITON_CACHE_DIR"] += "2"
                    save = f"{root}/{backend}-{what}-{state}.pt"
                    asked = {"backend": backend, "what": what, "layers": options.layers, "save": save}
                    report = report_or_exit(__file__, asked, environment)
                    row = {"what": what, "backend": backend, "state": state, **report}
                    if backend == "fxpool":
                        row["difference"] = saved_difference(save, f"{root}/inductor-{what}-cold.pt")
                        row["inductor_warm_difference"] = saved_difference(
                            f"{root}/inductor-{what}-warm.pt", f"{root}/inductor-{what}-cold.pt"
                        )
                        check(row, failures)
                    rows.append(row)
                    print(json.dumps(row), flush=True)
            for state in options.states.split(",") if options.pairs > 1 else ():
                again[what, state] = rounds(root, what, options.layers, options.pairs, state, options.sides.split(","))
                print(what, state, json.dumps(again[what, state]), flush=True)
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}, Llama of {options.layers} layers, bf16\n")
    print("| | back end | state | first call, s | per call, ms | difference from Inductor |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        shown = f"{row['difference']:.2e}" if "difference" in row else ""
        print(
            f"| {row['what']} | {row['backend']} | {row['state']} | {row['first']:.2f} | {row['call'] * 1e3:.2f} "
            f"| {shown} |"
        )
    for (what, state), rows_by_backend in again.items():
        compared = [(mine, rival, kind) for mine in ("fxpool", "pieces") for rival, kind in COMPARED]
        for mine, rival, kind in compared:
            if mine == rival or not {mine, rival} <= rows_by_backend.keys():
                continue
            sides = {side: [one[kind] for one in rows_by_backend[side]] for side in (mine, rival)}
            medians = ", ".join(f"{side} {statistics.median(times):.4g}" for side, times in sides.items())
            ratio = spread(paired(*sides.values()))
            print(f"{what}, {state}, {kind}, median of {options.pairs} pairs: {medians}, ratio {ratio}")
    facts = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "rows": rows}
    finish(failures, options.out, facts)


def rounds(
    root: str, what: str, layers: int, pairs: int, state: str, sides: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """First and later calls of each back end in turn. fxpool's Inductor and Triton directories are empty each time.

    Unless it is `warm`, so are stock's, and fxpool's store: it knows the host's tool chain in the states `known` and
    `server` (which has a server running before the clock starts), and nothing where it is `bare`.
    """
    rows_by_backend: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    order = [(number, backend) for number in range(pairs) for backend in sides]
    if state in ("known", "server"):
        order.insert(0, (-1, "fxpool"))  # only so that the host is known
    for number, backend in order:
        first = number < 0
        rows = rows_by_backend[backend] if not first else []
        ours = backend in ("fxpool", "pieces")
        kept = f"{root}/{backend}-{what}"
        mine = f"{kept}-{state}-{number}" if state != "warm" or ours else kept
        store = f"{kept}/c" if state == "warm" else f"{mine}/c"
        if ours and state in ("known", "server") and os.path.isdir(f"{root}/toolchain"):
            shutil.copytree(f"{root}/toolchain", f"{store}/toolchain")
            os.chmod(store, 0o700)
        environment = caches(mine, root, store)
        asked = {"backend": backend, "what": what, "layers": 1 if first else layers, "save": f"{root}/again.pt"}
        environment["FXPOOL_TRACE"] = f"{root}/trace-{backend}-{what}-{state}-{number}.json" if ours else ""
        row = report_or_exit(__file__, {**asked, "server": state == "server" and ours}, environment)
        rows.append({name: row[name] for name in ("first", "call", "memory_MiB", "regions") if name in row})
        if ours:
            rows[-1]["parts"] = parts(environment["FXPOOL_TRACE"])
            shutil.copytree(f"{store}/toolchain", f"{root}/toolchain", dirs_exist_ok=True)
        print(what, state, backend, json.dumps(rows[-1]), flush=True)
    return rows_by_backend


def check(row: dict[str, Any], failures: list[str]) -> None:
    name = f"{row['what']} {row['state']}"
    # bf16: two runs of one compiled program may differ by as much where atomics are used.
    allowed = max(2e-2, 2 * row["inductor_warm_difference"])
    if row["difference"] > allowed:
        failures.append(f"{name}: differs from stock Inductor by {row['difference']:.3g} (allowed {allowed:.3g})")
    if row["lowerings"]:
        failures.append(f"{name}: {row['lowerings']} GraphLowering constructions in the parent")
    if row["fallbacks"]:
        failures.append(f"{name}: steps down {row['fallbacks']}")
    if row["state"] == "warm" and row["compiler"]:
        failures.append(f"{name}: a hit imported {row['compiler']}")
    if row["state"] == "cold" and (row["compiles"]["worker"] != row["misses"] or row["compiles"]["in_process"]):
        failures.append(f"{name}: not every graph was compiled by a worker: {row['compiles']}")
    if row["state"] == "warm" and (row["misses"] or not row["hits"] or any(row["compiles"].values())):
        failures.append(f"{name}: not served from the cache: {row}")


if __name__ == "__main__":
    main()
