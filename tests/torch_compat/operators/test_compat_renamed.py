"""`renamed` finds functions of torch's under names of others: Dynamo takes them for what they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import renamed


def test_torch_s_own_are_the_same_each_time() -> None:
    rows = renamed.renamed()
    assert rows == sorted(rows) == renamed.renamed()
    assert ["torch.Tensor", "__neg__", "TensorBase.neg"] in rows and [
        "torch.Tensor",
        "sin",
        "TensorBase.sin",
    ] not in rows


def test_a_c_method_under_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = renamed.renamed()
    monkeypatch.setattr(torch.Tensor, "sin", torch.Tensor.cos, raising=False)
    assert [row for row in renamed.renamed() if row not in before] == [["torch.Tensor", "sin", "TensorBase.cos"]]


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        (torch, "sin", torch.cos),
        (torch.special, "erf", torch.special.erfc),
        (torch.linalg, "det", torch.linalg.inv),
        (torch.fft, "fft", torch.fft.ifft),
        (torch.nn.functional, "gelu", torch._C._nn.mish),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_c_function_under_another_name_is_found(
    place: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = renamed.renamed()
    monkeypatch.setattr(place, name, value)
    assert [row for row in renamed.renamed() if row not in before] == [[place.__name__, name, value.__name__]]
