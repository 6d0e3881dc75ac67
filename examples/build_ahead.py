"""Capture graphs on one machine, compile them on another, and start the fleet with a full cache.

    fxpool capture --to graphs build_ahead.py       on one machine with the GPU; it compiles nothing
    fxpool build graphs --to graphs.bundle          on a machine without a GPU, or on a farm
    fxpool cache import graphs.bundle               on each machine of the fleet
    python build_ahead.py                           every graph is in the cache

This program is an ordinary one, and uses the GPU if there is one. All machines need the same Python, torch, Triton and
fxpool; for graphs on the CPU also the same compiler and kind of processor.
"""

from __future__ import annotations

import torch

import fxpool


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(64, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 64)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.nn.functional.gelu(self.first(data)))).softmax(-1)


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, data = Model().to(device), torch.randn(128, 64).to(device)
    value = torch.compile(model, backend="fxpool")(data).square().mean()
    value.backward()
    torch.testing.assert_close(value, model(data).square().mean(), rtol=1e-3, atol=1e-4)
    stats = fxpool.stats()
    print(f"hits: {stats['hits']}, compiled: {stats['compiles']['worker']}, recorded: {stats['captures']['recorded']}")


if __name__ == "__main__":
    main()
