"""A graph whose kernels take a while, a job that keeps a slot, and processes that compile the same graph at once.

python -m crash_jobs 4       forks so many, which all compile it; a line of JSON from each that lives to the end
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import time

import torch

__all__ = ["graph", "inputs", "wait"]

SHAPES = ((33, 65), (17, 130), (9, 257))


def graph(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Kernels that can't be fused: of other shapes, each with reductions of its own."""
    found = []
    for x in tensors:
        y = torch.nn.functional.gelu(x).softmax(-1)
        found += [torch.nn.functional.layer_norm(y.sin(), y.shape[-1:]), (y.cumsum(0).cos() * x).std(0)]
    return tuple(found)


def inputs() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(*shape, generator=generator) for shape in SHAPES]


def wait(data: bytes) -> bytes:
    """Job: be there until the file `data` is."""
    path = pathlib.Path(data.decode())
    while not path.exists():
        time.sleep(0.01)
    return b""


def _compile() -> None:
    import fxpool

    found = torch.compile(graph, backend="fxpool")(*inputs())
    torch.testing.assert_close(found, graph(*inputs()))
    stats = fxpool.stats()
    report = {
        "pid": os.getpid(),
        "compiles": stats["compiles"],
        "eager_calls": stats["eager_calls"],
        "how": [one["outcome"] for one in stats["graphs"]],
    }
    # In one piece: four processes write into one file, and under PYTHONUNBUFFERED `print` writes text and end apart.
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    fxpool.close()


def _main(processes: int) -> None:

    import fxpool  # noqa: F401  (once, before they part)

    pids = []
    for _ in range(processes):
        pids.append(os.fork())
        if not pids[-1]:
            code = 1
            try:
                _compile()
                code = 0
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
