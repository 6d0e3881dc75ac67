"""A process that compiles one small graph and prints the result, what fxpool counted and what its key holds, as JSON.

edited_child.py [PLACE]     PLACE is put in front of the path, before torch is imported
"""

from __future__ import annotations

import json
import sys

sys.path[:0] = sys.argv[1:]

import torch  # noqa: E402

import fxpool  # noqa: E402
from fxpool.codecache.key import system_facts  # noqa: E402


def rounded(x: torch.Tensor) -> torch.Tensor:
    return torch.round(x, decimals=1) * 2


if __name__ == "__main__":
    result = torch.compile(rounded, backend="fxpool")(torch.tensor([0.123, 0.456]))
    counted = fxpool.stats()
    report = {
        "result": [round(value, 4) for value in result.tolist()],
        "hits": counted["hits"],
        "misses": counted["misses"],
        "fallbacks": counted["fallbacks"],
        "torch": torch.__file__,
        "content": system_facts.system_facts()["torch_content"],
        "compiler": "torch._inductor.compile_fx" in sys.modules,
    }
    fxpool.close()
    print(json.dumps(report))
