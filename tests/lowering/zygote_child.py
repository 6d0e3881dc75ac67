"""A process that starts a server, lets its zygote warm up, and prints what zygote and workers are then, as JSON.

    zygote_child.py [--fresh] MODEL@DEVICE...

What is to be compiled afterwards are functions of `gpu_child`, for `cpu` or a common device. A `--fresh` zygote does
not warm up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from capturing import captured
from gpu_child import attention, convolution, for_device

import fxpool
from fxpool.lowering.compiling.remote import spec_of
from fxpool.lowering.core import pool_environment
from fxpool.lowering.core import runtime as runtime_module
from fxpool.lowering.core.runtime import runtime
from fxpool.pool import JobSpec

MODELS = {"convolution": convolution, "attention": attention}
PATIENCE = 240.0
NOTHING = JobSpec(label="")


def ask(job: str, data: bytes = b"", spec: JobSpec = NOTHING) -> Any:
    return json.loads(runtime.pool().submit(f"zygote_jobs:{job}", data, dataclasses.replace(spec, label=job)).result())


def mapped_of_driver(pid: int) -> set[str]:
    mapped = Path(f"/proc/{pid}/maps").read_text()
    return {name for name in ("libcuda.so", "libnvidia-ml") if name in mapped}


def by_torch() -> set[str]:
    """What of it a process has mapped that has only imported torch: on a GPU machine its libraries may name it."""
    program = "import torch, zygote_child, os; print(*zygote_child.mapped_of_driver(os.getpid()))"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return set(run.stdout.split())


def main(wanted: list[str]) -> None:
    if fresh := "--fresh" in wanted:
        wanted.remove("--fresh")
        runtime_module._IDLE = ""
    pool = runtime.pool()
    pool.start(wait=True)
    log = Path(pool.status()["directory"]) / "server.log"
    end = time.monotonic() + PATIENCE
    # `examine_torch` runs in many short pieces, so the last of the others tells that the list is through.
    while not fresh and "warm_up_training took" not in log.read_text() and time.monotonic() < end:
        time.sleep(0.1)  # it is left alone: it warms up when nobody asks for anything
    facts = pool.status()
    zygote = facts["zygote"]["pid"]
    report: dict[str, Any] = {
        "zygotes": facts["counters"]["zygotes"],
        "threads": os.listdir(f"/proc/{zygote}/task"),
        "driver": mapped_of_driver(zygote) - by_torch(),
        "log": log.read_text(),
        "compiles": {},
    }
    requests = {}
    for name in wanted:
        model, device = name.split("@")
        torch.manual_seed(0)
        function, inputs = MODELS[model]()
        (only,) = captured(function, *inputs)
        only.complete()
        request = only.request if device == "cpu" else for_device(only.request, device)
        toolchain_dir = os.path.join(os.environ["FXPOOL_CACHE_DIR"], "toolchain")
        requests[name] = dataclasses.replace(request, key=None, store=None, toolchain_dir=toolchain_dir)
    report["inherited"] = ask("inherited", spec=JobSpec(label="", sys_path=pool_environment.import_path()))
    for name, request in requests.items():
        report["compiles"][name] = ask("compile_and_count", request.dump(), spec_of(request))
    report["zygotes_after"] = pool.status()["counters"]["zygotes"]
    fxpool.close()
    print(json.dumps(report, default=sorted))


if __name__ == "__main__":
    main(sys.argv[1:])
