"""Decides whether to pad a matrix product: lowering measures this, and a worker has no device to measure on.

If sizes alone do not decide, Inductor runs both products and compares. In a worker such a query is answered by earlier
measurements, or recorded (`asking`). The process with the device then answers it (`measure`), by Inductor's own
measurement, and the graph is compiled again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from fxpool.torch_compat.patching import patched


class Operand(msgspec.Struct, array_like=True, frozen=True):
    """A matrix of a product. `reused`: the graph computes it, and can compute it padded at once."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    reused: bool = False


class PaddingQuestion(msgspec.Struct, array_like=True, frozen=True):
    """A product: `mm`, `bmm` or `addmm`, its two matrices and the matrix that is added."""

    product: str
    first: Operand
    second: Operand
    added: Operand | None = None


class NotMeasuredError(Exception):
    """A graph cannot be compiled before these `questions` are answered."""

    def __init__(self, questions: Sequence[PaddingQuestion]) -> None:
        super().__init__(f"{len(questions)} products are to be measured")
        self.questions = list(questions)


@contextlib.contextmanager
def asking(answers: Callable[[PaddingQuestion], bool | None]) -> Iterator[None]:
    """Let Inductor decide by `answers`. Raises NotMeasuredError after a graph's decisions if any answer was missing."""
    from torch._inductor import compile_fx, config
    from torch._inductor.fx_passes import pad_mm

    missing: dict[PaddingQuestion, None] = {}
    asked: list[PaddingQuestion] = []

    def bench_key(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None, is_base_time_key: bool = False) -> str:
        first = _operand(mat1, pad_mm.should_exclude_padding_time(match, "mat1"))
        second = _operand(mat2, pad_mm.should_exclude_padding_time(match, "mat2"))
        added = _operand(input, False) if input is not None else None
        asked.append(PaddingQuestion(str(op).rpartition(".")[2], first, second, added))
        return ""

    def cached(key: str) -> bool:
        question = asked.pop()
        if config.deterministic:
            return False
        answer = answers(question)
        if answer is None:
            missing[question] = None
        return bool(answer)

    def passes(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if missing:
            raise NotMeasuredError(list(missing))
        return result

    original = compile_fx._recursive_joint_graph_passes
    with (
        patched(pad_mm, "should_pad_bench_key", bench_key),
        patched(pad_mm, "get_cached_should_pad", cached),
        patched(compile_fx, "_recursive_joint_graph_passes", passes),
        _not_remembered(pad_mm),
    ):
        try:
            yield
        except Exception as error:
            if missing and not isinstance(error, NotMeasuredError):
                raise NotMeasuredError(list(missing)) from error
            raise


@contextlib.contextmanager
def _not_remembered(pad_mm: Any) -> Iterator[None]:
    """Bypass Inductor's cache of decisions on disk: its keys do not name the device."""
    with patched(pad_mm, "_should_pad", _undecorated(pad_mm)):
        yield


def _undecorated(pad_mm: Any) -> Any:
    return getattr(pad_mm._should_pad, "__wrapped__", pad_mm._should_pad)


def _operand(tensor: Any, reused: bool) -> Operand:
    return Operand(_hints(tensor.size()), _hints(tensor.stride()), str(tensor.dtype).removeprefix("torch."), reused)


def _hints(sizes: Sequence[Any]) -> tuple[int, ...]:
    from torch._inductor.fx_passes import pad_mm

    hints = getattr(pad_mm, "hint_symbols", None) or pad_mm.realize_symbols  # the name in 2.11
    return tuple(int(size) for size in hints(sizes))


def measure(question: PaddingQuestion, device: int) -> bool:
    """Return whether padding pays on this CUDA device, by Inductor's measurement. Imports Inductor."""
    from torch._inductor.fx_passes import pad_mm
    from torch._subclasses import FakeTensorMode

    operator = getattr(torch.ops.aten, question.product)
    reused = {"mat1": question.first.reused, "mat2": question.second.reused}
    times: dict[str, float] = {}
    with (
        torch.cuda.device(device),
        patched(pad_mm, "should_exclude_padding_time", lambda match, name: reused[name]),
        patched(pad_mm, "get_cached_should_pad", lambda key: None),
        patched(pad_mm, "set_cached_should_pad", lambda key, value: None),
        patched(pad_mm, "get_cached_base_mm_benchmark_time", times.get),
        patched(pad_mm, "set_cached_base_mm_benchmark_time", times.__setitem__),
        FakeTensorMode(),
    ):
        operands = [
            torch.empty_strided(one.size, one.stride, dtype=getattr(torch, one.dtype), device=f"cuda:{device}")
            if one is not None
            else None
            for one in (question.first, question.second, question.added)
        ]
        return bool(_undecorated(pad_mm)(None, operands[0], operands[1], operator, operands[2]))
