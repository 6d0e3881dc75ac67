"""Train on several processes: every graph is compiled once and shared by all ranks.

    torchrun --standalone --nproc-per-node 2 examples/torchrun_training.py

Each rank prints where its graphs came from: `compiled` (it asked first), `joined` (another rank was already compiling
it) or `cached`. Run it again, and every graph of every rank is `cached`.
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import fxpool


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(32, 96), torch.nn.LayerNorm(96), torch.nn.Linear(96, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.nn.functional.gelu(self.first(data))))


def main() -> None:
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()
    if on_gpu:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    device = "cuda" if on_gpu else "cpu"

    torch.manual_seed(0)
    network = Network().to(device)
    model = torch.compile(DistributedDataParallel(network), backend="fxpool")
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)

    torch.manual_seed(rank)  # every rank has its own data
    data = torch.randn(64, 32, device=device)
    target = data.sum(1, keepdim=True).tanh()
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (model(data) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    stats = fxpool.stats()
    weight = sum(parameter.sum().item() for parameter in network.parameters())
    print(
        f"rank {rank}: loss {losses[0]:.4f} -> {losses[-1]:.4f}, weights {weight:.5f}, "
        f"compiled {stats['compiles']['worker']}, joined {stats['joined']}, cached {stats['hits']}, "
        f"in process {stats['compiles']['in_process']}",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
