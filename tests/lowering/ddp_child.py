"""One of two ranks under DistributedDataParallel (gloo, CPU): trains two steps, prints what became of its graphs.

ddp_child.py WIDTH        (of a layer; DDPOptimizer splits the graph of a model with more than 1 MB of parameters)
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import fxpool


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.nn.functional.gelu(self.first(x)))


def train(run: Any, model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def main(width: int) -> None:
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model, x = Block(width), torch.randn(16, 64)  # the same on both ranks, so that averaged gradients are eager's
    expected = train(model, model, x)
    parallel = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)
    compiled = torch.compile(parallel, backend="fxpool")
    for _ in range(2):
        torch.testing.assert_close(train(compiled, model, x), expected, rtol=1e-4, atol=1e-6)
    stats = fxpool.stats()
    report = {name: stats[name] for name in ("hits", "joined", "compiles", "fallbacks", "bypasses")}
    torch.distributed.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
