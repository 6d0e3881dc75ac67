"""Processes that the benchmarks need beside `fxpool.bench.demo.child`; each prints one line of JSON.

python bench/child.py prime --backend B                 compile a trivial graph: leaves what is known about
                                                        processor and compiler in the cache directories
python bench/child.py steady --what mlp --backend B     seconds per call once compiled
python bench/child.py inside --backend B                seconds in the backend, Dynamo's tracing left out
python bench/child.py served --what train --backend B   seconds of the first call; a server is running
python bench/child.py edited --what infer --backend B   the same for another head, after the model itself was compiled
python bench/child.py hit --backend fxpool              seconds from a graph of 600 nodes to its entry
python bench/child.py ready --backend fxpool            a graph as first compile after warming up, over it as second
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from fxpool.bench.demo.child import SIZES, LoweringCounter, build, measure
from fxpool.pool import JobSpec

WARM_UP = 20  # calls; guards, allocator and threads have settled by then
QUIET_SECONDS, WARM_SECONDS = 0.5, 120.0  # in which a warm zygote uses no processor time; within which it is warm
TOTAL_SECONDS, PRECISION = 4.0, 1e-3


def steady(what: str, backend: str, size: str) -> dict[str, Any]:
    counter = LoweringCounter()
    counter.install()
    import torch

    torch.manual_seed(0)
    if what == "gpt2":
        model: Any = build("gpt2", size).eval()
        inputs = torch.randint(0, 1000, (2, 64))
    else:
        # Every layer is a few microseconds of work, so that what surrounds the kernels shows.
        layers = [
            torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64), torch.nn.GELU()) for _ in range(16)
        ]
        model = torch.nn.Sequential(*layers).eval()
        inputs = torch.randn(8, 64)
    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        first, reference = compiled(inputs), model(inputs)
        lowered = counter.count
        if what == "gpt2":
            first, reference = first.logits, reference.logits
        difference = float((first - reference).abs().max())
        seconds = per_call(lambda: compiled(inputs))
    stats = None
    if backend == "fxpool":
        import fxpool

        stats = fxpool.stats()
    return {"call_seconds": seconds, "difference": difference, "graph_lowerings": lowered, "stats": stats}


def per_call(call: Callable[[], object]) -> float:
    """Return the median seconds of one call, while nothing else of fxpool's runs on this host."""
    import fxpool

    return fxpool.measure(call, seconds=TOTAL_SECONDS, precision=PRECISION, warm_up=WARM_UP).median


def inside(backend: str, size: str) -> dict[str, Any]:
    import torch

    torch.manual_seed(0)
    model = build("gpt2", size).eval()
    spent: list[float] = []

    def timed(gm: Any, inputs: Any) -> Any:
        start = time.perf_counter()
        compiled = torch._dynamo.lookup_backend(backend)(gm, inputs)
        spent.append(time.perf_counter() - start)
        return compiled

    with torch.no_grad():
        torch.compile(model, backend=timed)(torch.randint(0, 1000, (2, 64)))
    return {"backend_seconds": sum(spent), "graphs": len(spent)} | _witness(backend)


def _witness(backend: str) -> dict[str, Any]:
    if backend != "fxpool":
        return {}
    import fxpool

    return {"stats": fxpool.stats()}


def served(what: str, backend: str, size: str) -> dict[str, Any]:
    if backend == "fxpool":
        wait_for_server()
    return measure("gpt2", what, backend, size)


def edited(what: str, backend: str, size: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "served", "--what", what, "--backend", backend, "--size", size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if backend == "fxpool":
        wait_for_server()
    return measure("gpt2", what, backend, size, edit=_cap_logits)


def _cap_logits(model: Any) -> None:
    """Limit the logits of a language model to 30 on each side."""
    import torch

    class Capped(torch.nn.Module):
        def __init__(self, head: Any) -> None:
            super().__init__()
            self.head = head

        def forward(self, hidden: Any) -> Any:
            return torch.tanh(self.head(hidden) / 30) * 30

    model.lm_head = Capped(model.lm_head)


def wait_for_server() -> None:
    """Return when this host's server runs and its zygote is warm."""
    from fxpool.lowering.core.runtime import runtime

    pool = runtime.pool()
    pool.start(wait=True)
    pool.submit("builtins:bytes", b"", JobSpec(label="nothing")).result()
    zygote = psutil.Process(pool.status()["zygote"]["pid"])
    # It warms up step by step whenever it is idle, and then uses no more processor time.
    used, until = -1.0, time.monotonic() + WARM_SECONDS
    while (now := sum(zygote.cpu_times()[:2])) > used + 0.02 and time.monotonic() < until:
        used = now
        time.sleep(QUIET_SECONDS)


def hit() -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from fxpool.lowering.artifact import lookup
    from fxpool.lowering.core.attempt import Destination
    from fxpool.lowering.core.runtime import runtime
    from fxpool.lowering.request import capture

    report: dict[str, Any] = {}

    def backend(gm: Any, inputs: Any) -> Any:
        def once() -> Any:
            store = runtime.store()
            assert store is not None
            into = Destination(store=store.root, toolchain_dir=runtime.toolchain_directory(store))
            captured = capture.capture(gm, inputs, label="graph", into=into)
            assert lookup.serve(captured, runtime.stores(), load), "a miss, of which a record is kept"
            return captured

        def load(parts: Any) -> bool:
            seen.append(parts)
            return True

        seen: list[Any] = []
        held = once()  # Dynamo holds the fake tensors of a graph's inputs for as long as its backend runs
        report["hit_seconds"] = _median(once)
        assert len(seen) == ROUNDS + 1, "the graph is not in the cache"

        def key_alone() -> None:
            assert capture.capture(gm, inputs, label="graph", into=Destination()).key is not None

        report["key_seconds"] = _median(key_alone)
        report["nodes"] = len(gm.graph.nodes)
        del held
        return gm.forward

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, use_cache=False,
    )  # fmt: skip
    model, tokens = LlamaForCausalLM(config).eval(), torch.randint(0, 256, (2, 16))
    with torch.no_grad():
        torch.compile(model, backend="fxpool")(input_ids=tokens)
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(input_ids=tokens)
    return report | _witness("fxpool")


ROUNDS = 21


def _median(call: Callable[[], object]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        rounds.append(time.perf_counter() - start)
    return statistics.median(rounds)


def ready(size: str) -> dict[str, Any]:
    """A graph's compile as the first of a process that warmed up, over the same when another model's came before.

    Each in a fork, as the zygote's workers are: what they share is what was there before.
    """
    import gc
    import importlib

    importlib.import_module("fxpool.lowering.worker.jobs").import_compiler()
    importlib.import_module("fxpool.lowering.worker.warmup").warm_up()
    importlib.import_module("transformers.models.gpt2.modeling_gpt2")
    importlib.import_module("transformers.models.bert.modeling_bert")
    gc.collect()
    gc.freeze()
    orders = {name: _in_a_fork(partial(_compiles, names, size)) for name, names in ORDERS.items()}
    return {"first_over_second": orders["first"]["seconds"] / orders["second"]["seconds"]} | orders["first"] | orders


ORDERS = {"first": ["gpt2"], "second": ["bert", "gpt2"]}


def _compiles(names: list[str], size: str) -> dict[str, Any]:
    import torch

    import fxpool

    for name in names:
        torch.manual_seed(0)
        model, tokens = build(name, size).eval(), torch.randint(0, 1000, (2, 64))
        torch._dynamo.reset()
        with torch.no_grad():
            torch.compile(model, backend="fxpool", options={"mode": "serialize"})(tokens)
    stats = fxpool.stats()
    return {"seconds": stats["graphs"][-1]["seconds"]["compile"], "stats": stats}


def _in_a_fork(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    from fxpool.lowering.core.runtime import runtime

    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with os.fdopen(theirs, "w") as pipe:
                json.dump(measure(), pipe, default=str)
        finally:
            os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        report: dict[str, Any] = json.load(pipe)
    os.waitpid(pid, 0)
    store = runtime.store()
    assert store is not None
    store.clear()
    return report


def prime(backend: str) -> dict[str, Any]:
    import torch

    # Elementwise and long enough to be vectorised: that is what asks for the processor's instruction sets.
    with torch.no_grad():
        torch.compile(lambda x: torch.sin(x) + 1, backend=backend)(torch.randn(4096))
    if backend == "fxpool":  # which precompiles the header when the graph is there already
        headers = Path(os.environ["FXPOOL_CACHE_DIR"]) / "toolchain" / "headers"
        end = time.monotonic() + 120
        while not list(headers.glob("*.json")) and time.monotonic() < end:
            time.sleep(0.1)
        # A known host is one where no graph is.
        from fxpool.codecache.store.store import LocalStore

        LocalStore(os.environ["FXPOOL_CACHE_DIR"]).clear()
    return {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prime", "steady", "inside", "served", "edited", "hit", "ready"):
        command = commands.add_parser(name)
        command.add_argument("--backend", required=True)
        if name in ("steady", "served", "edited"):
            whats = ("mlp", "gpt2") if name == "steady" else ("infer", "train")
            command.add_argument("--what", choices=whats, required=True)
        if name not in ("prime", "hit"):
            command.add_argument("--size", choices=SIZES, default="full")
    chosen = parser.parse_args()
    results: dict[str, Callable[[], dict[str, Any]]] = {
        "prime": lambda: prime(chosen.backend),
        "steady": lambda: steady(chosen.what, chosen.backend, chosen.size),
        "inside": lambda: inside(chosen.backend, chosen.size),
        "served": lambda: served(chosen.what, chosen.backend, chosen.size),
        "edited": lambda: edited(chosen.what, chosen.backend, chosen.size),
        "hit": hit,
        "ready": lambda: ready(chosen.size),
    }
    print(json.dumps(results[chosen.command](), default=str), flush=True)


if __name__ == "__main__":
    main()
