"""Programs with a process group: collectives, data parallel models, distributed tensors. One rank is enough for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as collectives

from .registry import Compile, script


@contextlib.contextmanager
def _group() -> Iterator[Any]:
    """The group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


class _Net(nn.Module):
    """A class of the user's: wrappers around torch's own leave Dynamo nothing to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


@script("collective_all_reduce")
def collective_all_reduce(compiling: Compile) -> Any:
    with _group() as group:
        return compiling(lambda x: collectives.all_reduce(x * 2, "sum", group) + 1)(torch.ones(4))


@script("collective_gather_and_scatter")
def collective_gather_and_scatter(compiling: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        whole = collectives.all_gather_tensor(x.sin(), 0, group)
        return collectives.reduce_scatter_tensor(whole * 2, "sum", 0, group) + 1

    with _group() as group:
        return compiling(f)(torch.ones(4))


@script("collective_of_torch_distributed")
def collective_of_torch_distributed(compiling: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        dist.all_reduce(y)
        return y + 1

    with _group():
        return compiling(f)(torch.ones(4))


@script("data_parallel")
def data_parallel(compiling: Compile) -> Any:
    with _group():
        net = _Net()
        out = compiling(nn.parallel.DistributedDataParallel(net))(torch.ones(3, 4))
        out.sum().backward()
        return out, [p.grad for p in net.parameters()]


@script("fully_sharded")
def fully_sharded(compiling: Compile) -> Any:
    from torch.distributed.fsdp import fully_shard

    with _group():
        mesh = dist.init_device_mesh("cpu", (1,))
        net = nn.Sequential(compiling(_Net()), nn.Linear(2, 2))  # blocks are compiled, then sharded
        fully_shard(net[0], mesh=mesh)
        fully_shard(net, mesh=mesh)
        out = net(torch.ones(3, 4))
        out.sum().backward()
        return out, [p.grad.full_tensor() for p in net.parameters()]


@script("distributed_tensor")
def distributed_tensor(compiling: Compile) -> Any:
    from torch.distributed.tensor import Shard, distribute_tensor

    with _group():
        mesh = dist.init_device_mesh("cpu", (1,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        return compiling(lambda x: (x.sin() * 2).sum(-1))(x).full_tensor()


@script("tensor_parallel")
def tensor_parallel(compiling: Compile) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    with _group():
        mesh = dist.init_device_mesh("cpu", (1,))
        net = parallelize_module(_Net(), mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        return compiling(net)(torch.ones(3, 4))
