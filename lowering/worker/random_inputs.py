"""Makes real inputs of a graph, from the descriptions of the inputs that it was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["NoInputsError", "real_inputs"]


class NoInputsError(Exception):
    """No inputs can be made for a graph; the message says why."""


def real_inputs(fakes: Sequence[Any], seed: int) -> list[Any]:
    """Return an input for each fake one: random numbers, and for integers 0 and 1, which index anything.

    Inputs that share memory do so here, too. The same seed gives the same inputs. Raises NoInputsError.
    """
    generator = torch.Generator().manual_seed(seed)
    memory: dict[int, torch.Tensor] = {}
    return [_real(fake, generator, memory) for fake in fakes]


def _real(fake: Any, generator: torch.Generator, memory: dict[int, torch.Tensor]) -> Any:
    if isinstance(fake, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _number(fake)
    if fake is None or isinstance(fake, (bool, int, float)):
        return fake
    if not isinstance(fake, torch.Tensor):
        raise NoInputsError(f"it takes a {type(fake).__name__}")
    if fake.device.type != "cpu":
        raise NoInputsError(f"it runs on {fake.device.type}")
    if fake.layout is not torch.strided or fake.is_conj() or fake.is_neg() or fake.is_quantized:
        raise NoInputsError("it takes a tensor that is not a plain block of memory")
    size, stride = [_number(n) for n in fake.shape], [_number(n) for n in fake.stride()]
    offset = _number(fake.storage_offset())
    storage = fake.untyped_storage()
    length = _number(storage.nbytes()) // fake.dtype.itemsize
    needed = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) + 1 if all(size) else offset
    place = storage._cdata
    if place not in memory:
        memory[place] = _random(max(length, needed), fake.dtype, generator)
    block = memory[place]
    if block.dtype != fake.dtype or block.numel() < needed:
        raise NoInputsError("its inputs share memory under different types")
    made = block.as_strided(size, stride, offset)
    return made.requires_grad_() if fake.requires_grad else made


def _number(value: Any) -> Any:
    """Return the value that a symbol had when the graph was compiled. Raises NoInputsError: it had no value."""
    if isinstance(value, (bool, int, float)):
        return value
    hint = value.node.hint
    if hint is None:
        raise NoInputsError("it takes sizes that are only known at run time")
    return hint if isinstance(hint, (bool, int, float)) else int(hint)


def _random(length: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        kind = dtype if dtype.is_complex else torch.float32
        return torch.randn(length, dtype=kind, generator=generator).to(dtype)
    return torch.randint(0, 2, (length,), generator=generator).to(dtype)
