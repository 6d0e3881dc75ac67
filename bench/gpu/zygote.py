"""The zygote of a machine with a GPU: it warms up, is not replaced, and never touches the device.

    python bench/gpu/zygote.py [--out results.json]

Starts a server, leaves it alone until it has warmed up, then has two small graphs compiled for the GPU, each cold and
in a process of its own. Prints what the zygote and those calls were. Exits 1 when something that must hold does not:
one zygote with one thread, CUDA's driver not loaded in it, no worker on the GPU, no step down, results near eager's.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from harness.scripts import caches, finish

CALLS = ("warm", "warm_up_devices", "warm_up", "warm_up_training")
PATIENCE = 180.0


def child(number: int, train: bool) -> None:
    """One cold first call. The graph differs from the other process's in its sizes and its function."""
    import torch

    import fxpool

    torch.manual_seed(number)
    width = 64 + 32 * number
    activation = (torch.nn.GELU, torch.nn.SiLU)[number]
    model = torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), activation(), torch.nn.Linear(4 * width, width), torch.nn.LayerNorm(width)
    ).cuda()
    inputs = torch.randn(8, width, device="cuda")

    def step(run: Any) -> list[torch.Tensor]:
        with torch.set_grad_enabled(train):
            result = run(inputs).softmax(-1)
            if not train:
                return [result]
            model.zero_grad()
            result.square().sum().backward()
        return [result.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    expected = step(model)
    compiled = torch.compile(model, backend="fxpool")
    torch.cuda.synchronize()
    started = time.perf_counter()
    results = step(compiled)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    stats = fxpool.stats()
    differs = max(float((one - other).abs().max()) for one, other in zip(results, expected, strict=True))
    report = {"first": seconds, "differs": differs, "stats": stats, "pid": os.getpid()}
    print(json.dumps(report, default=str), flush=True)


def on_the_gpu() -> list[int]:
    """Processes that have a context, as far as the machine tells."""
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    return [int(word) for word in listed.stdout.split() if word.isdigit()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child", type=int)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.child is not None:
        return child(options.child, options.train)
    with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
        os.makedirs(f"{root}/r", mode=0o700)
        os.environ |= {**caches(root, root), "FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "300"}
        try:
            failures = measure(options.out)
        finally:
            subprocess.run([sys.executable, "-m", "fxpool", "stop"], check=False)
    finish(failures)


def measure(out: str | None) -> list[str]:
    import torch

    from fxpool.lowering.core.runtime import runtime

    pool = runtime.pool()
    pool.start(wait=True)
    facts = pool.status()
    log = Path(facts["directory"]) / "server.log"
    end = time.monotonic() + PATIENCE
    while log.read_text().count(" took ") < len(CALLS) and time.monotonic() < end:
        time.sleep(0.2)
    report: dict[str, Any] = {"torch": torch.__version__, "before": zygote_of(pool.status()), "calls": []}
    for number, train in ((0, False), (1, False), (0, True), (1, True)):
        command = [sys.executable, __file__, "--child", str(number), *(["--train"] if train else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        call = {"graph": number, "train": train, **json.loads(done.stdout.splitlines()[-1])}
        report["calls"].append(call)
        stats = call["stats"]
        parts = {name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks", "graphs")}
        what = "training" if train else "inference"
        print(f"graph {number}, {what}: {call['first']:.2f} s cold, differs by {call['differs']:.2g}; {parts}")
    after = pool.status()
    report["after"], report["log"] = zygote_of(after), log.read_text()
    print("\nthe server's log:\n" + report["log"])
    for when in ("before", "after"):
        print(f"{when} the calls: {report[when]}")
    if out:
        Path(out).write_text(json.dumps(report, indent=1, default=str))
    return check(report)


@functools.cache
def by_torch() -> str:
    """What a process has mapped that has only imported torch, and sees no device: its libraries may name the driver."""
    program = "import torch; print(open('/proc/self/maps').read())"
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True).stdout


def zygote_of(facts: dict[str, Any]) -> dict[str, Any]:
    pid = facts["zygote"]["pid"]
    tasks = Path(f"/proc/{pid}/task")
    mapped = Path(f"/proc/{pid}/maps").read_text()
    return {
        "pid": pid,
        "zygotes": facts["counters"]["zygotes"],
        "threads": [(task / "comm").read_text().strip() for task in tasks.iterdir()],
        "driver": [name for name in ("libcuda.so", "libnvidia-ml.so") if name in mapped and name not in by_torch()],
        "megabytes": facts["memory"]["zygote"] >> 20,
        "on_the_gpu": on_the_gpu(),
    }


def check(report: dict[str, Any]) -> list[str]:
    failures = []
    for when in ("before", "after"):
        state = report[when]
        if (
            state["zygotes"] != 1
            or len(state["threads"]) != 1
            or state["driver"]
            or state["pid"] in state["on_the_gpu"]
        ):
            failures.append(f"{when} the calls: {state}")
    missing = [name for name in CALLS if f"warmup:{name} took" not in report["log"]]
    if missing or "Traceback" in report["log"]:
        failures.append(f"not warmed up to the end: {missing or 'see the traceback'}")
    for call in report["calls"]:
        if call["differs"] > 1e-2 or call["stats"]["fallbacks"] or call["stats"]["hits"]:
            failures.append(f"graph {call['graph']}: {call}")
    return failures


if __name__ == "__main__":
    main()
