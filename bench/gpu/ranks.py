"""Ranks of one training job on the GPUs of one host: each graph is compiled once, by one of them.

    python bench/gpu/ranks.py [--ranks N] [--layers 24] [--what infer,train] [--cases cold,warm,ddp,...] [--out FILE]

Cases, each with a process per GPU and an empty cache, except `warm`:

    cold     the same model on each rank, beside stock Inductor and ``backend="eager"`` in the same situation
    warm     the same again, with the cache of `cold`: no rank compiles
    frames   the same again with FXPOOL_FRAMES=on, which a run before it kept: no rank traces
    ddp      DistributedDataParallel over NCCL
    fsdp     FSDP2 over NCCL, each layer sharded
    pieces   graphs cut at repeated modules
    async    eager until compiled code has arrived
    killed   one rank is killed in the middle of the compile, and started again

All ranks begin at the same moment, and the clock of each starts before ``torch.compile()``. Results are compared with
those of the model uncompiled, and in `cold` and after it bit for bit with stock Inductor's. Exits 1 when something that
must hold does not: one compile per graph on the whole host, nothing lowered in a rank, no CUDA context on the GPU of
another rank, equal results. Needs transformers, and fxpool with its dependencies importable.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.scripts import caches, finish
from workload import Llama, difference

from fxpool.bench.witness import counting

CASES = ("cold", "warm", "frames", "ddp", "fsdp", "pieces", "async", "killed")
#: Largest relative difference from the model uncompiled: the step is in bfloat16, and stock Inductor's gradients differ
#: by as much as fxpool's.
TOLERANCE = {"infer": 3e-2, "train": 0.12}
#: Cases that use the cache of `cold`.
AGAIN = ("warm", "frames")
OPTIONS: dict[str, dict[str, Any]] = {"pieces": {"regions": True}, "async": {"mode": "async+subprocess"}}


def contexts() -> list[int]:
    """The devices on which this process has a CUDA context."""
    driver = ctypes.CDLL("libcuda.so.1")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    active = []
    for device in range(count.value):
        flags, is_active = ctypes.c_uint(), ctypes.c_int()
        driver.cuDevicePrimaryCtxGetState(device, ctypes.byref(flags), ctypes.byref(is_active))
        if is_active.value:
            active.append(device)
    return active


def wrapped(case: str, model: Any, rank: int) -> Any:
    import torch

    if case == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    if case == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    return model


def shortened(tensors: list[Any]) -> list[Any]:
    """The beginning of each tensor, on the CPU; of a sharded one this rank's part."""
    local = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return [tensor.detach().flatten()[:4096].float().cpu() for tensor in local]


def child(asked: dict[str, Any]) -> None:
    """One rank: print its times and counts as JSON."""
    import torch

    case, rank, backend = asked["case"], asked["rank"], asked["backend"]
    torch.cuda.set_device(rank)
    counter = counting()
    is_parallel = case in ("ddp", "fsdp")
    if is_parallel:
        torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    work = Llama(asked["layers"], asked["what"] == "train")
    module = wrapped(case, work.model, rank)
    work.step(module)  # libraries of CUDA, which every side needs
    reference = shortened(work.step(module))
    ready, go = Path(asked["root"]) / f"ready-{rank}", Path(asked["root"]) / "go"
    ready.touch()
    while not go.exists():
        time.sleep(0.002)
    begin = time.perf_counter()
    options = OPTIONS.get(case) if backend == "fxpool" else None
    compiled = (
        torch.compile(module, backend=backend, options=options) if options else torch.compile(module, backend=backend)
    )
    results = shortened(work.step(compiled))
    report: dict[str, Any] = {"rank": rank, "first": time.perf_counter() - begin, "ended": time.time()}
    if case == "async":
        import fxpool

        while any(state["state"] == "pending" for state in fxpool.wait(0)):
            work.step(compiled)
        results = shortened(work.step(compiled))
        report["compiled_from"] = time.perf_counter() - begin
    report["difference"] = difference(results, reference)
    torch.save(results, f"{asked['root']}/result-{backend}-{rank}.pt")
    report["contexts"] = contexts()
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        report["lowered"] = counter.count
        report |= {name: stats[name] for name in ("hits", "misses", "joined", "fallbacks", "bypasses")}
        report["compiles"] = sum(stats["compiles"].values())
        report["frames"] = stats["frames"]
        report["seconds"] = [graph["seconds"] for graph in stats["graphs"]]
        report["keys"] = [graph["key"] for graph in stats["graphs"]]
    print(json.dumps(report), flush=True)
    if is_parallel:
        torch.distributed.destroy_process_group()


class Job:
    """The ranks of one run."""

    def __init__(self, asked: dict[str, Any], ranks: int, environment: dict[str, str]) -> None:
        self.asked, self.ranks, self.environment = asked, ranks, environment
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.children = {rank: self.start(rank) for rank in range(ranks)}

    def start(self, rank: int) -> subprocess.Popen[str]:
        distributed = {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port), "NCCL_NVLS_ENABLE": "0",
        }  # fmt: skip
        return subprocess.Popen(
            [sys.executable, __file__, "--child", json.dumps({**self.asked, "rank": rank})],
            text=True,
            env={**os.environ, **self.environment, **distributed},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def begin(self) -> None:
        """Let all ranks go when the last one is ready."""
        root = Path(self.asked["root"])
        for rank, process in self.children.items():
            while not (root / f"ready-{rank}").exists() and process.poll() is None:
                time.sleep(0.01)
        (root / "go").touch()

    def kill(self, rank: int, after: float) -> None:
        """Kill a rank, and start it again."""
        time.sleep(after)
        process = self.children[rank]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        self.children[rank] = self.start(rank)

    def reports(self) -> list[dict[str, Any]]:
        gathered = []
        for rank, process in self.children.items():
            try:
                out, err = process.communicate(timeout=240)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            failed = {"rank": rank, "failed": f"{process.returncode}: {err[-3000:]}"}
            gathered.append(json.loads(out.strip().splitlines()[-1]) if not process.returncode else failed)
        return gathered


def run(asked: dict[str, Any], ranks: int, root: str) -> list[dict[str, Any]]:
    case, backend = asked["case"], asked["backend"]
    directory = f"{root}/{asked['what']}-{'cold' if case in AGAIN else case}-{backend}"
    asked = {**asked, "root": f"{root}/{asked['what']}-{case}-{backend}-run"}
    os.makedirs(asked["root"])
    environment = {
        **caches(f"{directory}/{case}", root, store=f"{directory}/c"),
        "FXPOOL_POOL": "host",
        "FXPOOL_IDLE_TIMEOUT": "5",
        "FXPOOL_FRAMES": "on" if case == "frames" else "off",
    }
    if case == "frames":
        keeping = Job(asked, ranks, environment)
        keeping.begin()
        keeping.reports()
        for file in os.listdir(asked["root"]):
            os.unlink(f"{asked['root']}/{file}")
    job = Job(asked, ranks, environment)
    job.begin()
    if case == "killed":
        job.kill(1 % ranks, after=2.5)
    return job.reports()


def different(reports: list[dict[str, Any]]) -> int:
    """The number of graphs that differ, of all ranks together. A graph that was cut into pieces has no key."""
    return len({key for one in reports for key in one["keys"] if key is not None})


def wrong_in(case: str, reports: list[dict[str, Any]], root: str, what: str) -> list[str]:
    """What does not hold of fxpool's ranks."""
    wrong = [f"rank {one['rank']}: {one['failed']}" for one in reports if "failed" in one]
    reports = [one for one in reports if "failed" not in one]
    if not reports:
        return wrong
    for one in reports:
        if one["contexts"] != [one["rank"]]:
            wrong.append(f"rank {one['rank']} has contexts on {one['contexts']}")
        if one["difference"] > TOLERANCE[what]:
            wrong.append(f"rank {one['rank']} differs by {one['difference']:.3g} from the model uncompiled")
        if one["lowered"] or one["fallbacks"] or one["bypasses"]:
            wrong.append(f"rank {one['rank']}: {one['lowered']} lowered, {one['fallbacks']}, {one['bypasses']}")
    graphs, compiled = different(reports), sum(one["compiles"] for one in reports)
    # A rank that is killed takes its count with it.
    if compiled != (0 if case in AGAIN else graphs) and not (case == "killed" and compiled < graphs):
        wrong.append(f"{compiled} compiles of {graphs} graphs")
    if case == "frames" and any(set(one["frames"]) != {"served"} for one in reports):
        wrong.append(f"frames were traced: {[one['frames'] for one in reports]}")
    if case in AGAIN and max(one["ended"] for one in reports) - min(one["ended"] for one in reports) > 0.3:
        wrong.append("the first steps of the ranks end more than 0.3 s apart")
    if case in ("cold", *AGAIN):
        import torch

        for one in reports:
            paths = [f"{root}/{what}-{run}-run/result-{run.split('-')[1]}-{one['rank']}.pt"
                     for run in ("cold-inductor", f"{case}-fxpool")]  # fmt: skip
            with contextlib.suppress(FileNotFoundError):
                one["from_stock"] = difference(*(torch.load(path) for path in paths))
                if one["from_stock"] > 0.0:
                    wrong.append(f"rank {one['rank']} differs by {one['from_stock']:.3g} from stock")
    return wrong


def row_of(what: str, case: str, backend: str, reports: list[dict[str, Any]]) -> str:
    done = [one for one in reports if "failed" not in one]
    if not done:
        return f"| {what}, {case} | {backend} | failed | | | |"
    firsts = [one["first"] for one in done]
    spread = max(one["ended"] for one in done) - min(one["ended"] for one in done)
    counted = "" if backend != "fxpool" else (
        f"{different(done)} graphs, {sum(one['compiles'] for one in done)} compiles, "
        f"{sum(one['joined'] for one in done)} joined, {sum(one['hits'] for one in done)} hits"
    )  # fmt: skip
    from_stock = max((one["from_stock"] for one in done if "from_stock" in one), default=None)
    compared = f"{max(one['difference'] for one in done):.2g}" + (
        f"; {from_stock:.2g} from stock" if from_stock is not None else ""
    )
    seconds = f"{min(firsts):.2f} - {max(firsts):.2f} | {spread:.2f}"
    return f"| {what}, {case} | {backend} | {seconds} | {counted} | {compared} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--what", default="infer,train")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rivals", default="eager,inductor", help="measured beside `cold`")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    import torch

    ranks = options.ranks or torch.cuda.device_count()
    print(f"{ranks} ranks, {options.layers} layers, {torch.cuda.get_device_name(0)}, torch {torch.__version__}\n")
    print("| | back end | first steps, s | apart, s | fxpool's counts | difference |\n|---|---|---|---|---|---|")
    wrong: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory(prefix="fxr") as root:
        for what in options.what.split(","):
            slowest: dict[str, float] = {}
            for case in options.cases.split(","):
                if what == "infer" and case in ("ddp", "fsdp", "killed"):
                    continue
                backends = [*filter(None, options.rivals.split(","))] if case == "cold" else []
                for backend in (*backends, "fxpool"):
                    asked = {"case": case, "what": what, "backend": backend, "layers": options.layers}
                    reports = run(asked, ranks, root)
                    rows.append({**asked, "reports": reports})
                    if backend == "fxpool":
                        wrong += [f"{what}, {case}: {one}" for one in wrong_in(case, reports, root, what)]
                    else:
                        wrong += [f"{what}, {case}, {backend}: {one['failed']}" for one in reports if "failed" in one]
                    print(row_of(what, case, backend, reports), flush=True)
                    if case == "cold":
                        slowest[backend] = max(one.get("first", 0.0) for one in reports)
            if {"eager", "inductor", "fxpool"} <= slowest.keys():
                share = (slowest["fxpool"] - slowest["eager"]) / slowest["inductor"]
                print(f"\n{what}: the slowest rank beyond eager's is {share:.2f} of stock's slowest\n", flush=True)
    finish(wrong, options.out, rows)


if __name__ == "__main__":
    main()
