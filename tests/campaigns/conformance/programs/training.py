"""Training: optimizers, checkpoints, functions with their own gradients, hooks, autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint as checkpoints

from .registry import Compile, program, script


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def _steps(compiling: Compile, optimizer: torch.optim.Optimizer, net: nn.Module, steps: int = 3) -> Any:
    """Parameters after some steps of a compiled optimizer, the model's gradients being eager's."""
    step = compiling(lambda: optimizer.step())
    for number in range(steps):
        optimizer.zero_grad()
        net(torch.full((3, 6), 0.1 * (number + 1))).square().sum().backward()
        step()
    return list(net.parameters())


@script("sgd_compiled")
def sgd_compiled(compiling: Compile) -> Any:
    net = _net()
    return _steps(compiling, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True), net)


@script("adam_compiled")
def adam_compiled(compiling: Compile) -> Any:
    net = _net()
    return _steps(compiling, torch.optim.Adam(net.parameters(), lr=0.01), net)


@script("adamw_compiled_tensor_lr")
def adamw_compiled_tensor_lr(compiling: Compile) -> Any:
    net = _net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=torch.tensor(0.01), capturable=False)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    first = [p.clone() for p in _steps(compiling, optimizer, net, 2)]
    scheduler.step()
    return first, _steps(compiling, optimizer, net, 2)


@script("training_loop")
def training_loop(compiling: Compile) -> Any:
    net = _net()
    compiled, optimizer = compiling(net), torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for number in range(4):
        loss = compiled(torch.full((5, 6), 0.2 * number)).square().mean()
        loss.backward()
        if number % 2:  # gradients of two steps
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss)
    return losses, list(net.parameters())


@script("clipped_gradients")
def clipped_gradients(compiling: Compile) -> Any:
    net = _net()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().sum()
        loss.backward()
        return nn.utils.clip_grad_norm_(net.parameters(), 0.1)

    return compiling(step)(torch.ones(3, 6)), [p.grad for p in net.parameters()]


@program("checkpoint")
def checkpoint() -> Any:
    net = _net()
    return lambda x: checkpoints.checkpoint(net, x, use_reentrant=False).sum(), (torch.randn(3, 6, requires_grad=True),)


@program("checkpoint_with_dropout", options={"fallback_random": True})
def checkpoint_with_dropout() -> Any:
    net = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    return lambda x: checkpoints.checkpoint(net, x, use_reentrant=False) * 2, (torch.randn(3, 6, requires_grad=True),)


def _save_products(ctx: Any, op: Any, *args: Any, **named: Any) -> checkpoints.CheckpointPolicy:
    saved = op is torch.ops.aten.mm.default
    return checkpoints.CheckpointPolicy.MUST_SAVE if saved else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE


def _selective() -> Any:
    return checkpoints.create_selective_checkpoint_contexts(_save_products)


def _selective_known() -> Any:
    return _selective()


_selective_known.cache_hash = "conformance selective 1"  # type: ignore[attr-defined]


def _two_products(context: Any) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        def block(x: torch.Tensor) -> torch.Tensor:
            return ((x @ w).sin() @ w).cos()

        return checkpoints.checkpoint(block, x, use_reentrant=False, context_fn=context)

    return f, (torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True))


@program("checkpoint_selective")
def checkpoint_selective() -> Any:
    return _two_products(_selective)


@program("checkpoint_selective_cache_hash")
def checkpoint_selective_cache_hash() -> Any:
    return _two_products(_selective_known)


class _Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * 30 * x * x  # ten times too much, to see that it is this that runs


@program("autograd_function")
def autograd_function() -> Any:
    return lambda x: _Cube.apply(x.sin()).sum(), (torch.randn(4, requires_grad=True),)


@program("autograd_function_local")
def autograd_function_local() -> Any:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return grad * ctx.factor * 2, None

    return lambda x: Scale.apply(x, 3.0) + 1, (torch.randn(4, requires_grad=True),)


@program("autograd_function_no_grad_input")
def autograd_function_no_grad_input() -> Any:
    return lambda x: _Cube.apply(x) + 1, (torch.randn(4),)


@program("tensor_hook_in_graph")
def tensor_hook_in_graph() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        y.register_hook(lambda grad: grad * 3)
        return y * 2

    return f, (torch.randn(4, requires_grad=True),)


@script("tensor_hook_outside")
def tensor_hook_outside(compiling: Compile) -> Any:
    x = torch.ones(4, requires_grad=True)
    x.register_hook(lambda grad: grad * 3)
    out = compiling(lambda x: x.sin() * 2)(x)
    out.register_hook(lambda grad: grad + 1)
    out.sum().backward()
    return out, x.grad


@script("double_backward_by_eager")
def double_backward_by_eager(compiling: Compile) -> Any:
    x = torch.ones(4, requires_grad=True)

    def penalty(x: torch.Tensor) -> torch.Tensor:
        (grad,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        return grad.square().sum()

    value = compiling(torch.func.grad(lambda x: torch.func.grad(lambda y: (y**3).sum())(x).square().sum()))(x.detach())
    return penalty(x), value


@script("save_on_cpu")
def save_on_cpu(compiling: Compile) -> Any:
    x = torch.ones(4, requires_grad=True)
    f = compiling(lambda x: (x.sin() * x.cos()).sum())
    with torch.autograd.graph.save_on_cpu():
        out = f(x)
    out.backward()
    return out, x.grad


@script("saved_tensor_hooks")
def saved_tensor_hooks(compiling: Compile) -> Any:
    x = torch.ones(4, 4, requires_grad=True)
    f = compiling(lambda x: ((x @ x).sin() @ x).sum())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        out = f(x)
    out.backward()
    return out, x.grad


@script("memory_budget")
def memory_budget(compiling: Compile) -> Any:
    x = torch.linspace(0, 1, 64).reshape(8, 8).requires_grad_()
    with torch._functorch.config.patch(activation_memory_budget=0.3):
        out = compiling(lambda x: ((x @ x).sin() @ x).cos().exp().sum())(x)
        out.backward()
    return out, x.grad


@script("autocast_forward_backward")
def autocast_forward_backward(compiling: Compile) -> Any:
    net = _net()
    compiled = compiling(net)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = compiled(torch.ones(3, 6))
    out.float().sum().backward()
    return out, [p.grad for p in net.parameters()]


@program("autocast_inside")
def autocast_inside() -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y, y.float() @ w

    return f, (torch.randn(4, 4, requires_grad=True), torch.randn(4, 4))


@program("bf16_training")
def bf16_training() -> Any:
    return _net().bfloat16(), (torch.randn(3, 6, dtype=torch.bfloat16),)


@script("compiled_autograd")
def compiled_autograd(compiling: Compile) -> Any:
    net = _net()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).square().sum()
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):
        loss = compiling(step)(torch.ones(3, 6))
    return loss, [p.grad for p in net.parameters()]


@script("gradients_of_some_outputs")
def gradients_of_some_outputs(compiling: Compile) -> Any:
    x, y = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    a, b, c = compiling(lambda x, y: (x * 2, (y * 3).detach(), x.sin() * y))(x, y)
    a.sum().backward(retain_graph=True)
    c.sum().backward()
    return a, b, c, x.grad, y.grad, b.requires_grad


@script("retain_graph_twice")
def retain_graph_twice(compiling: Compile) -> Any:
    x = torch.linspace(0, 1, 5).requires_grad_()
    # No buffer may be given away where the graph is gone through again.
    with torch._functorch.config.patch(donated_buffer=False):
        out = compiling(lambda x: x.sin().exp().sum())(x)
        out.backward(retain_graph=True)
        out.backward()
    return out, x.grad


@program("train_then_eval")
def train_then_eval() -> Iterator[Any]:
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    yield net, (torch.randn(6, 4),)
    net.eval()
    yield net, (torch.randn(6, 4),)


@script("no_grad_then_grad")
def no_grad_then_grad(compiling: Compile) -> Any:
    net = _net()
    compiled = compiling(net)
    with torch.no_grad():
        first = compiled(torch.ones(3, 6))
    second = compiled(torch.ones(3, 6))
    second.sum().backward()
    with torch.inference_mode():
        third = compiled(torch.ones(3, 6)).clone()
    return first, second, [p.grad for p in net.parameters()], third.sum().item()


@program("no_grad_inside")
def no_grad_inside() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = x * 2
        with torch.enable_grad():
            z = x * y
        return y, z

    return f, (torch.randn(4, requires_grad=True),)


@program("dict_of_parameters")
def dict_of_parameters() -> Any:
    weights = {"w": torch.randn(4, 2, requires_grad=True), "b": torch.zeros(2, requires_grad=True)}
    return lambda p, x: (x @ p["w"] + p["b"]).square().mean(), (weights, torch.randn(3, 4))
