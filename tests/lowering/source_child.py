"""A process whose graphs call a library of CUDA or ROCm source (`source_jobs`): prints what came of it as JSON.

    source_child.py KIND CACHE OPTIONS GRAPH...      (sin, cos; options of Inductor's as JSON)

Each graph is compiled by a job of its own unless it is kept, and then called as a program would.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from capturing import captured, complete

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_parts import decode_reply
from fxpool.lowering.compiling.remote import spec_of
from fxpool.lowering.core.runtime import runtime


def compiled(kind: str, cache: str, function: Any) -> dict[str, Any]:
    values = torch.linspace(0, 1, 32)
    (only,) = captured(function, values)
    request = complete(only, cache)
    sent = runtime.pool().submit(f"source_jobs:compile_with_{kind}", request.dump(), spec_of(request))
    answer = decode_reply(sent.result())
    assert answer.reference is not None, answer.artifact and answer.artifact.unkept
    torch._dynamo.reset()
    result = torch.compile(function, backend="fxpool")(values)
    assert request.store is not None
    (entry,) = LocalStore(request.store).entries(answer.reference.key)
    return {
        "key": answer.reference.key,
        "blobs": {name: blob.digest for name, blob in entry.blobs.items()},
        "doubled": bool(torch.allclose(result, function(2 * torch.linspace(0, 1, 32)))),
        "hits": fxpool.stats()["hits"],
        "fallbacks": fxpool.stats()["fallbacks"],
    }


def main(kind: str, cache: str, options: str, *graphs: str) -> None:
    with torch._inductor.config.patch(json.loads(options)):
        found = {name: compiled(kind, cache, getattr(torch, name)) for name in graphs}
    fxpool.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
