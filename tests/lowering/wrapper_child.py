"""A process that compiles a small graph with the C++ compiler that its environment names; prints what came of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch

import fxpool


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * 3.0


if __name__ == "__main__":
    result = torch.compile(scaled, backend="fxpool")(torch.ones(2))
    counted: Mapping[str, Any] = fxpool.stats()
    fxpool.close()
    names = ("hits", "misses", "fallbacks", "bypasses", "switched_off", "entries_written")
    found = {name: counted[name] for name in names}
    print(json.dumps({"result": result.tolist(), **found}))
