"""Exported programs and the packages that AOTInductor makes of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

__all__ = ["build", "graph_of", "inputs_of", "interface", "read", "tensors_of", "write"]


def graph_of(program: Any) -> torch.fx.GraphModule:
    """Return the graph of an exported program. Raises TypeError for anything else."""
    if not isinstance(program, torch.export.ExportedProgram):
        raise TypeError(f"expected an ExportedProgram of torch.export, got {type(program).__name__}")
    gm: torch.fx.GraphModule = program.graph_module
    return gm


def inputs_of(program: Any) -> list[Any]:
    """Return the graph's inputs as fake tensors and symbols: parameters, buffers and constants first."""
    placeholders = [node for node in program.graph_module.graph.nodes if node.op == "placeholder"]
    return [node.meta["val"] for node in placeholders]


def interface(program: Any) -> dict[str, Any]:
    """Return a package's interface as plain data: its calling convention, and the ranges of its sizes."""
    specs = {}
    for name in ("in_spec", "out_spec"):
        spec = getattr(program.call_spec, name)
        specs[name] = pytree.treespec_dumps(spec) if spec is not None else ""
    ranges = {str(symbol): f"{one.lower} {one.upper}" for symbol, one in program.range_constraints.items()}
    examples = pytree.tree_map(_described, program.example_inputs)
    return {"signature": str(program.graph_signature), "ranges": ranges, "examples": repr(examples), **specs}


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), list(value.shape), list(value.stride()), str(value.device)
    return value


def tensors_of(program: Any) -> dict[str, Any]:
    """Return the program's parameters, buffers and constants by name."""
    return {**program.constants, **program.state_dict}


def write(program: Any, path: str) -> None:
    """Write a program into a file. Raises the errors of ``torch.export.save``."""
    torch.export.save(program, path)


def read(path: str) -> Any:
    """Read a program of `write`."""
    return torch.export.load(path)


def build(program: Any, path: str, options: Mapping[str, Any]) -> None:
    """Compile a program into a package at `path`, in this process. Raises what AOTInductor raises."""
    from torch._inductor import aoti_compile_and_package

    made = aoti_compile_and_package(program, package_path=path, inductor_configs=dict(options))
    if os.path.abspath(made) != os.path.abspath(path):
        os.replace(made, path)
