"""`max_autotune` on this GPU: candidates are compiled by workers that see no device, and timed by one that is given it.

    python bench/gpu/tuned.py [--models product,linear,...] [--out results.json]

Needs a CUDA device and fxpool with its dependencies importable. Each model is compiled by stock Inductor and by fxpool,
with ``max_autotune``, in fresh processes and empty directories; a third process is served by fxpool. All of fxpool's
processes are looked at: only one at a time may have a device open, and only where something is timed. Exits 1 when
something that must hold does not.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from typing import Any

from harness.children import ChildError
from harness.scripts import caches, finish, report_of
from without_device import Watch
from workload import Llama, save, saved_difference

from fxpool.bench.witness import counting

MODELS = ("product", "linear", "convolution", "llama")


class Small:
    training = False

    def __init__(self, name: str) -> None:
        import torch

        torch.manual_seed(0)
        nn, kind = torch.nn, torch.bfloat16
        if name == "product":  # fused with what follows
            self.model: Any = lambda a, b: (a @ b).relu()
            self.inputs = [torch.randn(1024, 1024, device="cuda", dtype=kind) for _ in range(2)]
        elif name == "linear":
            self.model = nn.Sequential(nn.Linear(768, 3072), nn.GELU(), nn.Linear(3072, 768)).to("cuda", kind)
            self.inputs = [torch.randn(512, 768, device="cuda", dtype=kind)]
        else:
            self.model = nn.Sequential(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 32, 1)).to("cuda", kind)
            self.inputs = [torch.randn(8, 64, 56, 56, device="cuda", dtype=kind)]

    def step(self, run: Any) -> list[Any]:
        import torch

        with torch.no_grad():
            outputs = [run(*self.inputs)]
        torch.cuda.synchronize()
        return outputs


def child(asked: dict[str, Any]) -> None:
    import torch

    counter = counting()
    work = Llama(2, False) if asked["model"] == "llama" else Small(asked["model"])
    compiled = torch.compile(work.model, backend=asked["backend"], options={"max_autotune": True})
    started = time.perf_counter()
    results = work.step(compiled)
    report: dict[str, Any] = {"first": time.perf_counter() - started, "lowerings": counter.count}
    times = []
    for _ in range(50):
        begun = time.perf_counter()
        work.step(compiled)
        times.append(time.perf_counter() - begun)
    report["call_ms"] = sorted(times)[25] * 1e3
    save(results, asked["save"])
    if asked["backend"] == "fxpool":
        import fxpool
        from fxpool.codecache.store.store import LocalStore
        from fxpool.lowering.artifact.entry_content import content_of
        from fxpool.lowering.artifact.entry_parts import generated_code

        stats = fxpool.stats()
        report |= {key: stats[key] for key in ("hits", "misses", "compiles", "fallbacks", "bypasses")}
        report["graphs"] = [(graph["outcome"], graph["seconds"]) for graph in stats["graphs"]]
        store = LocalStore(os.environ["FXPOOL_CACHE_DIR"])
        entries = [listed.entry for listed in store.scan() if listed.entry is not None]
        report["tuned"] = [row for entry in entries for row in content_of(entry).decisions.tuned]
        codes = [text for entry in entries for _, text in generated_code(entry, store)]
        report["templates"] = sorted(set(re.findall(r"\b(triton_tem_\w+)\.run", "".join(codes))))
    print(json.dumps(report))


def compare(model: str, root: str) -> tuple[dict[str, Any], list[str]]:
    results: dict[str, Any] = {}
    failures: list[str] = []
    for state, backend in (("stock", "inductor"), ("cold", "fxpool"), ("warm", "fxpool")):
        environment = caches(f"{root}/{model}-{state}", root, store=f"{root}/{model}/c")
        asked = {"backend": backend, "model": model, "save": f"{root}/{model}-{state}.pt"}
        with Watch() as watch:
            try:
                results[state] = report_of(__file__, asked, environment)
            except ChildError as error:
                return {"model": model, "state": state}, [f"{model} {state}: {error.message}: {error.output}"]
        results[state]["with_device"] = sorted(watch.guilty.values())
        results[state]["most_at_once"] = watch.most
    cold, warm = results["cold"], results["warm"]
    row = {
        "model": model,
        "difference": saved_difference(f"{root}/{model}-cold.pt", f"{root}/{model}-stock.pt"),
        "warm_difference": saved_difference(f"{root}/{model}-warm.pt", f"{root}/{model}-stock.pt"), **results,
    }  # fmt: skip
    if max(row["difference"], row["warm_difference"]) > 2e-2:
        failures.append(f"{model}: differs by {row['difference']:.3g}, {row['warm_difference']:.3g} from Inductor's")
    if cold["lowerings"] or warm["lowerings"] or cold["fallbacks"] or warm["fallbacks"]:
        failures.append(f"{model}: not by workers without devices: {cold['fallbacks']} {warm['fallbacks']}")
    if not cold["tuned"] or any(row[1] == "not timed" for row in cold["tuned"]):
        failures.append(f"{model}: nothing was timed: {cold['tuned']}")
    if cold["most_at_once"] != 1 or warm["with_device"]:
        failures.append(f"{model}: processes with a device: {cold['with_device']} {warm['with_device']}")
    if warm["misses"] or not warm["hits"]:
        failures.append(f"{model}: not served in another process")
    return row, failures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    failures: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        for model in options.models.split(","):
            row, said = compare(model, root)
            rows.append(row)
            failures += said
            print(json.dumps(row)[:6000], flush=True)
    finish(failures, options.out, rows)


if __name__ == "__main__":
    main()
