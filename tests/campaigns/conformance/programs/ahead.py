"""Graphs that were not made by calling: exported programs, traced graphs; and what is around compiled code."""

from __future__ import annotations

import io
import warnings
from typing import Any

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from .registry import Compile, program, script


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@program("exported")
def exported() -> Any:
    return torch.export.export(_net(), (torch.randn(3, 4),)).module(), (torch.randn(3, 4),)


@program("exported_dynamic")
def exported_dynamic() -> Any:
    batch = torch.export.Dim("batch", min=2, max=64)
    program_ = torch.export.export(_net(), (torch.randn(3, 4),), dynamic_shapes=({0: batch},))
    return program_.module(), (torch.randn(5, 4),)


@program("exported_decomposed")
def exported_decomposed() -> Any:
    return torch.export.export(_net(), (torch.randn(3, 4),)).run_decompositions().module(), (torch.randn(3, 4),)


@script("exported_saved_loaded")
def exported_saved_loaded(compiling: Compile) -> Any:
    file = io.BytesIO()
    torch.export.save(torch.export.export(_net(), (torch.ones(3, 4),)), file)
    file.seek(0)
    return compiling(torch.export.load(file).module())(torch.ones(3, 4))


@program("exported_with_mutated_buffer")
def exported_with_mutated_buffer() -> Any:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return x + self.calls

    return torch.export.export(Net(), (torch.randn(2),)).module(), (torch.randn(2),)


@program("symbolically_traced")
def symbolically_traced() -> Any:
    return torch.fx.symbolic_trace(_net()), (torch.randn(3, 4),)


@program("made_fx")
def made_fx() -> Any:
    return make_fx(lambda x: x.sin() @ x.t())(torch.randn(3, 4)), (torch.randn(3, 4),)


@program("scripted", strides=False)
def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inner = torch.jit.trace(_net(), (torch.randn(3, 4),))
    return lambda x: inner(x) + 1, (torch.randn(3, 4),)


@script("explained_and_compiled")
def explained_and_compiled(compiling: Compile) -> Any:
    net = _net()
    graphs = torch._dynamo.explain(net)(torch.ones(3, 4)).graph_count
    torch._dynamo.reset()
    return graphs, compiling(net)(torch.ones(3, 4))


@script("compiled_then_exported")
def compiled_then_exported(compiling: Compile) -> Any:
    net = _net()
    first = compiling(net)(torch.ones(3, 4))
    return first, torch.export.export(net, (torch.ones(3, 4),)).module()(torch.ones(3, 4))


@script("compiled_as_a_decorator")
def compiled_as_a_decorator(compiling: Compile) -> Any:
    @compiling
    def f(x: torch.Tensor, *, scale: float = 2.0) -> torch.Tensor:
        return x.sin() * scale

    return f(torch.ones(4)), f(torch.ones(4), scale=3.0)


@script("state_loaded_after_compiling")
def state_loaded_after_compiling(compiling: Compile) -> Any:
    net, other = _net(), _net()
    compiled = compiling(net)
    first = compiled(torch.ones(3, 4))
    net.load_state_dict(other.state_dict())
    second = compiled(torch.ones(3, 4))
    net[0].weight = nn.Parameter(torch.zeros(8, 4))
    return first, second, compiled(torch.ones(3, 4))


@script("double_after_compiling")
def double_after_compiling(compiling: Compile) -> Any:
    net = _net()
    compiled = compiling(net)
    first = compiled(torch.ones(3, 4))
    net.double()
    return first, compiled(torch.ones(3, 4, dtype=torch.float64))


@script("compiled_blocks")
def compiled_blocks(compiling: Compile) -> Any:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))
    x = torch.ones(2, 4)
    for block in blocks:
        x = compiling(block)(x)
    x.sum().backward()
    return x, [p.grad for p in blocks.parameters()]


@script("cudagraph_marks_and_clones")
def cudagraph_marks_and_clones(compiling: Compile) -> Any:
    f = compiling(lambda x: x.sin() + 1, mode="reduce-overhead")
    found = []
    for _ in range(3):
        torch.compiler.cudagraph_mark_step_begin()
        found.append(f(torch.ones(4)).clone())
    return found


@script("artifacts_saved")
def artifacts_saved(compiling: Compile) -> Any:
    out = compiling(lambda x: x.sin() * 5)(torch.ones(4))
    eagerly = not hasattr(compiling, "keywords")
    return out, eagerly or torch.compiler.save_cache_artifacts() is not None


@script("fresh_cache")
def fresh_cache(compiling: Compile) -> Any:
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        return compiling(lambda x: x.sin() * 6)(torch.ones(4))


@script("aot_compiled")
def aot_compiled(compiling: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 7

    with torch._dynamo.config.patch(enable_aot_compile=True):
        compiled = compiling(f, fullgraph=True)
        if hasattr(compiled, "aot_compile"):
            compiled = compiled.aot_compile(((torch.ones(4),), {}))
        return compiled(torch.ones(4))


@script("caches_disabled")
def caches_disabled(compiling: Compile) -> Any:
    with torch._inductor.config.patch(force_disable_caches=True):
        return compiling(lambda x: x.sin() * 8)(torch.ones(4))
