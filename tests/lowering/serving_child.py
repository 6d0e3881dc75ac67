"""A process of an inference engine: serves the toy model of `serving_pieces` under fxpool; prints a line of JSON.

    serving_child.py '{"rank": 0, "of": 4, "directory": "/d", "format": "binary", "noted": "/d/noted"}'

It calls the plugin as vLLM does, waits for the other ranks, and has its files in its rank's directory.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from fxpool.bench.witness import counting
from fxpool.lowering.inductor import engine_plugin


def main(order: dict[str, Any]) -> None:
    lowerings = counting()
    directory = Path(order["directory"])
    own = directory / f"rank{order['rank']}"
    own.mkdir(exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(own / f"inductor{order['start']}")
    warnings.simplefilter("ignore")
    engine_plugin.install()
    import torch

    engine_plugin.install()  # vLLM may call it again

    from serving_pieces import ROWS, WIDTH, Piecewise, Toy

    import fxpool

    backend = Piecewise(own / "pieces", order)
    model = Toy().eval()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    (directory / f"ready{order['start']}.{order['rank']}").touch()
    while len([*directory.glob(f"ready{order['start']}.*")]) < order["of"]:
        time.sleep(0.01)
    right = []
    with torch.inference_mode():
        for rows in (5, ROWS, 11):
            x = torch.randn(rows, WIDTH)
            torch._dynamo.mark_dynamic(x, 0)
            found, expected = compiled(x), model(x)
            right.append(bool(torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))))
    report = {"right": right, "lowerings": lowerings.count, "log": backend.log, "stats": fxpool.stats()}
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
