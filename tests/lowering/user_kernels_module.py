"""A program's own Triton kernels, of which `user_kernels_child` makes graphs. Needs Triton."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# A kernel's parameters are of Triton's language.

from __future__ import annotations

import enum
from typing import Any

import triton
import triton.language as tl

FACTOR = tl.constexpr(3)
NARROW = tl.constexpr(tl.float16)


class Color(enum.Enum):
    RED = 1


@triton.jit
def scaled(value):
    return value * FACTOR


@triton.jit
def added(a, b, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    tl.store(out + at, scaled(tl.load(a + at, mask=mask)) + tl.load(b + at, mask=mask), mask=mask)


CONFIGS = [triton.Config({"BLOCK": 64}, num_warps=2), triton.Config({"BLOCK": 128}, num_warps=4)]


@triton.autotune(configs=CONFIGS, key=["count"], restore_value=["out"])
@triton.jit
def tuned(a, out, count, KIND: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < count).to(NARROW).to(KIND)
    tl.store(out + at, tl.maximum(value, LOW) + tl.load(out + at, mask=at < count), mask=at < count)


@triton.autotune(configs=CONFIGS, key=[])
@triton.heuristics({"EVEN": lambda values: values["BLOCK"] % 2 == 0})
@triton.jit
def picked(a, out, count, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < count)
    tl.store(out + at, value * 2 if EVEN else value, mask=at < count)


def _wide(configs: list[Any], named: dict[str, Any], **rest: Any) -> list[Any]:
    return [config for config in configs if config.kwargs["BLOCK"] > 64]


@triton.autotune(configs=CONFIGS, key=[], prune_configs_by={"early_config_prune": _wide})
@triton.jit
def pruned(a, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, -tl.load(a + at, mask=at < count), mask=at < count)


def _squared(a, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < count)
    tl.store(out + at, value * value, mask=at < count)


squared = triton.jit(_squared)


@triton.jit
def squared_backward(a, grad, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(a + at, mask=at < count)
    tl.store(out + at, 2 * value * tl.load(grad + at, mask=at < count), mask=at < count)


STATE = object()


@triton.jit
def reads_an_object(a, out, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at) + STATE)


def _hook(values: dict[str, Any]) -> None: ...


@triton.autotune(configs=[triton.Config({"BLOCK": 64}, pre_hook=_hook)], key=[])
@triton.jit
def hooked(a, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(a + at, mask=at < count), mask=at < count)


def local() -> Any:
    @triton.jit
    def kernel(a, out, count, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(a + at, mask=at < count), mask=at < count)

    return kernel
