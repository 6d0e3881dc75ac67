"""First calls without tracing (S18): a frame from the cache beside `backend="eager"` and the model uncompiled.

    python bench/frames.py [--pairs 5] [--models gpt2,llama,broken] [--layers 4] [--what infer,train] [--device cuda]

Every first call is of a fresh process, the back ends in turn; the clock starts before ``torch.compile()``, so that
imports that come with it count. `frames` is fxpool with FXPOOL_FRAMES=1 in a process after the one that kept the frame,
`fxpool` the same without it, `none` the model without torch.compile. `whole` is from the process's start to the end of
the first call. `broken` is a function with 19 graph breaks, which are 20 frames. Results and gradients are compared
with the uncompiled model's. Exits 1 if they differ, or if a frame was traced. Needs transformers, and fxpool with its
dependencies importable.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from typing import Any

import psutil
from harness.scripts import caches, finish, report_or_exit

from fxpool.bench.measurement.statistics import paired

SIDES = ("frames", "fxpool", "eager", "none")
#: What a served frame's time is spent on: functions of `fxpool.frames.serving`.
PARTS = {"key": "key_of", "guards and load": "_find", "load": "_callable"}


class Work:
    """A model with its input, and one step of it."""

    def __init__(self, name: str, layers: int, device: str, training: bool) -> None:
        import torch

        self.torch, self.training, self.name, self.device = torch, training, name, device
        torch.manual_seed(0)
        self.data: Any = torch.randint(0, 1000, (2, 64), device=device)
        if name == "broken":
            import torch._dynamo  # the function's name for a break

            self.model: Any = _broken()
            self.data = torch.randn(8, 8, device=device, requires_grad=training)
            return
        import transformers

        transformers.logging.set_verbosity_error()
        if name == "gpt2":
            config = transformers.GPT2Config(
                n_layer=layers, n_embd=256, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
            )
            self.model = transformers.GPT2LMHeadModel(config)
        else:
            config = transformers.LlamaConfig(
                vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=layers,
                num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512, use_cache=False,
            )  # fmt: skip
            self.model = transformers.LlamaForCausalLM(config)
        self.model.to(device).train(training)

    def step(self, function: Any) -> list[Any]:
        """The result, and in training all gradients."""
        torch = self.torch
        with torch.set_grad_enabled(self.training):
            result = function(self.data)
            result = result if self.name == "broken" else result.logits
        leaves = [self.data] if self.name == "broken" else [*self.model.parameters()]
        if self.training:
            for leaf in leaves:
                leaf.grad = None
            result.float().square().mean().backward()
        if self.device != "cpu":
            torch.cuda.synchronize()
        return [result.detach(), *(leaf.grad.clone() for leaf in leaves if leaf.grad is not None)]


BROKEN = (
    "import torch\ndef broken(x):\n"
    + "    x = (x * 1.01).sin()\n    torch._dynamo.graph_break()\n" * 19
    + "    return x * 2\n"
)


def _broken() -> Any:
    """The function with graph breaks, of a file in this process's folder."""
    spec = importlib.util.spec_from_file_location("broken", os.environ["BROKEN"])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["broken"] = module
    spec.loader.exec_module(module)
    return module.broken


def child(asked: dict[str, Any]) -> None:
    """One process: print its times and counts as JSON."""
    warnings.filterwarnings("ignore")
    work = Work(asked["model"], asked["layers"], asked["device"], asked["what"] == "train")
    seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    if asked["side"] == "frames":
        _timed(seconds)
    backend = {"frames": "fxpool", "none": None}.get(asked["side"], asked["side"])
    begin = time.perf_counter()
    compiled = work.torch.compile(work.model, backend=backend) if backend else work.model
    results = work.step(compiled)
    first = time.perf_counter() - begin
    whole = time.time() - psutil.Process().create_time()
    report: dict[str, Any] = {"first": first, "whole": whole, "parts": seconds}
    wanted = work.step(work.model)
    pairs = [(a.float(), b.float()) for a, b in zip(results, wanted, strict=True)]
    report["difference"] = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
    if backend == "fxpool":
        import fxpool

        report["frames"] = fxpool.stats()["frames"]
    print(json.dumps(report))


def _timed(seconds: dict[str, float]) -> None:
    from fxpool.frames import serving

    def wrapped(part: str, function: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            begin = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                seconds[part] += time.perf_counter() - begin

        return timed

    for part, name in PARTS.items():
        setattr(serving, name, wrapped(part, getattr(serving, name)))


def run(asked: dict[str, Any], root: str) -> dict[str, Any]:
    """The report of one process."""
    environment = {
        **caches(f"{root}/{asked['model']}-{asked['what']}-{asked['side']}", root),
        "FXPOOL_POOL": "host",
        "BROKEN": f"{root}/broken.py",
        "FXPOOL_FRAMES": "on" if asked["side"] == "frames" else "off",
    }
    return report_or_exit(__file__, asked, environment)


def measured(asked: dict[str, Any], pairs: int, root: str) -> list[str]:
    """Print a row per rival; return what is wrong."""
    for side in ("frames", "fxpool"):
        run({**asked, "side": side}, root)  # keeps it
    times: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    wrong = []
    for _ in range(pairs):
        for side in SIDES:
            report = run({**asked, "side": side}, root)
            times[side].append(report)
            if report["difference"] > (5e-3 if asked["device"] != "cpu" else 1e-3):
                wrong.append(f"{asked} {side}: differs by {report['difference']}")
            if side == "frames" and not (
                set(report["frames"]) <= {"served", "unfit"} and report["frames"].get("served")
            ):
                wrong.append(f"{asked}: {report['frames']}")
    name = f"{asked['model']} {asked['layers']} {asked['what']}"
    for rival, clock in [(side, clock) for clock in ("first", "whole") for side in SIDES[1:]]:
        mine, theirs = ([one[clock] for one in times[side]] for side in ("frames", rival))
        ratio = paired(mine, theirs)
        print(
            f"| {name}, {clock} | {statistics.median(mine):.2f} | {rival} {statistics.median(theirs):.2f} "
            f"| **{ratio.value:.2f}** ({ratio.low:.2f} - {ratio.high:.2f}) |",
            flush=True,
        )
    spent = {part: statistics.median(one["parts"][part] for one in times["frames"]) for part in PARTS}
    listed = ", ".join(f"{part} {seconds * 1e3:.0f} ms" for part, seconds in spent.items())
    print(f"  {name}: of a served call: {listed}; {times['frames'][0]['frames']}", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--models", default="gpt2,llama,broken")
    parser.add_argument("--layers", default="4")
    parser.add_argument("--what", default="infer,train")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.child:
        return child(json.loads(options.child))
    wrong: list[str] = []
    print("| | frames, s | rival, s | ratio |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="fxf") as root:
        with open(f"{root}/broken.py", "w") as file:
            file.write(BROKEN)
        for model in options.models.split(","):
            for layers in map(int, options.layers.split(",")):
                for what in options.what.split(","):
                    asked = {"model": model, "layers": layers, "what": what, "device": options.device}
                    wrong += measured(asked, options.pairs, root)
    finish(wrong)


if __name__ == "__main__":
    main()
