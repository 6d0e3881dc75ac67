"""A process that trains six blocks with a custom operator for one step; prints one line of JSON.

python bench/custom_child.py --operator proven --backend fxpool     AOTAutograd is skipped, or runs in a worker
python bench/custom_child.py --operator listed --backend fxpool     AOTAutograd runs in this process
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from fxpool.bench.demo.child import LoweringCounter


def step(operator: str, backend: str) -> dict[str, Any]:
    """Return the seconds from `torch.compile` to the end of the first backward, with torch imported."""
    counter = LoweringCounter()
    counter.install()
    import torch
    from scaled_ops import OPERATORS

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled: torch.Tensor = OPERATORS[operator](torch.nn.functional.gelu(self.linear(x)), 0.5)
            return x + self.norm(scaled)

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*(Block() for _ in range(6))), torch.randn(8, 64)
    start = time.perf_counter()
    compiled = torch.compile(model, backend=backend)
    compiled(x).square().mean().backward()
    seconds = time.perf_counter() - start
    lowered, ours = counter.count, [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    theirs = [parameter.grad for parameter in model.parameters()]
    difference = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    stats = None
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
    return {"first_call_seconds": seconds, "difference": difference, "graph_lowerings": lowered, "stats": stats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operator", choices=("proven", "listed"), required=True)
    parser.add_argument("--backend", required=True)
    chosen = parser.parse_args()
    print(json.dumps(step(chosen.operator, chosen.backend), default=str), flush=True)


if __name__ == "__main__":
    main()
