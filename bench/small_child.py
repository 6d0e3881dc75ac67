"""A process that compiles many small graphs, one after another; prints one line of JSON.

python bench/small_child.py --operator none --backend fxpool             graphs of torch's operators alone
python bench/small_child.py --operator slow --backend fxpool             with one of a module that takes 4 s to import
python bench/small_child.py --operator slow --backend fxpool-quick       with the same one, of a module that takes none
python bench/small_child.py --operator none --backend fxpool --served    a server is running
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

from fxpool.bench.demo.child import LoweringCounter

GRAPHS = 8


def compile_all(operator: str, backend: str, served: bool) -> dict[str, Any]:
    """Return the median seconds of the first calls of all graphs but the first, with torch imported."""
    counter = LoweringCounter()
    counter.install()
    import torch

    scaled = _operator(operator, quick=backend.endswith("-quick"))
    backend = backend.removesuffix("-quick")
    if served and backend == "fxpool":
        from child import wait_for_server

        wait_for_server()
    torch.manual_seed(0)
    seconds: list[float] = []
    difference = 0.0
    for number in range(GRAPHS):

        def function(x: torch.Tensor, weight: torch.Tensor, number: int = number) -> torch.Tensor:
            hidden = scaled(torch.nn.functional.gelu(x @ weight), 0.5) + number
            return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:]).softmax(-1).sum(0)

        width = 32 + 8 * number
        inputs = torch.randn(16, width), torch.randn(width, width)
        torch._dynamo.reset()
        start = time.perf_counter()
        result = torch.compile(function, backend=backend)(*inputs)
        seconds.append(time.perf_counter() - start)
        difference = max(difference, float((result - function(*inputs)).abs().max()))
    stats = None
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
    return {
        "graph_seconds": statistics.median(seconds[1:]),
        "seconds": seconds,
        "difference": difference,
        "graph_lowerings": counter.count,
        "stats": stats,
    }


def _operator(name: str, *, quick: bool) -> Callable[[Any, float], Any]:
    if name == "none":
        return lambda x, factor: x * factor
    if quick:
        from scaled_ops import OPERATORS
    else:
        from slow_ops import OPERATORS
    operator: Callable[[Any, float], Any] = OPERATORS["proven"]
    return operator


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=("none", "slow"), required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--served", action="store_true")
    chosen = parser.parse_args()
    print(json.dumps(compile_all(chosen.operator, chosen.backend, chosen.served), default=str), flush=True)


if __name__ == "__main__":
    main()
