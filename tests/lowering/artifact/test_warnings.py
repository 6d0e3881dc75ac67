"""What torch warns of while it compiles is said in the program's process, once per compile and never on a hit."""

from __future__ import annotations

from typing import Any

import torch
from beside_stock import BesideStock
from torch._inductor import lowering

COMPLEX = "does not support code generation for complex operators"


def turned(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(torch.polar(x.abs() + 1, x) * 2)


def test_a_warning_of_lowering(beside_stock: BesideStock) -> None:
    def compile_(backend: str) -> Any:
        return torch.compile(turned, backend=backend)

    def step(call: Any) -> Any:
        return call(torch.linspace(-1, 1, 8))

    lowering._warn_complex_not_supported.cache_clear()  # torch says it once per process
    stock, miss, hit = beside_stock.agree(compile_, step)
    assert [text for text in stock.warned if COMPLEX in text] == [text for text in miss.warned if COMPLEX in text]
    assert any(COMPLEX in text for text in miss.warned)
    lowering._warn_complex_not_supported.cache_clear()
    assert beside_stock.stock(compile_, step).warned == hit.warned == [], "stock has its graph from its cache, too"
