"""Operators of which each part that runs during a compile notes torch's flags: in this process or in a worker."""

from __future__ import annotations

import json
from typing import Any

import torch
import torch_flags
from torch._inductor.decomposition import register_decomposition
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.virtualized import V

__all__ = ["compile_and_note", "note", "noted", "program"]

#: Point -> the flags there, when it was last reached.
noted: dict[str, dict[str, str]] = {}

_LIB = torch.library.Library("flag_probes", "DEF")
_NAMES = ("formula", "opaque", "decomposed", "lowered")
for _name in _NAMES:
    _LIB.define(f"{_name}(Tensor x) -> Tensor")
_ops: Any = torch.ops.flag_probes


def note(point: str) -> None:
    noted[point] = torch_flags.values()


@torch.library.impl(_LIB, "formula", "CompositeImplicitAutograd")
def _formula(x: torch.Tensor) -> torch.Tensor:
    note("formula")
    return x * 2.0


def _fake_opaque(x: torch.Tensor) -> torch.Tensor:
    note("fake rule")
    return torch.empty_like(x)


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    note("backward")
    return _ops.lowered(gradient)


for _name in _NAMES[1:]:
    torch.library.impl(_LIB, _name, "CompositeExplicitAutograd")(lambda x: x + 1)
    fake, of_gradient = (_fake_opaque, _backward) if _name == "opaque" else (torch.empty_like, lambda ctx, grad: grad)
    torch.library.register_fake(f"flag_probes::{_name}", fake, lib=_LIB)
    torch.library.register_autograd(f"flag_probes::{_name}", of_gradient, lib=_LIB)


@register_decomposition(_ops.decomposed.default)
def _decomposed(x: torch.Tensor) -> torch.Tensor:
    note("decomposition")
    return x + 1


@register_lowering(_ops.lowered.default)
def _lowered(x: Any) -> Any:
    note("lowering in the backward" if V.graph.is_backward else "lowering")
    return lowerings[torch.ops.aten.add.Tensor](x, 1)


def program(x: torch.Tensor) -> torch.Tensor:
    return _ops.lowered(_ops.formula(_ops.decomposed(_ops.opaque(x)))) + 1


def compile_and_note(payload: bytes) -> bytes:
    """Job: compile a request, and return `noted`, with the flags before and after."""
    from fxpool.lowering.worker import jobs

    note("before")
    jobs.compile_job(payload)
    note("after")
    return json.dumps(noted).encode()
