"""Static shapes of every kind: empty, large, strided, aliased; and changes of them in place."""

from __future__ import annotations

from typing import Any

import torch

from .registry import program


@program("pointwise")
def pointwise() -> Any:
    return lambda x, y: (x * 2 + y).relu().sum(-1), (torch.randn(8, 16, requires_grad=True), torch.randn(16))


@program("empty_tensors")
def empty_tensors() -> Any:
    return lambda x, y: (torch.cat([x, y]).sin(), x.sum(), x.new_empty(0, 3)), (torch.randn(0, 4), torch.randn(3, 4))


@program("channels_last")
def channels_last() -> Any:
    x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
    return lambda x: (x.relu() + 1, x * x.mean(1, keepdim=True)), (x,)


@program("expanded_input")
def expanded_input() -> Any:
    return lambda x: (x.sin(), x + x.t()), (torch.randn(5, 1).expand(5, 5),)


@program("overlapping_strides")
def overlapping_strides() -> Any:
    return lambda x: x.cos() * 2, (torch.randn(12).as_strided((4, 5), (2, 1)),)


@program("transposed_and_sliced_inputs")
def transposed_and_sliced_inputs() -> Any:
    return lambda x, y: x @ y + 1, (torch.randn(6, 8).t(), torch.randn(12, 10)[::2, 1:7])


@program("inputs_alias_each_other")
def inputs_alias_each_other() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    base = torch.randn(10)
    return f, (base[:6], base[4:])


@program("same_tensor_twice")
def same_tensor_twice() -> Any:
    x = torch.randn(5)
    return lambda x, y: x * y + x, (x, x)


@program("input_mutated")
def input_mutated() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        x[1:3] = y.sum()
        return x.sin() + y

    return f, (torch.randn(6), torch.randn(6))


@program("input_mutated_under_autograd")
def input_mutated_under_autograd() -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        x.add_(w.detach())
        return (x * w).sum()

    return f, (torch.randn(6), torch.randn(6, requires_grad=True))


@program("input_metadata_mutated")
def input_metadata_mutated() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.t_()
        x.unsqueeze_(0)
        return x * 2

    return f, (torch.randn(3, 4),)


@program("view_of_an_input_mutated")
def view_of_an_input_mutated() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.view(-1)[::2].zero_()
        return x.sum()

    return f, (torch.randn(4, 4),)


@program("copy_between_inputs")
def copy_between_inputs() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        x.copy_(y.flip(0))
        y.fill_(3)

    return f, (torch.randn(4), torch.randn(4))


@program("many_inputs")
def many_inputs() -> Any:
    def f(*xs: torch.Tensor) -> torch.Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    return f, tuple(torch.randn(4) for _ in range(250))


@program("many_steps")
def many_steps() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        for i in range(400):
            x = torch.sin(x) if i % 2 else x * 1.01
        return x

    return f, (torch.randn(16),)


@program("large_reduction")
def large_reduction() -> Any:
    return lambda x: (x.sum(), x.mean(0), x.amax(1), x.std(1), x.logsumexp(1)), (torch.randn(300, 700),)


@program("six_dimensions")
def six_dimensions() -> Any:
    return lambda x: x.permute(5, 0, 3, 1, 4, 2).contiguous().softmax(-1).sum((1, 3)), (torch.randn(2, 3, 2, 4, 2, 3),)


@program("broadcasting")
def broadcasting() -> Any:
    return lambda x, y, z: (x + y) * z, (torch.randn(4, 1, 3), torch.randn(5, 1), torch.tensor(2.0))


@program("stack_split_chunk_roll")
def stack_split_chunk_roll() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a, b = x.chunk(2, 1)
        c, d, e = x.split([1, 2, 3], 1)
        return torch.stack([a, b]), torch.cat([e, c, d], 1), x.roll(2, 1), x.unfold(1, 3, 2).sum(-1)

    return f, (torch.randn(4, 6),)


@program("pad_and_interpolate")
def pad_and_interpolate() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pad = torch.nn.functional.pad(x, (1, 2, 0, 1), mode="reflect")
        return pad, torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    return f, (torch.randn(1, 3, 6, 6),)


@program("raises_in_an_operator", raises=True)
def raises_in_an_operator() -> Any:
    return lambda x: torch.linalg.cholesky(x * 2) + 1, (-torch.eye(3),)


@program("raises_for_shapes", raises=True)
def raises_for_shapes() -> Any:
    return lambda x, y: (x @ y).sin(), (torch.randn(4, 3), torch.randn(4, 3))


@program("raises_value_error", raises=True)
def raises_value_error() -> Any:
    def f(x: torch.Tensor, how: str) -> torch.Tensor:
        y = x.sin()
        if how not in ("mean", "sum"):
            raise ValueError(f"no such reduction: {how}")
        return y.mean()

    return f, (torch.randn(4), "median")
