"""Runs a small program of a test under fxpool, in a process of its own; prints one line of JSON.

    program_child.py '{"path": ["/directory"], "main": "...", "mode": "subprocess"}'

The program's text defines `function` and `inputs`, and `expected` where that is not what `function` gives eagerly. It
runs as ``__main__``. With `calls`, it is called again after each of those texts has run. Reported are outputs and
gradients for each call, what was expected, constructions of GraphLowering and fxpool's counters.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import child
import torch
import torch._dynamo
from harness.loader import serve


def _numbers(function: Callable[..., Any], inputs: Any) -> list[Any]:
    """Outputs and gradients as lists of numbers."""
    given = [x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs]
    found = function(*given)
    outputs = list(found) if isinstance(found, (tuple, list)) else [found]
    if any(isinstance(x, torch.Tensor) and x.requires_grad for x in given):
        sum(output.float().sum() for output in outputs if output.requires_grad).backward()
    gradients = [x.grad for x in given if isinstance(x, torch.Tensor) and x.grad is not None]
    return [x.detach().double().flatten().tolist() for x in (*outputs, *gradients)]


def main(arguments: list[str]) -> None:
    warnings.simplefilter("ignore")
    if arguments == ["--serve"]:
        serve(main)
        return
    asked = json.loads(arguments[0])
    sys.path[:0] = asked["path"]
    sys.dont_write_bytecode = True
    program = types.ModuleType("__main__")
    program.__file__ = asked["path"][-1] + "/program"  # `inspect` wants one
    sys.modules["__main__"] = program
    child.lowerings.install()
    exec(compile(asked["main"], "<program>", "exec"), program.__dict__)
    options = {"mode": asked.get("mode", "subprocess"), **asked.get("options", {})}
    compiled = torch.compile(program.function, backend="fxpool", options=options, dynamic=asked.get("dynamic"))
    report: dict[str, Any] = {"got": [], "expected": []}
    for text in ["", *asked.get("calls", [])]:
        exec(compile(text, "<program>", "exec"), program.__dict__)
        report["got"].append(_numbers(compiled, program.inputs))
        expected = getattr(program, "expected", program.function)
        report["expected"].append(_numbers(expected, program.inputs))
    import fxpool

    if "async" in options["mode"]:
        fxpool.wait(120)
        report["got"].append(_numbers(compiled, program.inputs))
        report["expected"].append(_numbers(getattr(program, "expected", program.function), program.inputs))
    report["lowerings"], report["stats"] = child.lowerings.count, fxpool.stats()
    report["seen"] = getattr(program, "seen", None)
    print(json.dumps(report, default=str))


if __name__ == "__main__":
    main(sys.argv[1:])
