"""The models that the benchmarks compile, and their first calls.

The clock starts right before `torch.compile()`, so that importing the backend counts. It stops when the first call has
returned (in training, when its backward pass has). Building the model and importing torch and transformers are the same
for every backend and do not count.

Models and torch are imported inside functions, because the imports of a run are part of the measurement.
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from typing import Any, Literal

from fxpool.bench.witness import counting

__all__ = ["Size", "Step", "build", "call", "compiled", "facts", "first_call"]

Step = Literal["infer", "train"]
Size = Literal["small", "full"]


def facts(backend: str, lowered: int) -> dict[str, Any]:
    """Return the graphs that were lowered in this process, and fxpool's counters."""
    if backend != "fxpool":
        return {"graph_lowerings": lowered, "stats": None}
    import fxpool

    return {"graph_lowerings": lowered, "stats": fxpool.stats()}


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


def compiled(function: Any, backend: str) -> Any:
    """Compile for a backend; with fxpool in the background."""
    import torch

    if backend == "fxpool":  # set before the first graph, as in a program that is started with it
        os.environ["TORCHINDUCTOR_FX_COMPILE_MODE"] = "async+subprocess"
    return torch.compile(function, backend=backend.removesuffix("-waiting"))


def first_call(
    name: str,
    what: str,
    backend: str,
    size: str = "small",
    *,
    background: bool = False,
    edit: Callable[[Any], None] | None = None,
) -> dict[str, Any]:
    """Return the seconds of the first call, and the largest difference of logits and gradients from eager's.

    With the backend "eager", Dynamo only traces the model: the minimum for the first call of any backend. `edit`
    changes the model first. With `background`, fxpool compiles in the background. Raises RuntimeError if only one side
    has a gradient.
    """
    counter = counting()

    import torch

    torch.manual_seed(0)
    model = build(name, size).train(what == "train")
    if edit is not None:
        edit(model)
    tokens = torch.randint(0, 1000, (2, 64))
    reference = copy.deepcopy(model)
    start = time.perf_counter()
    function = compiled(model, backend) if background else torch.compile(model, backend=backend)
    first = call(function, tokens, what)
    seconds = time.perf_counter() - start
    report = facts(backend, counter.count)
    pairs = [(first, call(reference, tokens, what))]
    if what == "train":
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            if (ours.grad is None) != (theirs.grad is None):
                raise RuntimeError("a parameter has a gradient in only one of compiled and eager")
            if ours.grad is not None:
                pairs.append((ours.grad, theirs.grad))
    difference = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
    return {"first_call_seconds": seconds, "difference": difference} | report
