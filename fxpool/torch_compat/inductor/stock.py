"""Stock Inductor as a backend, through names that torch documents publicly as far as possible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch._dynamo  # first, see torch_compat
import torch._inductor as inductor

__all__ = ["compile_graph"]


def compile_graph(
    gm: torch.fx.GraphModule, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Compile as ``backend="inductor"`` does. Modes and options unknown to torch are left out."""
    known = set(inductor.list_options())
    patches = dict(inductor.list_mode_options().get(mode, {})) if mode else {}
    patches.update({name: value for name, value in (options or {}).items() if name.replace("-", "_") in known})
    return inductor.compile(gm, list(inputs), options=patches)
