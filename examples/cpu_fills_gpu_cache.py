"""Compile for GPUs on a machine that has none, and hand the cache to the machines that do.

    fxpool device --json > facts.json                                        on one machine with the GPU
    python cpu_fills_gpu_cache.py fill --facts facts.json --cache DIR        on any machine without one
    FXPOOL_CACHE_BASE=DIR python cpu_fills_gpu_cache.py use                  on every machine with such a GPU

All machines need the same Python, torch (a CUDA build), Triton and fxpool: otherwise the keys differ, and `use`
compiles the graph again. On the GPU machines, DIR must belong to root or to the user, and be writable by no other user.

`fill` traces the model on the CPU, moves the captured graph to "cuda:0" and compiles it from the facts. There is no
public call for this yet, so `fill` uses internal modules of fxpool, which may change in any release.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from typing import Any

import torch


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(64, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 64)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.nn.functional.gelu(self.first(data)))).softmax(-1)


def model_and_data(device: str) -> tuple[Model, torch.Tensor]:
    """Create both on the CPU and move them to `device`, so that `fill` and `use` have the same graph."""
    torch.manual_seed(0)
    return Model().to(device), torch.randn(128, 64).to(device)


# ------------------------------------------------------------------------------ on a machine with the GPU


def use() -> None:
    """Run an ordinary program; FXPOOL_CACHE_BASE names the cache that `fill` has filled."""
    import fxpool

    if not torch.cuda.is_available():
        sys.exit("use: torch sees no GPU here")
    model, data = model_and_data("cuda")
    value = torch.compile(model, backend="fxpool")(data).square().mean()
    value.backward()
    torch.testing.assert_close(value, model(data).square().mean(), rtol=1e-3, atol=1e-4)
    stats = fxpool.stats()
    print(json.dumps({name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks")}))


# ------------------------------------------------------------------------------ on a machine without a GPU


def fill(facts_path: str, cache: str) -> None:
    import msgspec

    import fxpool
    from fxpool.codecache.key.key import GraphKey, canonical
    from fxpool.lowering.artifact.entry_parts import decode_reply
    from fxpool.lowering.core.attempt import Destination
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.fallback.remote import spec_of
    from fxpool.lowering.request import capture
    from fxpool.lowering.request.compile_request import COMPILE_JOB
    from fxpool.lowering.request.placement import Placement
    from fxpool.torch_compat.cuda.device_facts import DeviceFacts

    with open(facts_path) as file:
        facts = msgspec.convert(json.loads(file.readline()), DeviceFacts, strict=False)
    fxpool.configure(cache_dir=cache)
    store = runtime.store()
    if store is None:
        sys.exit(f"fill: cannot use {cache} as a cache directory")
    into = Destination(store=store.root, toolchain_dir=runtime.toolchain_directory(store))

    # The parts of the key, as data: the key is computed again for the GPU.
    parts: dict[str, Any] = {}
    original = capture.key_parts
    capture.key_parts = lambda *arguments: parts.update(original(*arguments)) or dict(parts)
    graphs: list[Any] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(capture.capture(module, inputs, label="graph", into=into))
        return module.forward

    model, data = model_and_data("cpu")
    torch.compile(model, backend=backend)(data)
    capture.key_parts = original
    (captured,) = graphs
    captured.complete()
    request = captured.request

    graph, inputs = (
        msgspec.msgpack.encode(on_gpu(msgspec.msgpack.decode(data))) for data in (request.graph, request.inputs)
    )
    placement = Placement((0,), (facts,))
    parts["graph"] = canonical([request.level, graph])
    parts["inputs"] = canonical([inputs, *msgspec.msgpack.decode(parts["inputs"])[1:]])
    parts["system"] = {**parts["system"], **placement.key_part()}
    request = dataclasses.replace(
        request,
        graph=graph,
        inputs=inputs,
        devices=placement.facts,
        key=GraphKey.of(capture.without_host(parts)),
        host_key=GraphKey.of(parts),
    )
    job = runtime.pool().submit(COMPILE_JOB, request.dump(), spec_of(request))
    reply = decode_reply(job.result())
    fxpool.close()
    if reply.reference is None:
        sys.exit(f"fill: the graph was not cached: {reply}")
    print(json.dumps({"key": reply.reference.key, "for": facts.name, "cuda_here": torch.cuda.is_available()}))


def on_gpu(data: Any) -> Any:
    """Return an encoded graph or input, on CUDA device 0 instead of the CPU."""
    if isinstance(data, list):
        if len(data) == 2 and data[0] == "cpu" and data[1] is None:
            return ["cuda", 0]
        if len(data) == 3 and data[:2] == ["device", "cpu"]:
            return ["device", "cuda", 0]
        return [on_gpu(part) for part in data]
    return "cuda" if data == "cpu" else data


def main() -> None:
    parser = argparse.ArgumentParser(description="Fill a cache for GPUs on a machine without a GPU.")
    commands = parser.add_subparsers(dest="command", required=True)
    filling = commands.add_parser("fill", help="compile for the GPU described by the facts")
    filling.add_argument("--facts", required=True, help="file with the output of: fxpool device --json")
    filling.add_argument("--cache", required=True, help="cache directory to fill")
    commands.add_parser("use", help="run the model on a GPU")
    arguments = parser.parse_args()
    if arguments.command == "fill":
        fill(arguments.facts, os.path.abspath(arguments.cache))
    else:
        use()


if __name__ == "__main__":
    main()
