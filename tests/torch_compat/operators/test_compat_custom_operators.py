"""`custom_operators` finds the operator behind what the decorators of `torch.library` return."""

from __future__ import annotations

from typing import Any

import torch

from fxpool.torch_compat.operators.operators import operator_behind


def test_a_decorated_function_leads_to_its_operator() -> None:
    @torch.library.custom_op("compat_custom::tripled", mutates_args=())
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    found: Any = operator_behind(tripled)
    assert found is torch.ops.compat_custom.tripled.default
    assert torch.equal(found(torch.ones(2)), torch.full((2,), 3.0))


def test_anything_else_has_none_behind_it() -> None:
    assert operator_behind(torch.sin) is None
    assert operator_behind(torch.ops.aten.sin.default) is None
