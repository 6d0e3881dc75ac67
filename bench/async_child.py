"""What the benchmarks measure of compiling in the background; each command prints one line of JSON.

python bench/async_child.py first --what train --backend B   seconds of the first call (fxpool: mode async+subprocess)
python bench/async_child.py use --backend fxpool             seconds until a call has run compiled code, a server
                                                             running; with --backend fxpool-waiting of the first call
                                                             that waits for its worker
python bench/async_child.py graphs --backend B               seconds until sixteen graphs of one call are compiled and
                                                             one call has used them all
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import time
from typing import Any

from fxpool.bench.demo.child import SIZES, LoweringCounter, build, call
from fxpool.pool import JobSpec

GRAPHS = 16
LIMIT_SECONDS = 600.0
VARIABLE, MODE = "TORCHINDUCTOR_FX_COMPILE_MODE", "async+subprocess"


def compiled(function: Any, backend: str) -> Any:
    import torch

    if backend == "fxpool":
        os.environ[VARIABLE] = MODE  # known before the first graph, as to a program that is started with it
    return torch.compile(function, backend=backend.removesuffix("-waiting"))


def first(what: str, backend: str, size: str) -> dict[str, Any]:
    counter = LoweringCounter()
    counter.install()
    import torch

    torch.manual_seed(0)
    model = build("gpt2", size).train(what == "train")
    tokens = torch.randint(0, 1000, (2, 64))
    reference = copy.deepcopy(model)
    start = time.perf_counter()
    result = call(compiled(model, backend), tokens, what)
    seconds = time.perf_counter() - start
    facts = _facts(backend, counter.count)
    return {"first_call_seconds": seconds, "difference": _apart(result, call(reference, tokens, what))} | facts


def use(backend: str, size: str) -> dict[str, Any]:
    counter = LoweringCounter()
    counter.install()
    import torch

    import fxpool
    from fxpool.lowering.core.runtime import runtime

    pool = runtime.pool()
    pool.start(wait=True)
    time.sleep(0.5)  # it begins to warm up when nobody asks for anything
    pool.submit("builtins:bytes", b"", JobSpec(label="nothing")).result()  # and answers when it has
    torch.manual_seed(0)
    model = build("gpt2", size).eval()
    tokens = torch.randint(0, 1000, (2, 64))
    expected = call(model, tokens, "infer")
    start = time.perf_counter()
    run = compiled(model, backend)
    result = call(run, tokens, "infer")
    if backend == "fxpool":
        # Calls meanwhile would take the cores from the compile: here they are left to it, as by a program that waits.
        fxpool.wait(LIMIT_SECONDS)
        result = call(run, tokens, "infer")
        if not all(one["compiled_calls"] for one in fxpool.wait(0)):
            raise RuntimeError(f"not in use: {fxpool.wait(0)}")
    seconds = time.perf_counter() - start
    return {"use_seconds": seconds, "difference": _apart(result, expected)} | _facts("fxpool", counter.count)


def graphs(backend: str) -> dict[str, Any]:
    counter = LoweringCounter()
    counter.install()
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
        run = compiled(model, backend)
        result = run(x)
        if backend == "fxpool":
            import fxpool

            fxpool.wait(LIMIT_SECONDS)
        result = run(x)
        seconds = time.perf_counter() - start
    facts = _facts(backend, counter.count)
    if backend == "fxpool":
        background = facts["stats"]["background"]
        if [one["compiled_calls"] for one in background] != [1] * GRAPHS:
            raise RuntimeError(f"not {GRAPHS} graphs in use: {background}")
    return {"graphs_seconds": seconds, "difference": _apart(result, expected)} | facts


def _apart(result: Any, expected: Any) -> float:
    return float((result - expected).abs().max())


def _facts(backend: str, lowered: int) -> dict[str, Any]:
    if backend != "fxpool":
        return {"graph_lowerings": lowered, "stats": None}
    import fxpool

    return {"graph_lowerings": lowered, "stats": fxpool.stats()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("first", "use", "graphs"):
        command = commands.add_parser(name)
        command.add_argument("--backend", required=True)
        if name == "first":
            command.add_argument("--what", choices=("infer", "train"), required=True)
        if name != "graphs":
            command.add_argument("--size", choices=SIZES, default="full")
    chosen = parser.parse_args()
    result = {
        "first": lambda: first(chosen.what, chosen.backend, chosen.size),
        "use": lambda: use(chosen.backend, chosen.size),
        "graphs": lambda: graphs(chosen.backend),
    }[chosen.command]()
    print(json.dumps(result, default=str), flush=True)


if __name__ == "__main__":
    main()
