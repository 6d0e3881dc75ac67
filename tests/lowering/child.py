"""Runs one model under one back end in a process of its own; prints one line of JSON.

    child.py '{"model": "gpt2", "backend": "fxpool", "what": ["infer", "train"], ...}'

What it reports about fxpool does not rest on fxpool's own counters alone: constructions of
Inductor's GraphLowering in this process, child processes, and what a profiler sees are counted here.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from functools import partial

import psutil
import torch
import zoo
from harness.loader import serve

from fxpool.bench.witness import LoweringCounter

lowerings = LoweringCounter()


def compiled_calls(run: Callable[[], list[torch.Tensor]]) -> tuple[list[torch.Tensor], int, list[str]]:
    """(what `run` gives, calls of Inductor's compiled graphs and names of operators that a profiler sees meanwhile)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        found = run()
    names = [event.name for event in profile.events()]
    return found, sum(n.startswith("## Call CompiledFxGraph") for n in names), sorted(set(names))


# A process that is served from the cache needs none of them.
COMPILERS = ("torch._inductor.select_algorithm", "torch._inductor.lowering", "torch._inductor.scheduler",
             "torch._inductor.compile_fx", "torch._inductor.graph", "torch._inductor.async_compile",
             "torch._inductor.ir", "torch._inductor.decomposition", "triton.compiler")  # fmt: skip
# Where Triton is installed, torch's tracing imports its compiler, with or without fxpool.
_OF_TRACING = ("triton.compiler",) if importlib.util.find_spec("triton") is not None else ()
_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")


class Watch:
    """What this process does from now on that only compiling needs, as the interpreter's own audit hooks see it."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.opened: list[str] = []
        self.on = True
        sys.addaudithook(self._event)

    def _event(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.on:
            return
        if event in _STARTS:
            self.started.append(f"{event} {arguments}"[:200])
        elif event == "open" and isinstance(arguments[0], str):
            self.opened.append(arguments[0])

    def end(self) -> dict[str, list[str]]:
        """Compilers that were imported, processes that were started, and files that were read or written."""
        self.on = False
        return {
            "compilers": [name for name in COMPILERS if name in sys.modules and name not in _OF_TRACING],
            "started": self.started,
            "opened": self.opened,
        }


def main(arguments: list[str]) -> None:
    warnings.filterwarnings("ignore")
    if arguments == ["--serve"]:
        for name in zoo.NAMES:
            zoo.build(name)  # transformers imports a model's code when it is asked for
        serve(main)
        return
    asked = json.loads(arguments[0])
    model = zoo.build(asked["model"], dropout=asked.get("dropout", 0.0))
    batch = zoo.inputs(asked["model"], asked.get("batch", 2))
    lowerings.install()
    options = {"mode": asked["mode"]} if asked.get("mode") else None
    torch._dynamo.config.recompile_limit = 32
    if asked.get("dynamic_batch"):
        for tensor in batch.values():
            torch._dynamo.mark_dynamic(tensor, 0)
    watch = Watch()
    compiled = torch.compile(model, backend=asked["backend"], options=options)
    outputs: dict[str, list[torch.Tensor]] = {}
    calls: dict[str, int] = {}
    operators: dict[str, list[str]] = {}
    for what in asked["what"]:
        outputs[what] = zoo.step(compiled, batch, what)
    watched = watch.end()
    for what in asked["what"]:
        again, calls[what], operators[what] = compiled_calls(partial(zoo.step, compiled, batch, what))
        if asked["model"] != "resnet":  # running statistics move with every training step
            torch.testing.assert_close(again, outputs[what])
    if asked.get("save"):
        torch.save(outputs, asked["save"])
    report = {
        "watched": watched,
        "lowerings": lowerings.count,
        "calls": calls,
        "operators": operators,
        "graphs": torch._dynamo.utils.counters["stats"]["unique_graphs"],
        "children": [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)],
    }
    if asked["backend"] == "fxpool":
        import fxpool

        report["stats"] = fxpool.stats()
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main(sys.argv[1:])
