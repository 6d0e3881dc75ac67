"""Programs for a GPU. On a machine without one, they are skipped: they fail eagerly."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .registry import Compile, program, script

try:
    from . import gpu_kernels
except ImportError:  # Triton is not installed
    gpu_kernels = None  # type: ignore[assignment]

randn = functools.partial(torch.randn, device="cuda")


def _net(dtype: torch.dtype = torch.float32) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32)).to("cuda", dtype)


@program("gpu_pointwise")
def gpu_pointwise() -> Any:
    return lambda x, y: (x.sin() * y).relu().sum(-1), (randn(64, 256), randn(256))


@program("gpu_training")
def gpu_training() -> Any:
    return _net(), (randn(16, 64, requires_grad=True),)


@program("gpu_half_training")
def gpu_half_training() -> Any:
    return _net(torch.bfloat16), (randn(16, 64, dtype=torch.bfloat16, requires_grad=True),)


@program("gpu_dynamic", dynamic=True)
def gpu_dynamic() -> Iterator[Any]:
    def reduced(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1).sum(0)

    for rows in (4, 9, 33):
        yield reduced, (randn(rows, 40),)


@program("gpu_convolution_channels_last")
def gpu_convolution_channels_last() -> Any:
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)).cuda()
    return net.to(memory_format=torch.channels_last), (randn(4, 3, 32, 32).to(memory_format=torch.channels_last),)


@program("gpu_attention")
def gpu_attention() -> Any:
    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return attend, tuple(randn(2, 4, 64, 32, dtype=torch.float16, requires_grad=True) for _ in range(3))


@program("gpu_reduce_overhead", mode="reduce-overhead")
def gpu_reduce_overhead() -> Iterator[Any]:
    net = _net()
    for _ in range(4):  # recorded by the second call, replayed from the third
        yield net, (randn(16, 64),)


@script("gpu_reduce_overhead_training")
def gpu_reduce_overhead_training(compiling: Compile) -> Any:
    net, found = _net(), []
    call = compiling(net, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        net.zero_grad()
        call(randn(16, 64)).square().mean().backward()
        found.append([one.grad.clone() for one in net.parameters() if one.grad is not None])
    return found


@program("gpu_max_autotune", mode="max-autotune")
def gpu_max_autotune() -> Any:
    return lambda x, y: (x @ y).relu(), (randn(256, 512, dtype=torch.float16), randn(512, 128, dtype=torch.float16))


@program("gpu_max_autotune_no_cudagraphs", mode="max-autotune-no-cudagraphs")
def gpu_max_autotune_no_cudagraphs() -> Any:
    return lambda x, y: (x @ y).relu(), (randn(256, 512, dtype=torch.float16), randn(512, 128, dtype=torch.float16))


@script("gpu_autocast")
def gpu_autocast(compiling: Compile) -> Any:
    net = _net()
    call = compiling(net)
    with torch.autocast("cuda", torch.bfloat16):
        out = call(randn(16, 64))
    out.float().sum().backward()
    return out, [one.grad for one in net.parameters()]


@program("gpu_autocast_inside")
def gpu_autocast_inside() -> Any:
    net = _net()

    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return net(x).float()

    return step, (randn(16, 64),)


def _flex(kind: str) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    inputs = tuple(randn(1, 2, 128, 64) for _ in range(3))
    if kind == "mask":
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 128, 128, device="cuda")
        return lambda q, k, v: flex_attention(q, k, v, block_mask=mask), inputs
    return lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01), inputs


@program("gpu_flex_attention_score")
def gpu_flex_attention_score() -> Any:
    return _flex("score")


@program("gpu_flex_attention_mask")
def gpu_flex_attention_mask() -> Any:
    return _flex("mask")


@program("gpu_cpp_wrapper", options={"cpp_wrapper": True})
def gpu_cpp_wrapper() -> Any:
    return lambda x, y: (x.sin() * y).relu().sum(-1), (randn(64, 256), randn(256))


@program("gpu_cpp_wrapper_products", options={"cpp_wrapper": True})
def gpu_cpp_wrapper_products() -> Any:
    return _net(), (randn(16, 64, requires_grad=True),)


@program("gpu_users_kernel")
def gpu_users_kernel() -> Any:
    return lambda x, y: gpu_kernels.added(x, y) * 2, (randn(1000), randn(1000))


@program("gpu_users_tuned_kernel")
def gpu_users_tuned_kernel() -> Any:
    return lambda x: gpu_kernels.scaled(x.sin(), 3.0), (randn(5000),)


@program("gpu_with_numbers_on_the_cpu")
def gpu_with_numbers_on_the_cpu() -> Any:
    return lambda x, s: x * s + 1, (randn(64), torch.tensor(2.5))


@program("gpu_to_and_from")
def gpu_to_and_from() -> Any:
    return lambda x: (x.cuda().sin() + 1).cpu().relu() * 2, (torch.randn(32),)


@program("gpu_sorting")
def gpu_sorting() -> Any:
    return lambda x: (x.sort(-1)[0], x.topk(3).values, x.cumsum(-1)), (randn(8, 100),)


@program("gpu_scatter")
def gpu_scatter() -> Any:
    index = torch.arange(64, device="cuda") % 7
    return lambda x: torch.zeros(7, device="cuda").scatter_add(0, index, x.exp()), (randn(64),)


@script("gpu_random")
def gpu_random(compiling: Compile) -> Any:
    call = compiling(lambda x: torch.nn.functional.dropout(x, 0.3), options={"fallback_random": True})
    torch.manual_seed(3)
    return call(randn(512))


@script("gpu_streams")
def gpu_streams(compiling: Compile) -> Any:
    call = compiling(lambda x: x.sin() * 2)
    x, side = randn(256), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        out = call(x)
    torch.cuda.current_stream().wait_stream(side)
    return out


@script("gpu_tf32")
def gpu_tf32(compiling: Compile) -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        return (compiling(lambda x, y: x @ y)(randn(64, 64), randn(64, 64)) * 0.01).round()
    finally:
        torch.set_float32_matmul_precision(before)
