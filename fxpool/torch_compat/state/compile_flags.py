"""Flags that torch holds around the call of a backend: `global_state` has them, so a worker holds its client's.

Formulas of operators, backwards, fake rules and lowerings run while a worker compiles, and can ask for them. They are
read when a graph is captured, and not set to a value of fxpool's: what Dynamo holds differs between releases. torch's
other flags are listed, with the reason, beside the test that enumerates torch (``tests/lowering/flag_decisions.py``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

__all__ = ["FLAGS", "accessors", "as_in_backward", "session"]

#: Name -> (module, place in it). False until torch sets it.
FLAGS = {
    "is_compiling": ("torch.compiler", "_is_compiling_flag"),  # held by Dynamo since 2.13
    "is_exporting": ("torch.compiler", "_is_exporting_flag"),
    "non_strict_tracing": ("torch.compiler", "_is_non_strict_tracing_flag"),
    "fx_tracing": (
        ("torch.fx._symbolic_trace", "_is_fx_tracing_tls.flag")  # since 2.14
        if hasattr(torch.fx._symbolic_trace, "_is_fx_tracing_tls")
        else ("torch.fx._symbolic_trace", "_is_fx_tracing_flag")
    ),
    # By it AOTAutograd decides which inputs are static, and whether hooks of saved tensors are compiled.
    "compiled_autograd_region": ("torch._dynamo.compiled_autograd", "in_compiled_autograd_region"),
    "defer_inlining": ("torch._higher_order_ops.local_map", "_DEFER_INLINING"),
}


def accessors(name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return reader and writer of a flag; a module that was never imported has not set it."""
    module, place = FLAGS[name]
    *path, attribute = place.split(".")

    def read() -> Any:
        return getattr(functools.reduce(getattr, path, sys.modules.get(module)), attribute, False)

    def write(value: Any) -> None:
        setattr(functools.reduce(getattr, path, importlib.import_module(module)), attribute, value)

    return read, write


def session() -> contextlib.AbstractContextManager[None]:
    """Hold what Dynamo holds, for a compile without a client."""
    held: Any = getattr(torch.compiler, "_compile_session_context", contextlib.nullcontext)  # since 2.13
    return held()


@contextlib.contextmanager
def as_in_backward() -> Iterator[None]:
    """Hold what is in force where autograd calls for a backward's compile, after Dynamo has returned."""
    read, write = accessors("is_compiling")
    before = read()
    write(False)
    try:
        yield
    finally:
        write(before)
