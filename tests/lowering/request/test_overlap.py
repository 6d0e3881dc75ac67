"""Inputs that begin to overlap: stock torch.compile gives wrong numbers for most of these, cold and warm."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiers import first_tier

import fxpool
from fxpool.lowering.request import overlapping_inputs

Slices = tuple[slice, slice]
# Layouts of two inputs in one buffer: called one after the other.
SEQUENCES: dict[str, list[Slices]] = {
    "apart, then overlapping": [(slice(2, 8), slice(8, 14)), (slice(2, 8), slice(5, 11))],
    "apart, then overlapping from the start": [(slice(0, 8), slice(8, 16)), (slice(0, 4), slice(4, 8))],
    "overlapping, then apart": [(slice(2, 8), slice(5, 11)), (slice(2, 8), slice(8, 14))],
    "overlapping, then overlapping elsewhere": [(slice(0, 6), slice(2, 8)), (slice(4, 10), slice(8, 14))],
    "the same memory": [(slice(0, 6), slice(6, 12)), (slice(3, 9), slice(3, 9))],
}


def add_in_place(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a * b


def run(function: Callable[..., torch.Tensor], layout: Slices) -> tuple[torch.Tensor, torch.Tensor]:
    buffer = torch.arange(16.0)
    return function(buffer[layout[0]], buffer[layout[1]]), buffer


@pytest.mark.parametrize(
    ("sequence", "dynamic"),
    first_tier(
        itertools.product(SEQUENCES, (False, True)),
        ("apart, then overlapping", False),
    ),
)
def test_numbers_are_eagers_cold_and_warm(sequence: str, dynamic: bool, shared_pool: Path, cache: Path) -> None:
    for _ in ("cold", "warm"):
        torch._dynamo.reset()
        compiled = torch.compile(add_in_place, backend="fxpool", dynamic=dynamic)
        for layout in SEQUENCES[sequence]:
            found, expected = run(compiled, layout), run(add_in_place, layout)
            torch.testing.assert_close(found, expected)
    stats = fxpool.stats()
    assert stats["hits"] >= 1
    assert stats["compiles"]["in_process"] == 0


def test_layout_names_overlapping_pairs() -> None:
    buffer = torch.arange(16.0)
    assert overlapping_inputs.layout([buffer[0:4], buffer[4:8], 3, torch.ones(4)]) == ()
    assert overlapping_inputs.layout([buffer[0:4], None, buffer[2:6]]) == ((0, 2, 8, 0, 2),)
    assert overlapping_inputs.layout([buffer[4:8], buffer[0:6]]) == ((0, 1, -16, 4, 0),)


def test_layout_of_written_inputs_ignores_pairs_that_are_only_read() -> None:
    buffer = torch.arange(16.0)
    inputs = [buffer[0:4], buffer[2:6], torch.ones(4)]
    assert overlapping_inputs.layout(inputs, [2]) == ()
    assert overlapping_inputs.layout(inputs, [1]) != ()


def test_strides_and_empty_tensors() -> None:
    buffer = torch.arange(16.0)
    assert overlapping_inputs.interval(buffer[0:0]) == (0, 0)
    start, end = overlapping_inputs.interval(buffer.view(4, 4).t())
    assert end - start == 64
    # Interleaved columns reach into each other: counted as overlapping, which is safe.
    assert overlapping_inputs.layout([buffer[0::2], buffer[1::2]]) != ()


def test_memory_shared_without_a_shared_storage_is_seen() -> None:
    import numpy

    array = numpy.arange(8.0)
    assert overlapping_inputs.layout([torch.from_numpy(array), torch.from_numpy(array)]) != ()
