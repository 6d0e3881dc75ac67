"""A program that compiles, hits and trains, then is quiesced and goes on after a pause.

python snapshot_child.py DIRECTORY ROUNDS: after each quiesce it writes ``ready-N`` into the directory and waits for
``go-N``; then it trains, compiles and hits, and writes ``done-N`` with what it counted. Stops before round ROUNDS + 1.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

__all__ = ["Program", "held", "wait_for"]


def held() -> dict[str, Any]:
    """Return what this process has: targets by descriptor, names of tasks and threads, children."""
    descriptors: dict[str, str] = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            descriptors[number] = os.readlink(f"/proc/self/fd/{number}")
        except FileNotFoundError:  # that of the listing itself
            continue
    children = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError):  # it has just ended
            children += Path(f"/proc/self/task/{task}/children").read_text().split()
    return {
        "descriptors": descriptors,
        "tasks": _tasks(),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "children": children,
    }


def _tasks() -> int:
    """Return the number of tasks. One whose Python thread was joined may still be ending."""
    counts = []
    for _ in range(20):
        counts.append(len(os.listdir("/proc/self/task")))
        time.sleep(0.05)
    return min(counts)


class Program:
    """A small model that is trained, and graphs that are compiled and looked up."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.batch = torch.randn(4, 8)

    def step(self, call: Callable[..., Any]) -> float:
        self.optimizer.zero_grad()
        loss = call(self.batch).square().mean()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def compiled(self) -> Callable[..., Any]:
        return torch.compile(self.model, backend="fxpool")

    def adds(self, number: float, **arguments: Any) -> None:
        """Compile a graph with a constant, and check its result."""
        names: dict[str, Any] = {}
        exec(f"def f(x): return (x * 2).sin() + {number}", names)  # new to Dynamo, which looks it up each time
        x = torch.ones(5)
        result = torch.compile(names["f"], backend="fxpool", **arguments)(x)
        assert torch.allclose(result, names["f"](x))


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.02)


def main() -> None:
    directory, rounds = Path(sys.argv[1]), int(sys.argv[2])
    program = Program()
    call = program.compiled()
    program.step(call)
    import fxpool

    program.adds(0.5)
    program.adds(0.5)  # a hit
    for number in range(1, rounds + 1):
        report = fxpool.quiesce()
        before = fxpool.stats()
        _write(directory / f"ready-{number}", report)
        wait_for(directory / f"go-{number}")
        loss = program.step(call)  # loaded before
        program.adds(number)
        program.adds(0.5)
        after = fxpool.stats()
        counted = {
            "loss": loss,
            "hits": after["hits"] - before["hits"],
            "workers": after["compiles"]["worker"] - before["compiles"]["worker"],
            "in_process": after["compiles"]["in_process"],
            "fallbacks": after["fallbacks"],
            "switched_off": after["switched_off"],
        }
        _write(directory / f"done-{number}", counted)


def _write(path: Path, content: Any) -> None:
    path.with_suffix(".new").write_text(json.dumps(content))
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main()
