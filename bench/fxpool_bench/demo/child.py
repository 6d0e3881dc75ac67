"""One measurement in a fresh process: build a model, compile it, time the first call, compare it with eager.

    python -m fxpool.bench.demo.child --model gpt2 --what train --backend fxpool

prints one line of JSON (the result of `measure`). The caches are those that the environment names; the benchmarks name
separate cache directories. The demo passes ``--serve``: the process imports torch and the models' code once, and forks
for each measurement requested on its standard input.

The clock starts right before `torch.compile()`, so that importing the backend counts. It stops when the first call has
returned (in training, when its backward pass has). Building the model and importing torch and transformers are the same
for every backend and do not count.

Models and torch are imported inside functions, because the imports of a run are part of the measurement.
"""

from __future__ import annotations

import argparse
import copy
import importlib.abc
import importlib.machinery
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from fxpool.bench.demo.processes import serve

__all__ = ["MODELS", "SIZES", "WHATS", "LoweringCounter", "build", "call", "main", "measure"]

MODELS = ("gpt2", "bert")
WHATS = ("infer", "train")
SIZES = ("small", "full")


class LoweringCounter(importlib.abc.MetaPathFinder):
    """Counts the graphs that Inductor lowers in this process, without importing Inductor.

    It verifies independently of `stats()` that nothing was compiled in this process. Importing `GraphLowering` to wrap
    it would take a warm process the 0.6 s that fxpool saves, so the class is wrapped when its module is imported.
    """

    MODULE = "torch._inductor.graph"

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Wrap `GraphLowering` now if its module is imported, otherwise when that happens."""
        module = sys.modules.get(self.MODULE)
        if module is not None:
            self._wrap(module)
        else:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _WrappingLoader(spec.loader, self)
        return spec

    def _wrap(self, module: ModuleType) -> None:
        lowering_class = module.GraphLowering
        original = lowering_class.__init__

        def counting(this: Any, *args: Any, **kwargs: Any) -> None:
            self.count += 1
            original(this, *args, **kwargs)

        lowering_class.__init__ = counting


class _WrappingLoader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, counter: LoweringCounter) -> None:
        self._loader, self._counter = loader, counter

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        self._counter._wrap(module)

    def __getattr__(self, name: str) -> Any:
        # inspect and traceback ask the loader of a module for its source.
        return getattr(self._loader, name)


def build(name: str, size: str = "small") -> Any:
    """Return a model of transformers with random weights and dropout 0; nothing is downloaded.

    `small` has 2 layers and a width of 256, which hardly affects the time of the first call but shortens the run.
    `full` has 4 layers, and all other sizes are those of the published model.
    """
    small = size == "small"
    if name == "gpt2":
        from transformers import GPT2Config, GPT2LMHeadModel

        gpt2: dict[str, Any] = {"n_layer": 4, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        if small:
            gpt2 |= {"n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 8192}
            gpt2 |= {"bos_token_id": 0, "eos_token_id": 0}
        return GPT2LMHeadModel(GPT2Config(**gpt2))
    from transformers import BertConfig, BertForMaskedLM

    bert: dict[str, Any] = {"num_hidden_layers": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    if small:
        bert |= {"num_hidden_layers": 2, "hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
        bert |= {"vocab_size": 8192}
    return BertForMaskedLM(BertConfig(**bert))


def call(model: Any, tokens: Any, what: str) -> Any:
    """Make one call, in training with its backward pass; return the logits."""
    import torch

    if what == "infer":
        with torch.no_grad():
            return model(tokens).logits
    logits = model(tokens).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    return logits.detach()


def measure(
    model_name: str,
    what: str,
    backend: str,
    size: str = "small",
    compiled: bool = True,
    edit: Callable[[Any], None] | None = None,
) -> dict[str, Any]:
    """Return the seconds of the first and second call, the largest difference from eager, and where graphs compiled.

    Without `compiled`, the model is called without torch.compile and `backend` is ignored. With the backend "eager",
    Dynamo only traces the model: the minimum for the first call of any backend. The difference is the largest absolute
    difference of the logits and, in training, of all gradients. `edit` changes the model first. Raises RuntimeError if
    only one side has a gradient.
    """
    counter = LoweringCounter()
    counter.install()

    import torch

    torch.manual_seed(0)
    model = build(model_name, size).train(what == "train")
    if edit is not None:
        edit(model)
    tokens = torch.randint(0, 1000, (2, 64))
    reference = copy.deepcopy(model)

    start = time.perf_counter()
    measured = torch.compile(model, backend=backend) if compiled else model
    first = call(measured, tokens, what)
    first_seconds = time.perf_counter() - start

    lowered = counter.count
    pairs = [(first, call(reference, tokens, what))]
    if what == "train":
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            if (ours.grad is None) != (theirs.grad is None):
                raise RuntimeError("a parameter has a gradient in only one of compiled and eager")
            if ours.grad is not None:
                pairs.append((ours.grad, theirs.grad))
    difference = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)

    start = time.perf_counter()
    call(measured, tokens, what)
    second_seconds = time.perf_counter() - start
    return {
        "model": model_name,
        "what": what,
        "backend": backend,
        "first_call_seconds": first_seconds,
        "second_call_seconds": second_seconds,
        "difference": difference,
        "graph_lowerings": lowered,
        "stats": _stats() if backend == "fxpool" else None,
    }


def _stats() -> Mapping[str, Any]:
    import fxpool

    return fxpool.stats()


def _serve() -> None:
    import torch
    from transformers import BertForMaskedLM, GPT2LMHeadModel

    del torch, BertForMaskedLM, GPT2LMHeadModel
    serve(main)


def main(arguments: Sequence[str] | None = None) -> None:
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["--serve"]:
        _serve()
        return
    parser = argparse.ArgumentParser(prog="python -m fxpool.bench.demo.child", description=__doc__)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--what", choices=WHATS, required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--uncompiled", action="store_true", help="call the model without torch.compile")
    chosen = parser.parse_args(arguments)
    result = measure(chosen.model, chosen.what, chosen.backend, chosen.size, not chosen.uncompiled)
    # default=str, so that a value in `stats` that is not plain data does not lose the measurement.
    print(json.dumps(result, default=str), flush=True)


if __name__ == "__main__":
    main()
