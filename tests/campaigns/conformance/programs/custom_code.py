"""Operators, passes and other code of users, defined in all the places where users define it."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass

from .registry import Compile, program, script


@torch.library.custom_op("conformance::scaled", mutates_args=())
def _scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


@_scaled.register_fake
def _(x: torch.Tensor, factor: float) -> torch.Tensor:
    return torch.empty_like(x)


_scaled.register_autograd(
    lambda ctx, grad: (grad * ctx.factor * 2, None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
)


@torch.library.custom_op("conformance::bump_", mutates_args={"x"})
def _bump(x: torch.Tensor, by: int) -> None:
    x.add_(by)


@torch.library.custom_op("conformance::halves", mutates_args=())
def _halves(x: torch.Tensor) -> list[torch.Tensor]:
    return [part.clone() for part in x.chunk(2)]


@_halves.register_fake
def _(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(part) for part in x.chunk(2)]


@torch.library.custom_op("conformance::positives", mutates_args=())
def _positives(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0].clone()


@_positives.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


_library = torch.library.Library("conformance_low", "DEF")
_library.define("shifted(Tensor x, int by=1, *, bool twice=False) -> Tensor")


def _shifted(x: torch.Tensor, by: int = 1, *, twice: bool = False) -> torch.Tensor:
    return x + by * (2 if twice else 1)


_library.impl("shifted", _shifted, "CompositeExplicitAutograd")
_library.impl("shifted", lambda x, by=1, *, twice=False: torch.empty_like(x), "Meta")
_library.define("composite(Tensor x) -> Tensor")
_library.impl("composite", lambda x: x.sin() + x.cos(), "CompositeImplicitAutograd")


@program("custom_op")
def custom_op() -> Any:
    return lambda x: _scaled(x.sin(), 3.0) + 1, (torch.randn(4),)


@program("custom_op_autograd")
def custom_op_autograd() -> Any:
    return lambda x: _scaled(x.sin(), 3.0) + 1, (torch.randn(4, requires_grad=True),)


@program("custom_op_mutating")
def custom_op_mutating() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        _bump(y, 3)
        _bump(x, 1)
        return y + x

    return f, (torch.randn(4),)


@program("custom_op_of_a_list")
def custom_op_of_a_list() -> Any:
    return lambda x: [part * 2 for part in _halves(x)], (torch.randn(6, 2),)


@script("custom_op_of_unknown_size")
def custom_op_of_unknown_size(compiling: Compile) -> Any:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        return compiling(lambda x: _positives(x) * 2)(torch.tensor([1.0, -1.0, 2.0]))


@program("custom_op_of_a_library")
def custom_op_of_a_library() -> Any:
    shifted = torch.ops.conformance_low.shifted
    return lambda x: shifted(x, 2, twice=True) * shifted(x), (torch.randn(4),)


@program("custom_op_composite")
def custom_op_composite() -> Any:
    return lambda x: torch.ops.conformance_low.composite(x) * 2, (torch.randn(4, requires_grad=True),)


_local: dict[str, Any] = {}


@program("custom_op_in_a_function")
def custom_op_in_a_function() -> Any:
    if "op" not in _local:

        @torch.library.custom_op("conformance_local::tripled", mutates_args=())
        def tripled(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        tripled.register_fake(lambda x: torch.empty_like(x))
        _local["op"] = tripled
    op = _local["op"]
    return lambda x: op(x) + 1, (torch.randn(4),)


@program("custom_op_in_a_module")
def custom_op_in_a_module() -> Any:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return _scaled(self.linear(x), 0.5).sum()

    return Net(), (torch.randn(2, 4),)


@torch.compiler.allow_in_graph
def _allowed(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


@program("allow_in_graph")
def allow_in_graph() -> Any:
    return lambda x: _allowed(x) + 1, (torch.randn(4, requires_grad=True),)


@program("allow_in_graph_lambda")
def allow_in_graph_lambda() -> Any:
    inner = torch.compiler.allow_in_graph(lambda x: x.cos() * 3)
    return lambda x: inner(x) + 1, (torch.randn(4),)


@torch._dynamo.nonstrict_trace
def _nonstrict(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + 1


@program("nonstrict_trace")
def nonstrict_trace() -> Any:
    return lambda x: _nonstrict(x.sin(), x), (torch.randn(4),)


@program("disabled_function")
def disabled_function() -> Any:
    @torch.compiler.disable
    def eager(x: torch.Tensor) -> torch.Tensor:
        return x + len(x)

    return lambda x: eager(x.sin()).cos(), (torch.randn(4),)


@program("assume_constant_result")
def assume_constant_result() -> Any:
    @torch.compiler.assume_constant_result
    def number() -> int:
        return 7

    return lambda x: x * number(), (torch.randn(4),)


class AddOne(CustomGraphPass):
    """Adds one wherever a sine is taken: a pass whose effect can be seen."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            node.target = torch.ops.aten.cos.default

    def uuid(self) -> Any:
        return "conformance AddOne 1"


class Undoing(AddOne):
    """The opposite, so that what both do together is what eager execution gives."""

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=torch.ops.aten.cos.default):
            node.target = torch.ops.aten.sin.default

    def uuid(self) -> Any:
        return "conformance Undoing 1"


@program("pass_with_uuid", options={"post_grad_custom_pre_pass": AddOne(), "post_grad_custom_post_pass": Undoing()})
def pass_with_uuid() -> Any:
    return lambda x: x.sin() * 2, (torch.randn(4),)


@program("joint_pass_with_uuid", options={"joint_custom_pre_pass": AddOne(), "joint_custom_post_pass": Undoing()})
def joint_pass_with_uuid() -> Any:
    return lambda x: x.sin() * 2, (torch.randn(4),)


def _identity_pass(graph: torch.fx.Graph) -> None:
    graph.lint()


@program("pass_without_uuid", options={"post_grad_custom_post_pass": _identity_pass})
def pass_without_uuid() -> Any:
    return lambda x: x.tan() * 2, (torch.randn(4),)


@script("lowering_of_an_operator")
def lowering_of_an_operator(compiling: Compile) -> Any:
    from torch._inductor import lowering

    op = torch.ops.conformance_low.shifted.default
    lowering.lowerings[op] = lambda x, by=1, *, twice=False: lowering.lowerings[torch.ops.aten.add.Tensor](x, by)
    try:
        return compiling(lambda x: torch.ops.conformance_low.shifted(x, 2).sin())(torch.ones(4))
    finally:
        del lowering.lowerings[op]


@script("fallback_of_an_operator")
def fallback_of_an_operator(compiling: Compile) -> Any:
    from torch._inductor import lowering

    op = torch.ops.conformance_low.shifted.default
    lowering.make_fallback(op)
    try:
        return compiling(lambda x: torch.ops.conformance_low.shifted(x, 3).sin())(torch.ones(4))
    finally:
        del lowering.lowerings[op]


@script("decomposition_of_the_user")
def decomposition_of_the_user(compiling: Compile) -> Any:
    from torch._inductor import decomposition

    op = torch.ops.conformance_low.shifted.default
    decomposition.decompositions[op] = lambda x, by=1, *, twice=False: x + by
    try:
        return compiling(lambda x: torch.ops.conformance_low.shifted(x, 4).sin())(torch.ones(4))
    finally:
        del decomposition.decompositions[op]


class _Holder:
    def __init__(self, size: int) -> None:
        self.size = size


@program("objects_as_arguments")
def objects_as_arguments() -> Any:
    return lambda x, holder: x * holder.size, (torch.randn(4), _Holder(3))


@program("torch_function_mode_subclass")
def torch_function_mode_subclass() -> Any:
    class Doubling(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            return out * 2 if func is torch.sin else out

    def f(x: torch.Tensor) -> torch.Tensor:
        with Doubling():
            return torch.sin(x) + 1

    return f, (torch.randn(4),)
