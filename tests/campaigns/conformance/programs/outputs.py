"""Results of every form, and Python around graphs: graph breaks, generators, threads."""

from __future__ import annotations

import collections
import dataclasses
import enum
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from .registry import Compile, program, script


class Pair(NamedTuple):
    """A result with names."""

    first: torch.Tensor
    second: torch.Tensor


@dataclasses.dataclass
class Both:
    """A result of a class of the user's, which pytree knows."""

    left: torch.Tensor
    right: torch.Tensor


pytree.register_pytree_node(Both, lambda both: ([both.left, both.right], None), lambda values, _: Both(*values))


class How(enum.Enum):
    """An argument other than a tensor."""

    SUM = "sum"
    MEAN = "mean"


@program("output_dict")
def output_dict() -> Any:
    return lambda x: {"a": x + 1, "b": {"c": [x * 2, x.sum()]}}, (torch.randn(4),)


@program("output_namedtuple")
def output_namedtuple() -> Any:
    return lambda x: Pair(x.sin(), x.cos()), (torch.randn(4),)


@program("output_dataclass")
def output_dataclass() -> Any:
    return lambda x: Both(x.sin(), x.cos()), (torch.randn(4),)


@program("output_ordered_dict")
def output_ordered_dict() -> Any:
    return lambda x: collections.OrderedDict(b=x * 2, a=x), (torch.randn(4),)


@program("output_none")
def output_none() -> Any:
    def f(x: torch.Tensor) -> None:
        x.add_(1)

    return f, (torch.randn(4),)


@program("output_with_none")
def output_with_none() -> Any:
    return lambda x: (None, x + 1, None, [None, x]), (torch.randn(4, requires_grad=True),)


@program("output_nothing_to_compute")
def output_nothing_to_compute() -> Any:
    return lambda x: (x, 3), (torch.randn(4),)


@program("output_same_twice")
def output_same_twice() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, y, y.view(2, 2)

    return f, (torch.randn(4),)


@program("output_is_an_input")
def output_is_an_input() -> Any:
    return lambda x, y: (x, y * 2, x.t()), (torch.randn(3, 4), torch.randn(4))


@program("output_view_of_an_input_with_gradients")
def output_view_of_an_input_with_gradients() -> Any:
    return lambda x: (x.view(-1)[2:5], x * 2), (torch.randn(3, 4, requires_grad=True),)


@program("output_view_of_a_mutated_input")
def output_view_of_a_mutated_input() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x[1:]

    return f, (torch.randn(4),)


@program("output_empty")
def output_empty() -> Any:
    return lambda x: (x[:0] * 2, x.new_zeros(0, 3) + 1), (torch.randn(4),)


@program("output_scalars")
def output_scalars() -> Any:
    return lambda x: (x.sum(), x.shape[0], 2.5, "text", True, x.dtype, x.mean(0)), (torch.randn(4),)


@program("output_item")
def output_item() -> Any:
    return lambda x: (x.sum().item(), x * 2), (torch.ones(4),)


@program("output_complex")
def output_complex() -> Any:
    return lambda x: (torch.complex(x, x * 2), torch.polar(x.abs(), x)), (torch.randn(4),)


@program("output_strided")
def output_strided() -> Any:
    return lambda x: ((x + 1).t(), (x * 2)[:, ::2], x.sin().permute(1, 0)), (torch.randn(4, 6),)


@program("output_expanded")
def output_expanded() -> Any:
    return lambda x: (x.sin().expand(3, 4), x.expand(2, 4)), (torch.randn(1, 4),)


@program("output_channels_last")
def output_channels_last() -> Any:
    return lambda x: x.to(memory_format=torch.channels_last) * 2, (torch.randn(2, 3, 4, 4),)


@program("output_as_strided")
def output_as_strided() -> Any:
    return lambda x: (x + 1).as_strided((3, 3), (2, 1)), (torch.randn(8),)


@program("output_constants")
def output_constants() -> Any:
    return lambda x: (torch.arange(5), torch.full((2, 2), 3.5), torch.tensor([1, 2]) * 2, x + 1), (torch.randn(2),)


@program("output_detached")
def output_detached() -> Any:
    return lambda x: (x.sin().detach(), x.cos()), (torch.randn(4, requires_grad=True),)


@program("output_single_list")
def output_single_list() -> Any:
    return lambda xs: [x * 2 for x in xs], ([torch.randn(2), torch.randn(3)],)


@program("no_tensor_arguments")
def no_tensor_arguments() -> Any:
    return lambda n: torch.ones(n) * n, (5,)


@program("scalars_as_arguments")
def scalars_as_arguments() -> Iterator[Any]:
    def f(x: torch.Tensor, i: int, r: float) -> torch.Tensor:
        return x * i + r

    yield f, (torch.randn(4), 2, 0.5)
    yield f, (torch.randn(4), 3, 1.5)
    yield f, (torch.randn(4), 4, 2.5)


@program("strings_and_enums")
def strings_and_enums() -> Iterator[Any]:
    def f(x: torch.Tensor, how: How, name: str) -> torch.Tensor:
        return (x.sum() if how is How.SUM else x.mean()) * (2 if name == "double" else 1)

    yield f, (torch.randn(4), How.SUM, "double")
    yield f, (torch.randn(4), How.MEAN, "single")


@program("nested_arguments")
def nested_arguments() -> Any:
    return lambda d: d["a"][0] * d["b"]["c"] + len(d["a"]), ({"a": [torch.randn(3), 1], "b": {"c": torch.randn(3)}},)


@program("tensor_of_zero_dimensions")
def tensor_of_zero_dimensions() -> Any:
    return lambda x, y: (x * y, y + 1, y.sin()), (torch.randn(3), torch.tensor(2.0, requires_grad=True))


@program("graph_break")
def graph_break() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return (y * 2).cos()

    return f, (torch.randn(4, requires_grad=True),)


@program("data_dependent_branch")
def data_dependent_branch() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y.sin() if y.sum() > 0 else y.cos()

    yield f, (torch.ones(4),)
    yield f, (-torch.ones(4),)


@program("try_and_except")
def try_and_except() -> Any:
    def f(x: torch.Tensor, d: dict[str, int]) -> torch.Tensor:
        try:
            return x * d["missing"]
        except KeyError:
            return x.sin() + len(d)

    return f, (torch.randn(4), {"there": 1})


@program("generator")
def generator() -> Any:
    def parts(x: torch.Tensor) -> Iterator[torch.Tensor]:
        for i in range(3):
            yield x * i

    return lambda x: sum(parts(x.sin())), (torch.randn(4),)


@program("comprehensions_and_sorting")
def comprehensions_and_sorting() -> Any:
    def f(xs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: x * i for i, (name, x) in enumerate(sorted(xs.items(), reverse=True))}

    return f, ({"a": torch.randn(2), "b": torch.randn(2)},)


@program("recompiles_for_dtypes")
def recompiles_for_dtypes() -> Iterator[Any]:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    for dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        yield f, (torch.arange(6).to(dtype),)


_level = 3
_table = torch.arange(4.0)


@program("module_globals")
def module_globals() -> Any:
    return lambda x: x * _level + _table, (torch.randn(4),)


@script("threads")
def threads(compiling: Compile) -> Any:
    functions = [compiling(f) for f in (torch.sin, lambda x: x.cos() * 2, lambda x: x.tan() + 1)]
    found: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        found[number] = functions[number](torch.linspace(0, 1, 8))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return dict(sorted(found.items()))


@script("compiled_inside_compiled")
def compiled_inside_compiled(compiling: Compile) -> Any:
    inner = compiling(lambda x: x.sin() * 2)
    return compiling(lambda x: inner(x) + inner(x + 1))(torch.ones(4))


@script("reset_and_again")
def reset_and_again(compiling: Compile) -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    first = compiling(f)(torch.ones(4))
    torch._dynamo.reset()
    return first, compiling(f)(torch.ones(4))


@script("results_outlive_later_calls")
def results_outlive_later_calls(compiling: Compile) -> Any:
    f = compiling(lambda x: x * 2 + 1)
    return [f(torch.full((4,), float(number))) for number in range(3)]
