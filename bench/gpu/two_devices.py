"""Two ranks on two GPUs of one kind share one entry: compiled once, right on both, with DDP too.

    python bench/gpu/two_devices.py [--out results.json]

Needs two CUDA devices and fxpool with its dependencies importable. Both ranks start together, on one empty cache and
one pool; the second part is two ranks under DistributedDataParallel; the third is one process that uses both devices in
turn. Exits 1 when something that must hold does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from harness.scripts import finish


def model(width: int, device: int) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)

    class Block(torch.nn.Module):  # what is torch's own and called by DDP, Dynamo does not trace
        def __init__(self) -> None:
            super().__init__()
            layers = [torch.nn.Linear(64, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
            self.layers, self.last = torch.nn.Sequential(*layers), torch.nn.Linear(width, 8)

        def forward(self, x: Any) -> Any:
            return self.last(self.layers(x))

    module = Block().to(f"cuda:{device}")
    return module, torch.randn(32, 64).to(f"cuda:{device}")


def step(run: Any, module: Any, x: Any) -> list[Any]:
    module.zero_grad()
    out = run(x)
    out.square().mean().backward()
    return [out.detach().cpu(), *(parameter.grad.cpu() for parameter in module.parameters())]


def trained(width: int, device: int, *, parallel: bool = False) -> float:
    """The largest difference of a compiled step from an eager one, of a later call too."""
    import torch

    module, x = model(width, device)
    expected = step(module, module, x)
    if parallel:
        module = torch.nn.parallel.DistributedDataParallel(module, device_ids=[device])
    compiled = torch.compile(module, backend="fxpool")
    differences = []
    for _ in range(2):
        results = step(compiled, module, x)
        assert results[0].device.type == "cpu"
        differences += [float((a - b).abs().max()) for a, b in zip(results, expected, strict=True)]
    return max(differences)


def rank(asked: dict[str, Any]) -> None:
    import torch

    import fxpool

    device = asked["rank"]
    report: dict[str, Any] = {}
    if asked["what"] == "both":  # one process, the current device stays 0
        report["difference"] = max(trained(96, 0), trained(96, 1))
    else:
        torch.cuda.set_device(device)
        parallel = asked["what"] == "ddp"
        if parallel:
            torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", device))
        report["difference"] = trained(128 if parallel else 112, device, parallel=parallel)
        if parallel:
            torch.distributed.destroy_process_group()
    stats = fxpool.stats()
    report |= {name: stats[name] for name in ("hits", "misses", "joined", "compiles", "fallbacks", "bypasses")}
    report["how"] = [(graph["outcome"], graph["level"], graph["seconds"].get("total")) for graph in stats["graphs"]]
    report["allocated"] = [torch.cuda.memory_allocated(index) > 0 for index in range(2)]
    print(json.dumps(report))


def run(what: str, place: dict[str, str]) -> list[dict[str, Any]]:
    numbers = [0] if what == "both" else [0, 1]
    children = []
    for number in numbers:
        distributed = {
            "RANK": str(number), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511",
            "NCCL_NVLS_ENABLE": "0",
        }  # fmt: skip
        asked = json.dumps({"what": what, "rank": number})
        command = [sys.executable, __file__, "--rank", asked]
        environment = {**os.environ, **place, **distributed}
        children.append(
            subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    reports = []
    for child in children:
        out, err = child.communicate(timeout=240)
        reports.append(json.loads(out.strip().splitlines()[-1]) if not child.returncode else {"failed": err[-4000:]})
    return reports


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.rank:
        return rank(json.loads(options.rank))
    failures: list[str] = []
    rows = {}
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        place = {"FXPOOL_CACHE_DIR": f"{root}/c", "FXPOOL_RUNTIME_DIR": f"{root}/r", "FXPOOL_IDLE_TIMEOUT": "5"}
        for what in ("ranks", "ddp", "both"):
            reports = rows[what] = run(what, place)
            print(what, json.dumps(reports), flush=True)
            if failed := [one["failed"] for one in reports if "failed" in one]:
                failures += [f"{what}: {one}" for one in failed]
                continue
            compiles = sum(one["compiles"]["worker"] for one in reports)
            if compiles != 1 or any(one["compiles"]["in_process"] for one in reports):
                failures.append(f"{what}: {compiles} compiles instead of 1")
            if any(one["difference"] > 1e-4 for one in reports):
                failures.append(f"{what}: differs from eager by {[one['difference'] for one in reports]}")
            if any(one["fallbacks"] for one in reports):
                failures.append(f"{what}: {[one['fallbacks'] for one in reports]}")
        if rows["ranks"][1].get("allocated", [False])[0]:
            failures.append("rank 1 used memory of device 0")
    finish(failures, options.out, rows)


if __name__ == "__main__":
    main()
