"""The sweep of families: architectures of transformers from tiny configurations, with random weights.

An item is a family and an action, ``bert|train``. Inference: two calls, and one with other shapes. Training:
the same with loss, gradients of all parameters, and buffers afterwards.
"""

from __future__ import annotations

import copy
import random
from typing import Any

import torch
from harness.families import families, without_chance

from . import closeness
from .record import ERROR, RIGHT, SKIP, WRONG, short

__all__ = ["AGAIN", "BATCH", "LIMIT", "attempt", "keys"]

BATCH = 4  # models in one process
AGAIN = True
LIMIT = 600.0  # seconds for one item

_WORDS = 128
FAMILIES = {
    name: family
    for name, family in families(hidden=64, layers=2, words=_WORDS, positions=64, image=32, depth=1, frames=32).items()
    if name != "mixtral"
}


def keys() -> list[str]:
    """All families, for inference and for training."""
    return [f"{family}|{mode}" for family in FAMILIES for mode in ("infer", "train")]


def attempt(key: str, backend: str, seed: int) -> tuple[str, str]:
    """(status, why) of one item under `backend`."""
    family, _, mode = key.partition("|")
    try:
        model, config, kind = _build(family, seed)
        _seed(seed + 1)
        batches = [_inputs(kind, config, other) for other in (False, True)]
        batches.insert(1, batches[0])
        model.train(mode == "train")
        reference = copy.deepcopy(model)
        expected = [_step(reference, batch, mode) for batch in batches]
        _meaningful(expected[0])
    except Exception as error:
        return SKIP, f"eagerly: {short(error)}"
    compiled = torch.compile(model, backend=backend)
    for number, (batch, wanted) in enumerate(zip(batches, expected, strict=True)):
        try:
            got = _step(compiled, batch, mode)
        except Exception as error:
            return ERROR, f"call {number}: {short(error)}"
        try:
            closeness.check(wanted, got, f"call {number} ", strides=False)
        except AssertionError as difference:
            return WRONG, short(difference)
    return RIGHT, ""


def _seed(number: int) -> None:
    torch.manual_seed(number)
    random.seed(number)


def _build(family: str, seed: int) -> tuple[torch.nn.Module, Any, str]:
    import transformers  # two seconds, which who only asks for the names need not wait

    transformers.logging.set_verbosity_error()
    config_name, arguments, model_name, kind = FAMILIES[family]
    config = without_chance(getattr(transformers, config_name)(**copy.deepcopy(arguments)))
    config.use_cache = False
    _seed(seed)
    model = getattr(transformers, model_name)(config)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        # Some heads begin with zeros, and the outputs would say nothing then.
        for one in model.parameters():
            if one.numel() > 1 and bool((one == one.flatten()[0]).all()):
                one.add_(torch.randn_like(one) * 0.05)
    return model, config, kind


def _inputs(kind: str, config: Any, other: bool) -> dict[str, Any]:
    """A batch of one of the two shapes that a model is given."""
    rows, length, more = (3, 20, 1) if other else (2, 12, 0)
    words = torch.randint(3, _WORDS - 2, (rows, length))
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, -3:] = 0
    target = torch.randint(3, _WORDS - 2, (rows, 7 + more))
    pixels = torch.randn(rows, 3, 32, 32)
    if kind == "causal":
        return {"input_ids": words, "labels": words.clone()}
    if kind == "masked":
        return {"input_ids": words, "labels": words.clone(), "attention_mask": mask}
    if kind == "translation":
        return {"input_ids": words, "attention_mask": mask, "labels": target}
    if kind == "image":
        return {"pixel_values": pixels, "labels": torch.randint(0, 2, (rows,))}
    if kind == "sound":
        return {"input_features": torch.randn(rows, 16, 64), "labels": target}
    words[:, -1] = _WORDS - 1  # where the text ends
    return {"input_ids": words, "attention_mask": torch.ones_like(words), "pixel_values": pixels, "return_loss": True}


def _step(model: Any, batch: dict[str, Any], mode: str) -> dict[str, Any]:
    _seed(5)
    if mode == "infer":
        with torch.no_grad():
            return closeness.snapshot({"out": _plain(model(**batch))})
    plain = getattr(model, "_orig_mod", model)
    plain.zero_grad(set_to_none=True)
    out = model(**batch)
    out.loss.backward()
    found = {
        "out": _plain(out),
        "gradients": {name: one.grad for name, one in plain.named_parameters() if one.grad is not None},
        "buffers": dict(plain.named_buffers()),
    }
    return closeness.snapshot(found)


def _plain(out: Any) -> dict[str, Any]:
    # Outputs inside outputs (CLIP's) are classes of transformers that pytree knows.
    return {name: value for name, value in out.items() if value is not None}


def _meaningful(found: dict[str, Any]) -> None:
    tensors = [one for one in torch.utils._pytree.tree_leaves(found["out"]) if isinstance(one, torch.Tensor)]
    numbers = [one for one in tensors if one.is_floating_point()]
    if not all(bool(torch.isfinite(one).all()) for one in numbers):
        raise ValueError("what eager execution gives is not finite")
    if not any(float(one.std()) > 1e-6 for one in numbers if one.numel() > 1):
        raise ValueError("what eager execution gives is constant")
