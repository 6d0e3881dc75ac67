"""The hunt of `frame_hunt` for torch's own packages of frames, which a switch of Dynamo keeps and serves.

    torchs_switch.py FOLDER CASES SEED

prints the outcomes of the same programs as `frame_hunt.py` with that number and seed, and the wrong results among
10,000 changes. As there, graphs run as Dynamo captured them. A frame counts as served if Dynamo captured no graph.
"""

from __future__ import annotations

import collections
import functools
import json
import pickle
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from frame_changes import in_child, is_same, outcome, program, warm_up
from frame_hunt import case
from frame_programs import Together
from torch._dynamo.package import DynamoCache
from torch._dynamo.precompile_context import BackendCacheArtifact, PrecompileContext


class Captured(BackendCacheArtifact[Any]):
    """A graph as Dynamo captured it."""

    def after_deserialization(self) -> Any:
        return torch._dynamo.disable(pickle.loads(self.content).forward)


def as_captured(gm: torch.fx.GraphModule, inputs: object) -> Any:
    name = getattr(gm, "_backend_id", None)
    if name is not None:
        PrecompileContext.record_artifact(Captured(name, pickle.dumps(gm)))
    return gm.forward


def run(together: Together, folder: Path, *, changed: bool) -> dict[str, Any]:
    """Run a program with torch's switch; keep what Dynamo makes unless it is changed."""
    torch._dynamo.config.caching_precompile = True
    type(DynamoCache).path_prefix = lambda self: str(folder / "kept")
    with program(together, folder, changed=changed) as (function, inputs, want):
        torch._dynamo.utils.counters.clear()  # those of the process that this one was forked from
        got = outcome(torch.compile(function, backend=as_captured, dynamic=False), inputs)
    captured = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
    if not changed:
        PrecompileContext.save_to_dynamo_cache()
    return {"outcome": "traced" if captured else "served", "same": is_same(want, got), "said": []}


def verdict(first: dict[str, Any], changed: dict[str, Any]) -> str:
    """Return what came of a case in a word."""
    if first["outcome"] != "traced" or not first["same"]:
        return "not kept"
    if changed["outcome"] != "served":
        return str(changed["outcome"]).partition(" ")[0]
    return "served" if changed["same"] else "WRONG"


def main(folder: Path, cases: int, seed: int) -> None:
    """Print the numbers of all outcomes."""
    warm_up()
    chance = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    for number in range(cases):
        _, together = case(chance)
        place = folder / str(number)
        (place / "program").mkdir(parents=True)
        in_this = functools.partial(run, together, place)
        first = in_child(in_this, changed=False)
        counts[verdict(first, in_child(in_this, changed=True) if first["outcome"] == "traced" else first)] += 1
        shutil.rmtree(place)
    tried = cases - counts["not kept"]
    print(
        json.dumps(
            {"cases": cases, "seed": seed, "outcomes": counts, "wrong per 10,000": round(counts["WRONG"] / tried * 1e4)}
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
