"""Triton kernels on a GPU: linked, measured once, launched without Triton; results equal to stock Inductor's.

    python bench/gpu/kernels.py

Needs a CUDA device, and fxpool with its dependencies importable. Each line is two processes, the second with the first
one's entries and with empty Inductor and Triton directories. Exits 1 when something that must hold does not.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from harness.children import ChildError
from harness.scripts import caches, finish, report_of

#: A graph that does not travel to a worker in this version; its result must be right all the same.
IN_PROCESS = "user's kernel"


def cases() -> dict[str, Callable[[], tuple[Callable[..., Any], list[Any]]]]:
    import torch
    import triton
    import triton.language as tl

    def rand(*shape: int, **more: Any) -> torch.Tensor:
        return torch.rand(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0), **more)

    @triton.autotune([triton.Config({"BLOCK": 256}), triton.Config({"BLOCK": 1024}, num_warps=8)], key=["count"])
    @triton.jit
    def scaled(x, scale: tl.constexpr, extra, out, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < count) * scale
        if extra is not None:
            value += tl.load(extra + at, mask=at < count)
        tl.store(out + at, value, mask=at < count)

    def user_kernel(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        scaled[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, 3, None, out, x.numel())
        return out + 1

    def in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y).mul_(2)  # measured on copies: measuring must not write to x
        return x.sin()

    def backward(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (torch.nn.functional.layer_norm(x @ w, (64,)).softmax(-1) ** 2).sum()
        return loss.detach(), *torch.autograd.grad(loss, (x, w))

    def scatter(x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.zeros(64, device="cuda").index_add(0, index, x) + 1

    grad = {"requires_grad": True}
    return {
        "pointwise": lambda: (lambda x: (x.sin() * 2 + x).relu(), [rand(1 << 20)]),
        "reduction": lambda: (lambda x: x.exp().sum(0) + x.amax(0), [rand(8192, 512)]),
        "wide reduction": lambda: (lambda x: (x * x).sum(1), [rand(64, 1 << 16)]),
        "softmax": lambda: (lambda x: x.softmax(-1), [rand(512, 1000)]),
        "transposed": lambda: (lambda x: x.t().contiguous() + 1, [rand(1000, 777)]),
        "in place": lambda: (in_place, [rand(1 << 18), rand(1 << 18)]),
        "scatter": lambda: (scatter, [rand(4096), torch.arange(4096, device="cuda") % 64]),
        "dropout": lambda: (lambda x: torch.nn.functional.dropout(x, 0.5), [rand(4096)]),
        "user's kernel": lambda: (user_kernel, [rand(10000)]),
        "backward": lambda: (backward, [rand(256, 64, **grad), rand(64, 64, **grad)]),
    }


def child(asked: dict[str, Any]) -> None:
    import warnings

    warnings.filterwarnings("ignore")
    import torch

    import fxpool
    from fxpool.torch_compat.triton import triton_launch

    measured = 0
    original = triton_launch.milliseconds

    def counted(call: Callable[[], None]) -> float:
        nonlocal measured
        measured += 1
        return original(call)

    triton_launch.milliseconds = counted
    function, inputs = cases()[asked["case"]]()
    copies = [value.clone().detach().requires_grad_(value.requires_grad) for value in inputs]
    torch.manual_seed(1)
    expected = torch.compile(function, backend="inductor")(*copies)
    torch._dynamo.reset()
    mine = [value.clone().detach().requires_grad_(value.requires_grad) for value in inputs]
    torch.manual_seed(1)
    compiled = torch.compile(function, backend="fxpool")
    results = compiled(*mine)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        compiled(*mine)
    mine_after, after = [*flat(results), *inputs], [*flat(expected), *inputs]
    if asked["case"] == "in place":
        torch.manual_seed(1)
        fresh = [value.clone() for value in inputs]
        compiled(*fresh)
        mine_after, after = [*flat(results), *fresh], [*flat(expected), *copies]
    stats = fxpool.stats()
    print(json.dumps({
        "difference": max(float((a - b).abs().max()) for a, b in zip(mine_after, after, strict=True)),
        "measured": measured, "hits": stats["hits"], "misses": stats["misses"], "fallbacks": stats["fallbacks"],
        "bypasses": stats["bypasses"],
        "profiled": sorted({event.name for event in seen.events() if event.name.startswith(("triton_", "scaled"))}),
    }))  # fmt: skip


def flat(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(json.loads(sys.argv[2]))
    failures: list[str] = []
    for case in cases():
        with tempfile.TemporaryDirectory(prefix="fxpool-gpu-") as root:
            for state in ("cold", "warm"):
                try:
                    row = report_of(__file__, {"case": case}, caches(f"{root}/{state}", root, store=f"{root}/c"))
                except ChildError as error:
                    failures.append(f"{case} {state}: {error.output}")
                    break
                print(case, state, json.dumps(row), flush=True)
                if row["difference"] > (1e-4 if case in ("scatter", "backward") else 0):  # atomics add in any order
                    failures.append(f"{case} {state}: differs from stock Inductor by {row['difference']:.3g}")
                if case == IN_PROCESS:
                    continue
                if row["fallbacks"] or row["bypasses"]:
                    failures.append(f"{case} {state}: {row['fallbacks']} {row['bypasses']}")
                if not row["profiled"]:
                    failures.append(f"{case} {state}: the profiler saw no kernel")
                if state == "warm" and (row["misses"] or row["measured"]):
                    failures.append(f"{case}: not served from the cache, or measured again: {row}")
    finish(failures)


if __name__ == "__main__":
    main()
