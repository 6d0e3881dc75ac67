"""Dtypes, random numbers, and operators whose lowering is special."""

from __future__ import annotations

from typing import Any

import torch

from .registry import program


@program("dtype_fp16")
def dtype_fp16() -> Any:
    return lambda x, y: (x @ y).softmax(-1) + 1, (torch.randn(4, 8).half(), torch.randn(8, 4).half())


@program("dtype_bf16")
def dtype_bf16() -> Any:
    return lambda x: torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, (16,))) * 2, (
        torch.randn(4, 16).bfloat16(),
    )


@program("dtype_fp8_cast")
def dtype_fp8_cast() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        small = x.to(torch.float8_e4m3fn)
        return small, small.float() * 2

    return f, (torch.randn(8, 8),)


@program("dtype_int8_matmul")
def dtype_int8_matmul() -> Any:
    a, b = torch.randint(-8, 8, (8, 16), dtype=torch.int8), torch.randint(-8, 8, (16, 8), dtype=torch.int8)
    return lambda a, b: torch._int_mm(a, b) * 2, (a, b)


@program("dtype_int64")
def dtype_int64() -> Any:
    return lambda x: (x // 3, x % 5, x << 2, x.cumsum(0), x.bitwise_and(6)), (torch.arange(-8, 8),)


@program("dtype_bool")
def dtype_bool() -> Any:
    return lambda x, y: ((x > 0) & (y < 0), (x > y).any(), torch.where(x > 0, x, y), (x > 0).sum()), (
        torch.randn(8),
        torch.randn(8),
    )


@program("dtype_uint8")
def dtype_uint8() -> Any:
    return lambda x: (x + 250, x.float() / 255, x >> 1), (torch.arange(0, 40, dtype=torch.uint8),)


@program("dtype_complex")
def dtype_complex() -> Any:
    return lambda x: (x * x.conj(), x.abs(), torch.view_as_real(x)), (torch.randn(4, 4, dtype=torch.complex64),)


@program("dtype_complex_gradients")
def dtype_complex_gradients() -> Any:
    return lambda x: (x * (1 + 2j)).abs().sum(), (torch.randn(4, dtype=torch.complex64, requires_grad=True),)


@program("dtype_double")
def dtype_double() -> Any:
    return lambda x: x.erf().lgamma().sum(), (torch.rand(8, dtype=torch.float64) + 0.5,)


@program("dtype_promotion")
def dtype_promotion() -> Any:
    return lambda i, h, f: (i + h, i / 2, h * f, i + 1.5, f.int() + i), (
        torch.arange(4),
        torch.ones(4).half(),
        torch.randn(4),
    )


@program("random_rand", options={"fallback_random": True})
def random_rand() -> Any:
    return lambda x: x + torch.rand(4) + torch.randn_like(x) + torch.randint(0, 5, (4,)), (torch.zeros(4),)


@program("random_bernoulli", options={"fallback_random": True})
def random_bernoulli() -> Any:
    return lambda x: (torch.bernoulli(x), torch.randperm(6), x.uniform_(2, 3)), (torch.full((8,), 0.5),)


@program("random_multinomial", options={"fallback_random": True})
def random_multinomial() -> Any:
    return lambda x: torch.multinomial(x, 3, replacement=True) * 2, (torch.rand(2, 6),)


@program("sorting")
def sorting() -> Any:
    return lambda x: (x.sort(-1), x.topk(3), x.argsort(descending=True), x.median(-1).values, x.kthvalue(2)), (
        torch.randn(4, 7),
    )


@program("scatter_and_gather")
def scatter_and_gather() -> Any:
    def f(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = torch.zeros(4, 6).scatter_add(1, i, x)
        return out, x.gather(1, i % 3), out.scatter_reduce(1, i, x, "amax")

    return f, (torch.randn(4, 3, requires_grad=True), torch.randint(0, 6, (4, 3)))


@program("index_put")
def index_put() -> Any:
    def f(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[i] = v
        y.index_put_((i,), v, accumulate=True)
        return y.index_select(0, i) + x[i.flip(0)]

    return f, (torch.randn(6, 2), torch.tensor([4, 0, 2]), torch.randn(3, 2))


@program("cumulative")
def cumulative() -> Any:
    return lambda x: (x.cumsum(0), x.cumprod(1), x.cummax(0).values, x.logcumsumexp(1), x.diff(dim=1)), (
        torch.randn(4, 5),
    )


@program("histc_and_bincount")
def histc_and_bincount() -> Any:
    return lambda x, i: (torch.histc(x, 5, -1, 1), torch.bucketize(x, torch.linspace(-1, 1, 4)), i.float().mean()), (
        torch.linspace(-1, 1, 20),
        torch.arange(5),
    )


@program("fft")
def fft() -> Any:
    return lambda x: (torch.fft.fft(x).abs(), torch.fft.irfft(torch.fft.rfft(x)), torch.fft.fftshift(x)), (
        torch.randn(3, 8),
    )


@program("linalg", strides=False)
def linalg() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        spd = x @ x.t() + torch.eye(4)
        lower = torch.linalg.cholesky(spd)
        return lower, torch.linalg.solve(spd, x), torch.linalg.det(spd), torch.linalg.norm(x), torch.linalg.svdvals(x)

    return f, (torch.randn(4, 4),)


@program("linalg_gradients", strides=False)
def linalg_gradients() -> Any:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x @ x.t() + torch.eye(4)).sum() + torch.logdet(x @ x.t() + torch.eye(4))

    return f, (torch.randn(4, 4, requires_grad=True),)


@program("unique")
def unique() -> Any:
    return lambda x: torch.unique(x).float() * 2, (torch.tensor([3, 1, 3, 2, 1]),)


@program("einsum")
def einsum() -> Any:
    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.einsum("bij,bjk->bik", x, y), torch.einsum("bij->j", x), torch.tensordot(x, y, ([2], [1]))

    return f, (torch.randn(2, 3, 4), torch.randn(2, 4, 5))


@program("special_functions")
def special_functions() -> Any:
    return lambda x: (torch.special.i0(x), x.digamma(), torch.special.ndtri(x), x.erfinv(), torch.polygamma(1, x)), (
        torch.rand(8) * 0.8 + 0.1,
    )


@program("nan_and_infinity")
def nan_and_infinity() -> Any:
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), -0.0])
    return lambda x: (x.nan_to_num(), x.isnan(), x.amax(), x.clamp(-1, 1), x.sign(), x.isfinite().sum()), (x,)


@program("integer_division_and_rounding")
def integer_division_and_rounding() -> Any:
    return lambda x, y: (torch.div(x, y, rounding_mode="floor"), x.fmod(y), x.remainder(y), x.round(decimals=1)), (
        torch.linspace(-3, 3, 7),
        torch.tensor(0.7),
    )


@program("numpy_in_graph")
def numpy_in_graph() -> Any:
    import numpy as np

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.sum(np.sin(x.numpy()), axis=-1) * 2)

    return f, (torch.randn(3, 4),)


@program("numpy_arguments")
def numpy_arguments() -> Any:
    import numpy as np

    return lambda x, y: np.multiply(x, y) + 1, (np.ones((3, 4), dtype=np.float32), np.arange(4, dtype=np.float32))


@program("pooling")
def pooling() -> Any:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        pool = torch.nn.functional
        return pool.avg_pool2d(x, 2), pool.adaptive_avg_pool2d(x, 3), pool.max_pool2d(x, 3, 2, padding=1)

    return f, (torch.randn(1, 2, 8, 8, requires_grad=True),)


@program("grid_sample")
def grid_sample() -> Any:
    def f(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.grid_sample(x, g.tanh(), align_corners=False)

    return f, (torch.randn(1, 2, 6, 6), torch.randn(1, 4, 4, 2))


@program("addmm_variants")
def addmm_variants() -> Any:
    return lambda b, x, y: (
        torch.addmm(b, x, y, beta=0.5, alpha=2),
        torch.baddbmm(b, x[None], y[None]),
        b.addcmul(b, b),
    ), (
        torch.randn(4, 4),
        torch.randn(4, 3),
        torch.randn(3, 4),
    )


@program("foreach")
def foreach() -> Any:
    def f(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        torch._foreach_add_(xs, 1.0)
        return list(torch._foreach_mul(xs, 2.0))

    return f, ([torch.randn(3), torch.randn(5)],)


@program("quantized_decomposed")
def quantized_decomposed() -> Any:
    from torch.ao.quantization.fx import _decomposed  # noqa: F401  (registers the operators)

    ops = torch.ops.quantized_decomposed

    def f(x: torch.Tensor) -> torch.Tensor:
        q = ops.quantize_per_tensor(x, 0.1, 3, -128, 127, torch.int8)
        return ops.dequantize_per_tensor(q, 0.1, 3, -128, 127, torch.int8) * 2

    return f, (torch.randn(8),)


@program("fake_quantize")
def fake_quantize() -> Any:
    return lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127), (torch.randn(8, requires_grad=True),)
