"""One of two ranks (gloo, CPU) whose graphs hold collectives: prints what became of them, program by program.

Results are compared with eager execution, and lowering in this process is counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch._inductor.config
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fxpool
from fxpool.bench.witness import counting

RANKS_MATTER = hasattr(torch._inductor.config.aten_distributed_optimizations, "allow_comms_decompositions")
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(3))


def layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def step(model: nn.Module, call: Callable[..., Any]) -> list[torch.Tensor]:
    model.zero_grad()
    loss = call(X).square().mean()
    loss.backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return [loss.detach(), *(one.full_tensor() if hasattr(one, "full_tensor") else one for one in gradients)]


def reduced(group: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def program(x: torch.Tensor) -> torch.Tensor:
        gathered = collectives.all_gather_tensor(x.cos(), 0, group)
        scattered = collectives.reduce_scatter_tensor(gathered.sin(), "sum", 0, group)
        return collectives.all_reduce(scattered + x, "sum", group) + 1

    return program


def gram(x: torch.Tensor) -> torch.Tensor:
    """Under an option, Inductor computes the product from each rank's rows, if these are what the rank uses of it."""
    gathered = collectives.all_gather_tensor(x.cos(), 0, dist.group.WORLD)
    return gathered.t() @ gathered


def written(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    dist.all_reduce(y)
    return y + 1


def programs() -> dict[str, Callable[[bool], Any]]:
    """For each name what runs it, compiled or not."""
    mesh = init_device_mesh("cpu", (2,))
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]  # called otherwise on each rank
    sharded = distribute_tensor(X, mesh, [Shard(0)])

    def function(program: Callable[..., Any], x: Any = X) -> Callable[[bool], Any]:
        return lambda compiled: (torch.compile(program, backend="fxpool") if compiled else program)(x)

    def by_rank(compiled: bool) -> Any:
        with torch._inductor.config.patch({"aten_distributed_optimizations.allow_comms_decompositions": True}):
            return function(gram)(compiled)

    def model(prepare: Callable[[nn.Sequential], object]) -> Callable[[bool], Any]:
        def run(compiled: bool) -> Any:
            made = layers()
            prepare(made)
            return step(made, torch.compile(made, backend="fxpool") if compiled else made)

        return run

    def blocks(compiled: bool) -> Any:
        """Compiled block by block, as FSDP2 is meant to be used."""
        made = nn.Sequential(layers(), layers())
        for number, block in enumerate(made):
            if compiled:
                made[number] = torch.compile(block, backend="fxpool")
            fully_shard(made[number], mesh=mesh)
        fully_shard(made, mesh=mesh)
        return step(made, made)

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    return {
        "functional collectives": function(reduced(dist.group.WORLD)),
        "a group of its own": function(reduced(alone)),
        "torch.distributed": function(written),
        "a sharded tensor": function(lambda x: (x.sin() + 1).full_tensor(), sharded),
        "tensor parallel": model(lambda made: parallelize_module(made, mesh, plan)),
        "FSDP2": blocks,
        **({"a rank": by_rank} if RANKS_MATTER else {}),
    }


def main() -> None:
    lowered = counting()
    dist.init_process_group("gloo")
    report: dict[str, Any] = {}
    for name, run in programs().items():
        torch._dynamo.reset()
        earlier, count = fxpool.stats(), lowered.count
        torch.testing.assert_close(run(True), run(False))
        dist.barrier()  # the other rank finds what this one kept
        now = fxpool.stats()
        report[name] = {
            "served": sum(now[what] - earlier[what] for what in ("hits", "joined")),
            "worker": now["compiles"]["worker"] - earlier["compiles"]["worker"],
            "lowered": lowered.count - count,
            "fallbacks": sorted(what for what, n in now["fallbacks"].items() if n != earlier["fallbacks"].get(what)),
            "bypasses": now["bypasses"],
        }
    dist.destroy_process_group()
    print(json.dumps(report))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    main()
