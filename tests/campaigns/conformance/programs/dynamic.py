"""Dynamic shapes: marked, automatic, and such as only the data tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .registry import Compile, program, script


@program("dynamic_true", dynamic=True)
def dynamic_true() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.t()).softmax(-1) * x.shape[0]

    for size in (4, 7, 12):
        yield f, (torch.randn(size, 3),)


@program("dynamic_automatic")
def dynamic_automatic() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin().sum(0) + x.shape[0]

    for size in (4, 7, 12, 1):
        yield f, (torch.randn(size, 3),)


@program("dynamic_false", dynamic=False)
def dynamic_false() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1).cos()

    for size in (4, 7):
        yield f, (torch.randn(size, 3),)


def _marked(x: torch.Tensor, *dims: int, **limits: int) -> torch.Tensor:
    for dim in dims:
        torch._dynamo.mark_dynamic(x, dim, **limits)
    return x


@program("dynamic_marked")
def dynamic_marked() -> Iterator[Any]:
    net = torch.nn.Linear(4, 2)
    for size in (3, 8):
        yield net, (_marked(torch.randn(size, 4), 0),)


@program("dynamic_marked_with_limits")
def dynamic_marked_with_limits() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1, 2).sum(-1)

    for size in (4, 8):
        yield f, (_marked(torch.randn(size, 6), 0, min=2, max=64),)


@program("dynamic_training", dynamic=True)
def dynamic_training() -> Iterator[Any]:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    for size in (3, 5):
        yield net, (torch.randn(size, 4, requires_grad=True),)


@program("dynamic_branch_on_size", dynamic=True)
def dynamic_branch_on_size() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] > 5 else x.cos() * x.shape[0]

    for size in (3, 9, 4):
        yield f, (torch.randn(size),)


@program("dynamic_arithmetic", dynamic=True)
def dynamic_arithmetic() -> Iterator[Any]:
    def f(x: torch.Tensor, n: int) -> Any:
        half = x.shape[0] // 2
        return x[:half] * n, torch.arange(x.shape[0] + n), x.new_zeros(half, n), half + n

    for size, n in ((6, 2), (10, 3)):
        yield f, (torch.randn(size), n)


@program("dynamic_float", dynamic=True)
def dynamic_float() -> Iterator[Any]:
    def f(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale + scale**2

    for scale in (0.5, 1.5, 2.5):
        yield f, (torch.randn(4), scale)


@program("dynamic_cat_and_split", dynamic=True)
def dynamic_cat_and_split() -> Iterator[Any]:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        z = torch.cat([x, y])
        return z.split([x.shape[0], y.shape[0]]), z.sum()

    for a, b in ((3, 4), (5, 2)):
        yield f, (torch.randn(a), torch.randn(b))


@program("dynamic_convolution", dynamic=True)
def dynamic_convolution() -> Iterator[Any]:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1))
    for size in (6, 9):
        yield net, (torch.randn(2, 3, size, size),)


@program("dynamic_attention", dynamic=True)
def dynamic_attention() -> Iterator[Any]:
    def f(q: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    for length in (5, 8):
        yield f, (torch.randn(1, 2, length, 8),)


@program("dynamic_input_mutated", dynamic=True)
def dynamic_input_mutated() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:].add_(x.shape[0])
        return x[:-1] * 2

    for size in (4, 6):
        yield f, (torch.randn(size),)


@script("unbacked_item")
def unbacked_item(compiling: Compile) -> Any:
    def f(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        size = n.item()
        torch._check(size >= 2)
        torch._check(size <= 100)
        return torch.ones(size) * x.sum()

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = compiling(f)
        return [compiled(torch.ones(3), torch.tensor(n)) for n in (4, 7)]


@script("unbacked_nonzero")
def unbacked_nonzero(compiling: Compile) -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = compiling(lambda x: (x.nonzero() * 2, x[x > 0].sum()))
        return [compiled(torch.tensor(values)) for values in ([1.0, 0.0, 2.0], [0.0, -1.0, 3.0, 4.0])]


@script("unbacked_marked")
def unbacked_marked(compiling: Compile) -> Any:
    compiled, found = compiling(lambda x: x.sin().sum(-1) * 2), []
    for size in (3, 5):
        x = torch.ones(size, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        found.append(compiled(x))
    return found


@script("unbacked_repeat_interleave")
def unbacked_repeat_interleave(compiling: Compile) -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return compiling(lambda x, n: x.repeat_interleave(n) + 1)(torch.arange(3.0), torch.tensor([2, 0, 3]))


@script("unbacked_float_item")
def unbacked_float_item(compiling: Compile) -> Any:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = compiling(lambda x, s: x * s.item() + 1)
        return [compiled(torch.ones(3), torch.tensor(s)) for s in (0.5, 1.5)]


@script("maybe_marked")
def maybe_marked(compiling: Compile) -> Any:
    compiled, found = compiling(lambda x: x.exp() * x.shape[0]), []
    for size in (3, 5):
        x = torch.ones(size, 4)
        torch._dynamo.maybe_mark_dynamic(x, 0)
        torch._dynamo.mark_static(x, 1)
        found.append(compiled(x))
    return found


@script("dynamic_sources")
def dynamic_sources(compiling: Compile) -> Any:
    with torch.compiler.config.patch(dynamic_sources="L['x']"):
        compiled = compiling(lambda x: x.sin() + x.shape[0])
        return [compiled(torch.ones(size)) for size in (3, 6)]


@script("duck_shapes_off")
def duck_shapes_off(compiling: Compile) -> Any:
    with torch.fx.experimental._config.patch(use_duck_shape=False):
        compiled = compiling(lambda x, y: x.sum() + y, dynamic=True)
        return [compiled(torch.ones(a), torch.ones(b)) for a, b in ((4, 4), (4, 6))]


@program("long_sequence_of_sizes")
def long_sequence_of_sizes() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(0) / (x.shape[0] + 1)

    for size in range(2, 12):
        yield f, (torch.randn(size),)
