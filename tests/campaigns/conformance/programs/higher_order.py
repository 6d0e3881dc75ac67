"""Higher-order operators and the transforms of torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import associative_scan, out_dtype, scan
from torch._higher_order_ops import map as mapped
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention import flex_attention as flex

from .registry import program


@program("hop_cond")
def hop_cond() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos() * 2, (x,))

    return f, (torch.ones(4),)


@program("hop_cond_gradients")
def hop_cond_gradients() -> Any:
    def f(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(p, lambda x: x.sin() * x, lambda x: x.exp(), (x,)).sum()

    return f, (torch.tensor(False), torch.randn(4, requires_grad=True))


@program("hop_while_loop")
def hop_while_loop() -> Any:
    def f(n: torch.Tensor, x: torch.Tensor) -> Any:
        return while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x * 1.5 + 1), (n, x))

    return f, (torch.tensor(4), torch.randn(3))


@program("hop_map")
def hop_map() -> Any:
    return lambda xs, y: mapped(lambda x, y: x.sin() + y, xs, y), (torch.randn(3, 4), torch.randn(4))


@program("hop_scan")
def hop_scan() -> Any:
    def f(init: torch.Tensor, xs: torch.Tensor) -> Any:
        return scan(lambda carry, x: (carry * 0.5 + x, carry + x), init, xs, dim=0)

    return f, (torch.zeros(4), torch.randn(3, 4))


@program("hop_associative_scan")
def hop_associative_scan() -> Any:
    return lambda x: associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic"), (torch.randn(5, 3),)


def _causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def _qkv() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(1, 2, 128, 16) for _ in range(3))


@program("hop_flex_attention")
def hop_flex_attention() -> Any:
    return lambda q, k, v: flex.flex_attention(q, k, v), _qkv()


@program("hop_flex_attention_score_mod")
def hop_flex_attention_score_mod() -> Any:
    def bias(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + (q - kv) * 0.01

    return lambda q, k, v: flex.flex_attention(q, k, v, score_mod=bias), _qkv()


@program("hop_flex_attention_block_mask")
def hop_flex_attention_block_mask() -> Any:
    mask = flex.create_block_mask(_causal, None, None, 128, 128, device="cpu")
    return lambda q, k, v: flex.flex_attention(q, k, v, block_mask=mask), _qkv()


@program("hop_flex_attention_captured_tensor")
def hop_flex_attention_captured_tensor() -> Any:
    slopes = torch.tensor([0.1, 0.2])

    def bias(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score - slopes[h] * (q - kv)

    return lambda q, k, v: flex.flex_attention(q, k, v, score_mod=bias), _qkv()


@torch.compiler.nested_compile_region
def _region(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).relu() + 1


@program("hop_nested_compile_region")
def hop_nested_compile_region() -> Any:
    w = torch.randn(4, 4, requires_grad=True)
    return lambda x, w: _region(_region(x, w), w).sum(), (torch.randn(3, 4), w)


@program("hop_out_dtype")
def hop_out_dtype() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return out_dtype(torch.ops.aten.mm.default, torch.int32, x, y) + 1

    return f, (torch.randint(-9, 9, (8, 8), dtype=torch.int8), torch.randint(-9, 9, (8, 8), dtype=torch.int8))


@program("asserts_in_graph")
def asserts_in_graph() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.shape[0] > 2)
        torch._assert_async((x.sum() > -100).reshape(()))
        return x * 2

    return f, (torch.ones(4),)


@program("func_vmap")
def func_vmap() -> Any:
    return lambda x, y: torch.vmap(lambda a, b: a.dot(b).sin(), in_dims=(0, 1))(x, y), (
        torch.randn(3, 4),
        torch.randn(4, 3),
    )


@program("func_vmap_randomness", options={"fallback_random": True})
def func_vmap_randomness() -> Any:
    return lambda x: torch.vmap(lambda a: a + torch.rand(4), randomness="different")(x), (torch.randn(3, 4),)


@program("func_grad")
def func_grad() -> Any:
    return lambda x: torch.func.grad(lambda x: (x.sin() ** 2).sum())(x) + x, (torch.randn(4),)


@program("func_grad_and_value")
def func_grad_and_value() -> Any:
    return lambda w, x: torch.func.grad_and_value(lambda w: (x @ w).square().mean())(w), (
        torch.randn(4, 2),
        torch.randn(3, 4),
    )


@program("func_jvp_vjp")
def func_jvp_vjp() -> Any:
    def f(x: torch.Tensor, t: torch.Tensor) -> Any:
        out, tangent = torch.func.jvp(lambda x: x.sin() * x, (x,), (t,))
        _, pull = torch.func.vjp(lambda x: x.exp(), x)
        return out, tangent, pull(t)[0]

    return f, (torch.randn(4), torch.ones(4))


@program("func_jacobian_and_hessian")
def func_jacobian_and_hessian() -> Any:
    def f(x: torch.Tensor) -> Any:
        return torch.func.jacrev(lambda x: x**2)(x), torch.func.hessian(lambda x: (x**3).sum())(x)

    return f, (torch.randn(3),)


@program("func_functional_call")
def func_functional_call() -> Any:
    net = nn.Linear(4, 2)
    weights = {name: torch.randn_like(p) for name, p in net.named_parameters()}
    return lambda w, x: torch.func.functional_call(net, w, (x,)), (weights, torch.randn(3, 4))


@program("func_gradients_per_sample")
def func_gradients_per_sample() -> Any:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().sum()

    return torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0)), (torch.randn(4, 2), torch.randn(5, 4))


@program("func_functionalize")
def func_functionalize() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0] = 7
        return y.view(-1) * 2

    return torch.func.functionalize(f), (torch.randn(3, 3),)
