"""A process with a product on the CPU that is chosen by time, in a graph of its own: prints what came of it as JSON.

cpu_tuning_child.py FUNCTION      (what follows the product, of torch's)
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from patched_lowering import while_lowering

import fxpool
from fxpool import config
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.request.compile_request import CompileRequest
from fxpool.lowering.worker import jobs

OPTIONS = {"max_autotune": True, "max_autotune_gemm_backends": "CPP,ATEN"}


def compile_watched(payload: bytes) -> bytes:
    """Job: `compile_job` that notes of each timing whether the host's turn is this process's."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    from fxpool.bench.measurement import exclusive

    original: Any = AlgorithmSelectorCache.benchmark_choices
    timings = f"{CompileRequest.load(payload).store}/timings"

    def benchmark_choices(*args: Any, **kwargs: Any) -> Any:
        with open(timings, "a") as file:
            print(json.dumps("cpu" in getattr(exclusive._held, "devices", {})), file=file)
        return original(*args, **kwargs)

    with while_lowering(AlgorithmSelectorCache, benchmark_choices=benchmark_choices):
        return jobs.compile_job(payload)


@torch.no_grad()
def main(name: str) -> None:
    from fxpool.lowering.compiling import remote

    vars(remote)["COMPILE_JOB"] = "cpu_tuning_child:compile_watched"
    torch._inductor.config.freezing = True  # for Dynamo, too, which keeps parameters as constants then
    torch.manual_seed(0)
    linear, values = torch.nn.Linear(256, 256).eval(), torch.randn(64, 256)

    def product(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = getattr(torch, name)(linear(x))
        return found

    compiled = torch.compile(product, backend="fxpool", options=OPTIONS)
    close = torch.allclose(compiled(values), product(values), atol=1e-4)
    (key,) = [one["key"] for one in fxpool.stats()["graphs"] if one["key"]]
    (entry,) = LocalStore(str(config.current().cache_dir)).entries(key)
    fxpool.close()
    timings = config.current().cache_dir / "timings"
    busy = [json.loads(line) for line in timings.read_text().splitlines()] if timings.exists() else []
    timings.unlink(missing_ok=True)
    print(json.dumps({"close": close, "key": key, "busy": busy, "tuned": content_of(entry).decisions.tuned}))


if __name__ == "__main__":
    main(*sys.argv[1:])
