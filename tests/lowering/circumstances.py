"""Circumstances under which the same function is another graph, for the tests of keys and of what is compiled again."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def attention(q: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


@contextmanager
def setting(write: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    write(value)
    try:
        yield
    finally:
        write(before)


def states() -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    threads = torch.get_num_threads()
    return {
        "inductor option": lambda: torch._inductor.config.patch(max_fusion_size=7),
        "functorch option": lambda: torch._functorch.config.patch(activation_memory_budget=0.5),
        "thread count": lambda: setting(torch.set_num_threads, threads + 1, threads),
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "autocast dtype": lambda: torch.autocast("cpu", dtype=torch.float16),
        "SDPA backend": lambda: sdpa_kernel(SDPBackend.MATH),
        "no_grad": torch.no_grad,
        "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
        "matmul precision": lambda: setting(torch.set_float32_matmul_precision, "high", "highest"),
        "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
        "mkldnn": lambda: setting(torch._C._set_mkldnn_enabled, False, True),
    }


OPERATOR = """
import torch
@torch.library.custom_op("fxpool_test::{name}", mutates_args=())
def {name}(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR
FACTOR = {factor}
@{name}.register_fake
def _(x):
    return torch.empty_like(x) if FACTOR else x
"""


def import_operator(directory: Path, module: str, factor: int) -> Any:
    (directory / f"{module}.py").write_text(OPERATOR.format(name=module, factor=factor))
    importlib.invalidate_caches()
    sys.modules.pop(module, None)
    return getattr(importlib.import_module(module), module)
