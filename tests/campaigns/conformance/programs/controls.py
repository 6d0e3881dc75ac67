"""Options and modes of Inductor's, and switches of torch's that change the compile."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .registry import Compile, program, script


def _net() -> Any:
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)), (torch.randn(8, 16),)


@program("mode_reduce_overhead", mode="reduce-overhead")
def mode_reduce_overhead() -> Any:
    return _net()


@program("mode_max_autotune", mode="max-autotune")
def mode_max_autotune() -> Any:
    return _net()


@program("mode_max_autotune_no_cudagraphs", mode="max-autotune-no-cudagraphs")
def mode_max_autotune_no_cudagraphs() -> Any:
    return lambda x, y: (x @ y).relu(), (torch.randn(32, 64), torch.randn(64, 32))


@program("fullgraph", fullgraph=True)
def fullgraph() -> Any:
    return _net()


@script("option_freezing")
def option_freezing(compiling: Compile) -> Any:
    net, arguments = _net()
    with torch.no_grad():
        return compiling(net.eval(), options={"freezing": True})(*arguments)


@script("option_freezing_conv_bn")
def option_freezing_conv_bn(compiling: Compile) -> Any:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
    with torch.no_grad():
        return compiling(net, options={"freezing": True})(torch.ones(2, 3, 6, 6))


@program("option_cpp_wrapper", options={"cpp_wrapper": True})
def option_cpp_wrapper() -> Any:
    return lambda x: (x.sin() * 2).sum(-1), (torch.randn(4, 8),)


@program("option_cpp_wrapper_training", options={"cpp_wrapper": True})
def option_cpp_wrapper_training() -> Any:
    return lambda x: (x @ x).sin().sum(), (torch.randn(4, 4, requires_grad=True),)


@program("option_epilogue_fusion_off", options={"epilogue_fusion": False})
def option_epilogue_fusion_off() -> Any:
    return _net()


@program("option_max_fusion_size", options={"max_fusion_size": 2})
def option_max_fusion_size() -> Any:
    return lambda x: ((x + 1).sin() * 2).exp().tanh() + x, (torch.randn(64),)


@program("option_coordinate_descent", options={"coordinate_descent_tuning": True})
def option_coordinate_descent() -> Any:
    return _net()


@program("option_deterministic", options={"deterministic": True})
def option_deterministic() -> Any:
    return _net()


@program("option_shape_padding_off", options={"shape_padding": False, "permute_fusion": True})
def option_shape_padding_off() -> Any:
    return _net()


@program("option_size_asserts_off", options={"size_asserts": False, "nan_asserts": True})
def option_size_asserts_off() -> Any:
    return lambda x: x.sin() + 1, (torch.randn(9),)


@program("option_emulate_precision_casts", options={"emulate_precision_casts": True})
def option_emulate_precision_casts() -> Any:
    return lambda x: (x * 3 + 1).sin() * x, (torch.randn(64, dtype=torch.bfloat16),)


@program("option_simdlen", options={"cpp.simdlen": 0})
def option_simdlen() -> Any:
    return lambda x: x.exp().sum(-1), (torch.randn(16, 33),)


@program("option_threads", options={"cpp.threads": 2})
def option_threads() -> Any:
    return lambda x: x.exp().sum(-1), (torch.randn(64, 333),)


@program("option_reorder_off", options={"reorder_for_locality": False, "pattern_matcher": False})
def option_reorder_off() -> Any:
    return _net()


@program("option_group_fusion", options={"combo_kernels": True})
def option_group_fusion() -> Any:
    return lambda x, y: (x.sin(), y.cos()), (torch.randn(8), torch.randn(12))


@program("option_memory_planning", options={"memory_planning": True})
def option_memory_planning() -> Any:
    return lambda x: ((x @ x).sin() @ x).relu() @ x, (torch.randn(16, 16),)


@program("option_implicit_fallbacks", options={"implicit_fallbacks": True, "triton.cudagraphs": True})
def option_implicit_fallbacks() -> Any:
    return lambda x: torch.linalg.inv(x) + 1, (torch.eye(4) * 2,)


@program("option_unroll_reductions", options={"unroll_reductions_threshold": 2, "comment_origin": True})
def option_unroll_reductions() -> Any:
    return lambda x: x.sum(-1) * 2, (torch.randn(8, 4),)


@script("config_patch_around")
def config_patch_around(compiling: Compile) -> Any:
    with torch._inductor.config.patch(max_fusion_size=3, split_reductions=False):
        return compiling(lambda x: (x + 1).sin().exp().sum())(torch.linspace(0, 1, 32))


@script("deterministic_algorithms")
def deterministic_algorithms(compiling: Compile) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        index = torch.tensor([0, 1, 1, 0])
        return compiling(lambda x, i: torch.zeros(2).index_add(0, i, x))(torch.ones(4), index)
    finally:
        torch.use_deterministic_algorithms(False)


@script("default_dtype")
def default_dtype(compiling: Compile) -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        return compiling(lambda x: x + torch.ones(4) * 0.1 + torch.arange(4) / 3)(torch.ones(4))
    finally:
        torch.set_default_dtype(torch.float32)


@script("matmul_precision")
def matmul_precision(compiling: Compile) -> Any:
    torch.set_float32_matmul_precision("high")
    try:
        return compiling(lambda x: x @ x)(torch.linspace(0, 1, 64).reshape(8, 8))
    finally:
        torch.set_float32_matmul_precision("highest")


@script("inference_mode")
def inference_mode(compiling: Compile) -> Any:
    net, arguments = _net()
    with torch.inference_mode():
        out = compiling(net)(*arguments)
    return out.is_inference(), out.tolist()


@script("profiler_active")
def profiler_active(compiling: Compile) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return compiling(lambda x: x.sin() * 2)(torch.ones(8))


@script("two_thread_counts")
def two_thread_counts(compiling: Compile) -> Any:
    f, found = compiling(lambda x: x.sin().sum(-1)), []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(f(torch.ones(16, 64)))
    torch.set_num_threads(1)
    return found


@script("stance_force_eager")
def stance_force_eager(compiling: Compile) -> Any:
    f = compiling(lambda x: x.sin() * 2)
    first = f(torch.ones(8))
    with torch.compiler.set_stance("force_eager"):
        second = f(torch.ones(9))
    return first, second


@script("cache_key_tag")
def cache_key_tag(compiling: Compile) -> Any:
    with torch.compiler.config.patch(cache_key_tag="conformance"):
        return compiling(lambda x: x.sin() * 2 + 4)(torch.ones(8))


@script("math_sdpa_only")
def math_sdpa_only(compiling: Compile) -> Any:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.linspace(0, 1, 128).reshape(1, 2, 8, 8)
    with sdpa_kernel(SDPBackend.MATH):
        return compiling(lambda q: nn.functional.scaled_dot_product_attention(q, q, q))(q)
