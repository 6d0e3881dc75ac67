"""Imports torch's minifier when a backend compiles its first graph, instead of with `torch.compile`.

`torch.compile` puts an object around each backend that runs the minifier if ``torch._dynamo.config.repro_after`` asks
for it. The module of its class imports AOTAutograd, its partitioner and networkx: 330 modules, which take 0.1 s. A
process whose frames are served without tracing compiles no graph. (Tracing imports them, too, so only such a process
starts sooner.)
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import eval_frame

__all__ = ["import_late"]

_MINIFIER = "torch._dynamo.repro.after_dynamo"

_names: set[str] = set()


class _Wrapped:
    """Has the attributes of torch's object around a backend, and makes that object when a graph is compiled."""

    def __init__(self, backend: Any, name: str) -> None:
        functools.update_wrapper(self, backend)
        self.__name__ = name
        self._torchdynamo_orig_backend = backend
        self._compiler_name = name
        if hasattr(backend, "get_compiler_config"):
            self.get_compiler_config = backend.get_compiler_config

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any], **more: Any) -> Any:
        from torch._dynamo.repro import after_dynamo  # as said above

        compiler: Any = self._torchdynamo_orig_backend
        return after_dynamo.wrap_backend_debug(compiler, self._compiler_name)(gm, inputs, **more)


def import_late(name: str) -> None:
    """From now on, import the minifier late for ``torch.compile(backend=name)``. Idempotent.

    Raises AttributeError, or another error, if this torch is built otherwise than the tested releases.
    """
    if not _names:  # two threads may replace it twice, which changes nothing
        eval_frame.get_compiler_fn = torch._dynamo.disable(_instead_of(eval_frame.get_compiler_fn))
    _names.add(name)


def _instead_of(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    # New in 2.15: backends may ask to be called here.
    announce = getattr(eval_frame, "_maybe_fire_backend_init", None)

    @functools.wraps(original)
    def get_compiler_fn(compiler_fn: Any) -> Any:
        ours = type(compiler_fn) is torch._TorchCompileWrapper and compiler_fn.compiler_name in _names
        if not ours or _MINIFIER in sys.modules:
            return original(compiler_fn)
        if announce is not None:
            announce(compiler_fn)
        return _Wrapped(compiler_fn, compiler_fn.compiler_name)

    return get_compiler_fn
