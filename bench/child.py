"""Processes of the benchmarks that compile; each command prints one line of JSON.

python bench/child.py prime --backend B                 compile a trivial graph: leaves what is known about
                                                        processor and compiler in the cache directories
python bench/child.py first --what train --backend B    seconds of the first call of GPT-2; with --background
                                                        fxpool compiles in the background
python bench/child.py served --what train --backend B   the same; a server is running
python bench/child.py edited --what infer --backend B   the same for another head, after the model itself was compiled
python bench/child.py steady --what mlp --backend B     seconds per call once compiled
python bench/child.py inside --backend B                seconds in the backend, Dynamo's tracing left out
python bench/child.py hit --backend fxpool              seconds from a graph of 600 nodes to its entry
python bench/child.py ready --backend fxpool            a graph as first compile after warming up, over it as second
python bench/child.py use --backend fxpool              seconds until a call has run code compiled in the background, a
                                                        server running; with --backend fxpool-waiting of the first call
                                                        that waits for its worker
python bench/child.py graphs --backend B                seconds until sixteen graphs of one call are compiled in the
                                                        background and one call has used them all
python bench/child.py small --operator none --backend B graphs of torch's operators alone, one after another; with
                                                        --operator slow of an operator from a module that takes 4 s to
                                                        import (--backend fxpool-quick: from one that takes none); with
                                                        --served a server is running
python bench/child.py custom --operator proven --backend B   a training step of blocks with a custom operator, whose
                                                        backward is proven (AOTAutograd is skipped, or runs in a
                                                        worker) or listed (it runs in this process)
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from commands import run
from models import Size, Step, build, call, compiled, facts, first_call

from fxpool.bench.witness import counting

WARM_UP = 20  # calls; guards, allocator and threads have settled by then
QUIET_SECONDS, WARM_SECONDS = 0.5, 120.0  # in which a warm zygote uses no processor time; within which it is warm
TOTAL_SECONDS, PRECISION = 4.0, 1e-3
LIMIT_SECONDS = 600.0
GRAPHS, SMALL_GRAPHS, ROUNDS = 16, 8, 21


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


def first(what: Step, backend: str, size: Size, background: bool = False) -> dict[str, Any]:
    return first_call("gpt2", what, backend, size, background=background)


def served(what: Step, backend: str, size: Size) -> dict[str, Any]:
    if backend == "fxpool":
        wait_for_server()
    return first_call("gpt2", what, backend, size)


def edited(what: Step, backend: str, size: Size) -> dict[str, Any]:
    command = [sys.executable, __file__, "served", "--what", what, "--backend", backend, "--size", size]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    if backend == "fxpool":
        wait_for_server()
    return first_call("gpt2", what, backend, size, edit=_cap_logits)


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


def started_pool() -> Any:
    """Return this process's pool when its zygote answers, as it does after its warm-up in idle time."""
    from fxpool.lowering.core.runtime import runtime
    from fxpool.pool import JobSpec

    pool = runtime.pool()
    pool.start(wait=True)
    time.sleep(0.5)  # it begins to warm up when there is nothing else to do
    pool.submit("builtins:bytes", b"", JobSpec(label="nothing")).result()
    return pool


def wait_for_server() -> None:
    """Return when this host's server runs and its zygote is warm."""
    import psutil

    pool = started_pool()
    zygote = psutil.Process(pool.status()["zygote"]["pid"])
    # It warms up step by step whenever it is idle, and then uses no more processor time.
    used, until = -1.0, time.monotonic() + WARM_SECONDS
    while (now := sum(zygote.cpu_times()[:2])) > used + 0.02 and time.monotonic() < until:
        used = now
        time.sleep(QUIET_SECONDS)


def steady(what: Literal["mlp", "gpt2"], backend: str, size: Size) -> dict[str, Any]:
    """Measure calls of a compiled function, while nothing else of fxpool's runs on this host."""
    counter = counting()
    import torch

    import fxpool

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
    function = torch.compile(model, backend=backend)
    with torch.no_grad():
        first, reference = function(inputs), model(inputs)
        lowered = counter.count
        if what == "gpt2":
            first, reference = first.logits, reference.logits
        call = partial(function, inputs)
        seconds = fxpool.measure(call, seconds=TOTAL_SECONDS, precision=PRECISION, warm_up=WARM_UP).median
    return {"call_seconds": seconds, "difference": _apart(first, reference)} | facts(backend, lowered)


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
    return {"backend_seconds": sum(spent), "graphs": len(spent)} | _stats(backend)


def _stats(backend: str) -> dict[str, Any]:
    return {"stats": facts(backend, 0)["stats"]} if backend == "fxpool" else {}


def hit() -> dict[str, Any]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from fxpool.lowering.artifact import entry_parts, lookup
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
            entry, store = next(lookup.Search(captured, runtime.stores()).candidates())
            assert store.complete(entry)
            seen.append(entry_parts.parts_of_entry(entry, store))
            lookup.count_hit(captured, entry, store)
            return captured

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
    return report | _stats("fxpool")


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


def use(backend: str, size: str) -> dict[str, Any]:
    counter = counting()
    import torch

    import fxpool

    started_pool()
    torch.manual_seed(0)
    model = build("gpt2", size).eval()
    tokens = torch.randint(0, 1000, (2, 64))
    expected = call(model, tokens, "infer")
    start = time.perf_counter()
    function = compiled(model, backend)
    result = call(function, tokens, "infer")
    if backend == "fxpool":
        # Calls during the compile would take cores from it. None are made, as in a program that waits.
        fxpool.wait(LIMIT_SECONDS)
        result = call(function, tokens, "infer")
        if not all(one["compiled_calls"] for one in fxpool.wait(0)):
            raise RuntimeError(f"not in use: {fxpool.wait(0)}")
    seconds = time.perf_counter() - start
    return {"use_seconds": seconds, "difference": _apart(result, expected)} | facts("fxpool", counter.count)


def graphs(backend: str) -> dict[str, Any]:
    counter = counting()
    import torch

    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(
            torch.nn.LayerNorm(64), torch.nn.Linear(64, width), torch.nn.GELU(), torch.nn.Linear(width, 64)
        ).eval()
        for width in range(64, 64 + 16 * GRAPHS, 16)
    ]
    space: dict[str, Any] = {"torch": torch, "blocks": blocks}
    lines = [
        f"    x = x + blocks[{number}](x).softmax(-1)\n    torch._dynamo.graph_break()\n" for number in range(GRAPHS)
    ]
    exec("def model(x):\n" + "".join(lines) + "    return x\n", space)
    model, x = space["model"], torch.randn(32, 64)
    with torch.no_grad():
        expected = model(x)
        start = time.perf_counter()
        function = compiled(model, backend)
        result = function(x)
        if backend == "fxpool":
            import fxpool

            fxpool.wait(LIMIT_SECONDS)
        result = function(x)
        seconds = time.perf_counter() - start
    report = facts(backend, counter.count)
    if backend == "fxpool":
        background = report["stats"]["background"]
        if [one["compiled_calls"] for one in background] != [1] * GRAPHS:
            raise RuntimeError(f"not {GRAPHS} graphs in use: {background}")
    return {"graphs_seconds": seconds, "difference": _apart(result, expected)} | report


def _apart(result: Any, expected: Any) -> float:
    return float((result - expected).abs().max())


def small(backend: str, operator: Literal["none", "slow"], served: bool = False) -> dict[str, Any]:
    """Return the median seconds of the first calls of all graphs but the first, with torch imported."""
    counter = counting()
    import torch

    scaled = _operator(operator, quick=backend.endswith("-quick"))
    backend = backend.removesuffix("-quick")
    if served and backend == "fxpool":
        wait_for_server()
    torch.manual_seed(0)
    seconds: list[float] = []
    difference = 0.0
    for number in range(SMALL_GRAPHS):

        def function(x: torch.Tensor, weight: torch.Tensor, number: int = number) -> torch.Tensor:
            hidden = scaled(torch.nn.functional.gelu(x @ weight), 0.5) + number
            return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:]).softmax(-1).sum(0)

        width = 32 + 8 * number
        inputs = torch.randn(16, width), torch.randn(width, width)
        torch._dynamo.reset()
        start = time.perf_counter()
        result = torch.compile(function, backend=backend)(*inputs)
        seconds.append(time.perf_counter() - start)
        difference = max(difference, float((result - function(*inputs)).abs().max()))
    return {
        "graph_seconds": statistics.median(seconds[1:]),
        "seconds": seconds,
        "difference": difference,
        **facts(backend, counter.count),
    }


def _operator(name: str, *, quick: bool) -> Callable[[Any, float], Any]:
    if name == "none":
        return lambda x, factor: x * factor
    if quick:
        from scaled_ops import OPERATORS
    else:
        from slow_ops import OPERATORS
    operator: Callable[[Any, float], Any] = OPERATORS["proven"]
    return operator


def custom(backend: str, operator: Literal["proven", "listed"]) -> dict[str, Any]:
    """Return the seconds from `torch.compile` to the end of the first backward, with torch imported."""
    counter = counting()
    import torch
    from scaled_ops import OPERATORS

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled: torch.Tensor = OPERATORS[operator](torch.nn.functional.gelu(self.linear(x)), 0.5)
            return x + self.norm(scaled)

    torch.manual_seed(0)
    model, x = torch.nn.Sequential(*(Block() for _ in range(6))), torch.randn(8, 64)
    start = time.perf_counter()
    compiled = torch.compile(model, backend=backend)
    compiled(x).square().mean().backward()
    seconds = time.perf_counter() - start
    lowered, ours = counter.count, [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x).square().mean().backward()
    theirs = [parameter.grad for parameter in model.parameters()]
    difference = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return {"first_call_seconds": seconds, "difference": difference} | facts(backend, lowered)


if __name__ == "__main__":
    run(prime, first, served, edited, steady, inside, hit, ready, use, graphs, small, custom)
