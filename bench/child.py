"""Processes that the benchmarks need beside `fxpool.demo_child`; each prints one line of JSON.

python bench/child.py prime --backend B                 compile a trivial graph: leaves what is known about
                                                        processor and compiler in the cache directories
python bench/child.py steady --what mlp --backend B     seconds per call once compiled
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from fxpool.demo_child import SIZES, LoweringCounter, build

WARM_UP = 20  # calls; guards, allocator and threads have settled by then
CHUNK_SECONDS = 0.02  # far above the clock's resolution, far below a scheduling hiccup's effect on the median
TOTAL_SECONDS = 4.0


def steady(what: str, backend: str, size: str) -> dict[str, Any]:
    counter = LoweringCounter()
    counter.install()
    import torch

    torch.manual_seed(0)
    if what == "gpt2":
        model: Any = build("gpt2", size).eval()
        inputs = torch.randint(0, 1000, (2, 64))
    else:
        # Every layer is a few microseconds of work, so that what surrounds the kernels shows.
        layers = [
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()) for _ in range(16)
        ]
        model = torch.nn.Sequential(*layers).eval()
        inputs = torch.randn(8, 64)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        first, reference = compiled(inputs), model(inputs)
        lowered = counter.count
        if what == "gpt2":
            first, reference = first.logits, reference.logits
        difference = float((first - reference).abs().max())
        seconds = per_call(lambda: compiled(inputs))
    stats = None
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
    return {"call_seconds": seconds, "difference": difference, "graph_lowerings": lowered, "stats": stats}


def per_call(call: Callable[[], object]) -> float:
    """Median over chunks of the seconds that one call takes."""
    for _ in range(WARM_UP):
        call()
    start = time.perf_counter()
    call()
    calls = max(1, int(CHUNK_SECONDS / (time.perf_counter() - start)))
    chunks = []
    end = time.perf_counter() + TOTAL_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(calls):
            call()
        chunks.append((time.perf_counter() - start) / calls)
    return statistics.median(chunks)


def prime(backend: str) -> dict[str, Any]:
    import torch

    # Elementwise and long enough to be vectorised: that is what asks for the processor's instruction sets.
    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x) + 1, backend=backend)(torch.randn(4096))
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prime", "steady"):
        command = commands.add_parser(name)
        command.add_argument("--backend", required=True)
        if name == "steady":
            command.add_argument("--what", choices=("mlp", "gpt2"), required=True)
            command.add_argument("--size", choices=SIZES, default="full")
    chosen = parser.parse_args()
    result = prime(chosen.backend) if chosen.command == "prime" else steady(chosen.what, chosen.backend, chosen.size)
    print(json.dumps(result, default=str), flush=True)


if __name__ == "__main__":
    main()
