"""A program that knows of torch only. Saves its cache artifacts (``save FILE``), or begins with them (``load FILE``).

With ``late FILE``, it loads once the function was handed to torch.compile. Prints a line of JSON: what torch said of
the artifacts, and what fxpool has counted.
"""

from __future__ import annotations

import json
import sys

import torch


def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(x @ weight).softmax(-1).sum(0)


def main(what: str, path: str, backend: str = "fxpool") -> None:
    report: dict[str, object] = {}
    if what == "load":
        with open(path, "rb") as file:
            info = torch.compiler.load_cache_artifacts(file.read())
        report["info"] = dict(info.artifacts) if info is not None else None
    compiled = torch.compile(model, backend=backend)
    if what == "late":
        with open(path, "rb") as file:
            info = torch.compiler.load_cache_artifacts(file.read())
        report["info"] = dict(info.artifacts) if info is not None else None
    x = torch.linspace(-2, 2, 64).reshape(8, 8)
    weight = torch.linspace(1, 3, 64).reshape(8, 8).requires_grad_()
    result = compiled(x, weight)
    result.sum().backward()
    torch.testing.assert_close(result, model(x, weight))
    if what == "save":
        saved = torch.compiler.save_cache_artifacts()
        assert saved is not None
        with open(path, "wb") as file:
            file.write(saved[0])
        report["info"] = dict(saved[1].artifacts)
    import fxpool  # the test's, to look

    report["stats"] = fxpool.stats()
    print(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
