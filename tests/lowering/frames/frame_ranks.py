"""One rank of a program whose model is in DistributedDataParallel or FSDP2 (gloo, CPU): trains two steps beside eager.

    frame_ranks.py MODEL

MODEL is ``ddp``, ``split`` (DDPOptimizer splits the graph of a model with more than 1 MB of parameters) or ``fsdp``.
Prints a line of JSON, as the programs of `frame_runs`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as distributed

import fxpool
from fxpool.bench.witness import counting
from fxpool.frames import serving


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, width), torch.nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.last(torch.nn.functional.gelu(self.first(x)))


class Net(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def wrapped(model: Net, kind: str) -> Any:
    """Return the model as DDP or FSDP2 has it."""
    if kind != "fsdp":
        return torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=2)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def train(run: Any, model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    out = run(x)
    out.square().mean().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [out.detach(), *(one.full_tensor() if hasattr(one, "full_tensor") else one.clone() for one in gradients)]


def main(kind: str) -> None:
    lowered = counting()
    serving._DOUBTED = 0.0  # one in a thousand would be traced
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    width = 16384 if kind == "split" else 64
    model, x = Net(width), torch.randn(4, 16)  # the same on both ranks, so that averaged gradients are eager's
    expected = train(model, model, x)
    parallel = wrapped(model, kind)
    compiled = torch.compile(parallel, backend="fxpool")
    for _ in range(2):
        torch.testing.assert_close(train(compiled, model, x), expected, rtol=1e-4, atol=1e-6)
    stats = fxpool.stats()
    report = {name: stats[name] for name in ("frames", "misses", "fallbacks", "bypasses")}
    report["captured"] = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    report["lowered"] = lowered.count
    distributed.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
