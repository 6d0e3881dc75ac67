"""One process of a sweep: attempts items under one back end, and writes a record of each to a file.

    python -m campaigns.conformance.child '{"sweep": "programs", "backend": "fxpool", "keys": [...], "out": "...", ...}'

Which item is under way stands in ``<out>.begun``. An item that hangs ends the process.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from fxpool.bench.witness import LoweringCounter, since

from .record import ERROR, Record, append, short

MODULES = {"programs": ".program_sweep", "operators": ".operator_sweep", "families": ".family_sweep"}


def main() -> None:
    """Run what the one argument asks for."""
    asked = json.loads(sys.argv[1])
    warnings.simplefilter("ignore")
    import torch
    import torch._dynamo  # everything of torch's comes after the warnings are off

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    lowerings = LoweringCounter()
    lowerings.install()
    sweep = importlib.import_module(MODULES[asked["sweep"]], __package__)
    out, begun, backend = Path(asked["out"]), Path(asked["out"] + ".begun"), asked["backend"]
    for key in asked["keys"]:
        begun.write_text(key)
        # Seen to by a thread that does not need the interpreter: what is stuck is often C++.
        faulthandler.dump_traceback_later(asked["limit"], exit=True)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        before, start = _counts(lowerings, backend), time.perf_counter()
        try:
            status, detail = sweep.attempt(key, backend, asked["seed"])
        except Exception as error:  # of the sweep itself, as it catches those of its items
            status, detail = ERROR, f"the sweep: {short(error)}"
        seconds = time.perf_counter() - start
        seen = since(before, _counts(lowerings, backend))
        compiles = seen.get("compiles", {})
        record = Record(
            key=key, status=status, detail=detail, lowerings=seen.get("lowerings", 0),
            graphs=torch._dynamo.utils.counters["stats"].get("unique_graphs", 0), hits=seen.get("hits", 0),
            in_worker=compiles.get("worker", 0), in_process=compiles.get("in_process", 0),
            fallbacks=seen.get("fallbacks", {}), bypasses=seen.get("bypasses", {}), seconds=round(seconds, 2),
        )  # fmt: skip
        append(out, [record])
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"done": len(asked["keys"])}))


def _counts(lowerings: LoweringCounter, backend: str) -> dict[str, Any]:
    """Return the counts of this process until now."""
    found: dict[str, Any] = {"lowerings": lowerings.count}
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
        found |= {name: stats[name] for name in ("hits", "compiles", "fallbacks", "bypasses")}
    return found


if __name__ == "__main__":
    main()
