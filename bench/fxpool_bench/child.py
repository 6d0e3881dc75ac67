"""The process of one run: builds a model, compiles it, compares it with eager, and measures on request.

    python -m fxpool.bench.child PARENT

The order is a line of JSON on standard input; a second line means "measure now". Events are lines of JSON on the
original standard output; output of the model goes to standard error. torch is imported inside functions, after the
runner has been told that the model is being built.
"""

from __future__ import annotations

import copy
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fxpool.bench import suite as suites
from fxpool.bench.case import Case
from fxpool.bench.witness import counting
from fxpool.pool.host import processes

__all__ = ["main"]

# Characters kept of a traceback.
_KEPT = 8000


def main(arguments: list[str]) -> int:
    """Carry out one order; return the exit status, 1 if it failed (an event gives the reason)."""
    processes.die_with_parent(signal.SIGKILL, int(arguments[0]))
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        _serve(json.loads(sys.stdin.readline()), events)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _tell(events, "failed", reason=reason, traceback=traceback.format_exc()[-_KEPT:])
        return 1
    return 0


def _tell(events: IO[str], event: str, **facts: Any) -> None:
    events.write(json.dumps({"event": event, **facts}, default=str) + "\n")
    events.flush()


def _serve(order: dict[str, Any], events: IO[str]) -> None:
    _tell(events, "building")
    counter = counting()
    suite = suites.load(order["suite"])
    case = suite.case(order["case"])
    mode, backend = order["mode"], order["backend"]
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(order["threads"] or torch.get_num_threads())
    device = order["device"]
    function, inputs = _moved(*suites.maker(case, suite.path)(**case.arguments), device)
    expected = _values(_prepared(copy.deepcopy(function), mode), inputs) if backend != "eager" else None
    function = _prepared(function, mode)
    _tell(events, "compiling")
    options = dict(case.options.get(backend, {}))
    if mode == "dynamic":
        options.setdefault("dynamic", True)
    start = time.perf_counter()
    called = _step(function if backend == "eager" else torch.compile(function, backend=backend, **options), mode)
    called(*inputs)
    _wait_for(device)
    _tell(events, "comparing", first_call=time.perf_counter() - start, lowerings=counter.count)
    # From a separate call, because gradients would be added to those of the first call.
    difference = _difference(_values_of(called, function, inputs), expected) if expected is not None else None
    wrong = difference is not None and not difference <= case.tolerance
    facts = {"difference": difference, "wrong": wrong, "device_peak": _device_peak(device)}
    del expected
    _tell(events, "ready", peak=_peak(), stats=_stats(backend), **facts)
    if not order["measure"] or not sys.stdin.readline():
        return  # the order is complete, or the runner has ended
    found = _measured(case, called, inputs, device, order["alone"])
    _tell(events, "measured", peak=_peak(), measured=found.facts(), stats=_stats(backend), **facts)


def _moved(function: Callable[..., Any], inputs: tuple[Any, ...], device: str) -> tuple[Any, tuple[Any, ...]]:
    """Return the model and its inputs on `device`; the structure of the inputs is preserved."""
    import torch

    from fxpool.torch_compat.dynamo.tensors import flatten

    if torch.device(device).type == "cpu":
        return function, inputs
    torch.cuda.set_device(device)
    if isinstance(function, torch.nn.Module):
        function = function.to(device)
    leaves, rebuild = flatten(inputs)
    return function, rebuild([leaf.to(device) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves])


def _measured(case: Case, called: Callable[..., Any], inputs: tuple[Any, ...], device: str, alone: bool) -> Any:
    from fxpool.bench.measurement.timing import measure

    return measure(called, *inputs, device=device, seconds=case.seconds, precision=case.precision, alone=alone)


def _prepared(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    import torch

    return function.train(mode == "training") if isinstance(function, torch.nn.Module) else function


def _step(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """Return a function that makes one step: a call, in training with its backward pass."""
    import torch

    if mode != "training":

        def infer(*inputs: Any) -> Any:
            with torch.no_grad():
                return function(*inputs)

        return infer

    def train(*inputs: Any) -> Any:
        if isinstance(function, torch.nn.Module):
            for parameter in function.parameters():
                parameter.grad = None
        outputs = function(*inputs)
        _loss(outputs).backward()
        return outputs

    return train


def _loss(outputs: Any) -> Any:
    """Return the model's loss, or else the sum of the outputs' mean squares."""
    loss = getattr(outputs, "loss", None)
    if loss is not None:
        return loss
    return sum(tensor.float().square().mean() for tensor in _tensors(outputs) if tensor.requires_grad)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    from fxpool.torch_compat.dynamo.tensors import flatten

    if hasattr(value, "to_tuple"):  # an output class of transformers
        value = value.to_tuple()
    yield from (leaf for leaf in flatten(value)[0] if isinstance(leaf, torch.Tensor))


def _values(function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[list[Any]]:
    import torch

    mode = "training" if isinstance(function, torch.nn.Module) and function.training else "inference"
    return _values_of(_step(function, mode), function, inputs)


def _values_of(step: Callable[..., Any], function: Callable[..., Any], inputs: tuple[Any, ...]) -> list[list[Any]]:
    """Return two lists, the outputs of a step and the gradients of a module's parameters."""
    import torch

    torch.manual_seed(0)
    outputs = [tensor.detach().clone() for tensor in _tensors(step(*inputs))]
    if not isinstance(function, torch.nn.Module):
        return [outputs, []]
    return [outputs, [parameter.grad for parameter in function.parameters() if parameter.grad is not None]]


# Relative to the largest value among all gradients or all outputs: a tensor with only smaller values is compared as if
# this were its largest value. The gradient of a bias without effect (that of an attention's keys) is only rounding.
_FLOOR = 1e-4


def _difference(ours: list[list[Any]], theirs: list[list[Any]]) -> float:
    """Return the largest difference, relative to the largest value of its tensor; infinite if the shapes differ."""
    return max(_apart(mine, other) for mine, other in zip(ours, theirs, strict=True))


def _apart(ours: list[Any], theirs: list[Any]) -> float:
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        return float("inf")
    pairs = [(mine.double(), other.double()) for mine, other in zip(ours, theirs, strict=True) if mine.numel()]
    if not all(bool((mine.isnan() == other.isnan()).all()) for mine, other in pairs):
        return float("inf")
    pairs = [(mine.nan_to_num(), other.nan_to_num()) for mine, other in pairs]
    sizes = [other.abs().max().item() for _, other in pairs]
    least = max(_FLOOR * max(sizes, default=0.0), 1e-30)
    apart = [(mine - other).abs().max().item() for mine, other in pairs]
    return max((one / max(size, least) for one, size in zip(apart, sizes, strict=True)), default=0.0)


def _wait_for(device: str) -> None:
    import torch

    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _device_peak(device: str) -> int:
    """Return the peak of the bytes in tensors on a GPU; 0 on the CPU."""
    import torch

    return torch.cuda.max_memory_allocated(device) if torch.device(device).type == "cuda" else 0


def _stats(backend: str) -> dict[str, Any]:
    if backend != "fxpool":
        return {}
    import fxpool

    stats: Mapping[str, Any] = fxpool.stats()
    counted = ("hits", "misses", "joined", "compiles", "fallbacks", "bypasses", "seconds_saved")
    return {name: stats[name] for name in counted}


if __name__ == "__main__":
    sys.path.insert(0, str(Path.cwd()))
    sys.exit(main(sys.argv[1:]))
