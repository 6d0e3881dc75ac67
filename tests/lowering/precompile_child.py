"""Compiles a function ahead of time and writes it, or loads and calls what another process wrote; prints one line.

    precompile_child.py write|load|cached FILE CASE

`cached` compiles under Dynamo's ``caching_precompile``, which stores and restores by itself.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import child
import torch

import fxpool


def train(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ w).sin() + 1


def infer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).softmax(-1)


@torch._dynamo.allow_in_graph
def left(x: torch.Tensor) -> torch.Tensor:
    return x.cos()


def stays(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Holds a function of the main script, which no worker has."""
    return left(x @ w) * 2


CASES: dict[str, Any] = {"train": train, "infer": infer, "stays": stays}


def main(what: str, path: str, case: str) -> None:
    warnings.simplefilter("ignore")
    child.lowerings.install()
    function = CASES[case]
    torch.manual_seed(0)
    inputs = torch.randn(4, 8), torch.randn(8, 6, requires_grad=case == "train")
    options = {"cpp_wrapper": True} if os.environ.get("THROUGH_CPP") else None
    if what == "load":
        with open(path, "rb") as file:
            compiled = torch.compiler.load_compiled_function(file)
    else:
        torch._dynamo.config.caching_precompile = what == "cached"
        compiled = torch.compile(function, backend="fxpool", fullgraph=True, options=options)
        if what == "write":
            compiled = compiled.aot_compile((inputs, {}))
            compiled.save_compiled_function(path)
    output = compiled(*inputs)
    torch.testing.assert_close(output, function(*inputs))
    if case == "train":
        (gradient,) = torch.autograd.grad(output.sum(), inputs[1])
        (expected,) = torch.autograd.grad(function(*inputs).sum(), inputs[1])
        torch.testing.assert_close(gradient, expected)
    if what == "cached":
        from torch._dynamo.precompile_context import PrecompileContext

        PrecompileContext.save_to_dynamo_cache()
    stats = fxpool.stats()
    found = {name: stats[name] for name in ("hits", "misses", "compiles", "fallbacks")}
    print(json.dumps({**found, "lowerings": child.lowerings.count}))


if __name__ == "__main__":
    main(*sys.argv[1:])
