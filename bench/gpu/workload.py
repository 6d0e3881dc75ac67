"""What the scripts beside this one compile, and how they compare what comes of it."""

from __future__ import annotations

import json
import warnings
from typing import Any

from fxpool.bench.measurement.statistics import Ratio


class Llama:
    """A Llama in bfloat16 on the current CUDA device, with random weights, and the step that is measured."""

    def __init__(self, layers: int, training: bool) -> None:
        warnings.filterwarnings("ignore")
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        config = transformers.LlamaConfig(
            vocab_size=8192, hidden_size=1024, intermediate_size=2816, num_hidden_layers=layers,
            num_attention_heads=16, num_key_value_heads=8, max_position_embeddings=512, use_cache=False,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = transformers.LlamaForCausalLM(config).to("cuda", torch.bfloat16).train(training)
        self.tokens = torch.randint(0, 8192, (2, 256), device="cuda")
        self.training = training
        torch.cuda.synchronize()

    def step(self, module: Any) -> list[Any]:
        """Logits; in training the loss and every gradient. Returns when the device is done."""
        import torch

        if self.training:
            self.model.zero_grad()
            loss = module(input_ids=self.tokens, labels=self.tokens).loss
            loss.backward()
            tensors = [loss.detach(), *(parameter.grad.clone() for parameter in self.model.parameters())]
        else:
            with torch.no_grad():
                tensors = [module(input_ids=self.tokens).logits]
        torch.cuda.synchronize()
        return tensors


def difference(one: list[Any], other: list[Any]) -> float:
    """Largest difference relative to the largest value of each tensor."""
    pairs = [(a.float(), b.float()) for a, b in zip(one, other, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)


def saved_difference(one: str, other: str) -> float:
    """`difference` of two files that `save` wrote."""
    import torch

    return difference(torch.load(one), torch.load(other))


def parts(trace: str) -> dict[str, float]:
    """Seconds of what parent and worker did for one graph, of a file that ``FXPOOL_TRACE`` wrote."""
    with open(trace) as file:
        events = json.load(file)
    events = events["traceEvents"] if isinstance(events, dict) else events
    spent: dict[str, float] = {}
    begun: dict[str, float] = {}
    for event in events:
        name, at = event.get("name", ""), event.get("ts", 0) / 1e6
        if event.get("ph") == "X" and not name.startswith("graph "):
            spent[name] = spent.get(name, 0.0) + event["dur"] / 1e6
        elif event.get("ph") == "b" and name.startswith("graph "):
            begun[name] = at
        elif event.get("ph") == "e" and name in begun:
            spent["until there is a worker"] = spent.get("until there is a worker", 0.0) + at - begun.pop(name)
    return {
        name: round(seconds, 2) for name, seconds in spent.items() if seconds >= 0.01 and name[-7:] != "kernels"
    } | {"kernels, after lowering": round(spent.get("kernels", 0.0), 2)}


def save(tensors: list[Any], path: str) -> None:
    import torch

    torch.save([tensor.float().cpu() for tensor in tensors], path)


def spread(ratio: Ratio) -> str:
    """The median of ratios and their range."""
    return f"{ratio.value:.2f} ({ratio.low:.2f} - {ratio.high:.2f})"
