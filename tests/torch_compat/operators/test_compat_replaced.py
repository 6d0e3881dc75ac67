"""`replaced` finds functions of torch's under names of others: Dynamo takes them for what they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators import replaced


def test_torch_s_own_are_the_same_each_time() -> None:
    rows = replaced.renamed()
    assert rows == sorted(rows) == replaced.renamed()
    assert ["torch.Tensor", "__neg__", "TensorBase.neg"] in rows and [
        "torch.Tensor",
        "sin",
        "TensorBase.sin",
    ] not in rows
    assert replaced.of_the_program() == []


def test_a_c_method_under_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    before = replaced.renamed()
    monkeypatch.setattr(torch.Tensor, "sin", torch.Tensor.cos, raising=False)
    assert [row for row in replaced.renamed() if row not in before] == [["torch.Tensor", "sin", "TensorBase.cos"]]
    assert replaced.of_the_program() == []


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
    before = replaced.renamed()
    monkeypatch.setattr(place, name, value)
    assert [row for row in replaced.renamed() if row not in before] == [[place.__name__, name, value.__name__]]


def test_a_method_of_the_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sin(self: torch.Tensor) -> torch.Tensor:
        return self.cos()

    monkeypatch.setattr(torch.Tensor, "sin", sin, raising=False)
    assert replaced.of_the_program() == [("torch.Tensor.sin", sin)]


def test_a_property_of_the_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = property(lambda self: (1,))
    monkeypatch.setattr(torch.Tensor, "shape", shape, raising=False)
    found = replaced.of_the_program()
    monkeypatch.undo()
    assert found == [("torch.Tensor.shape", shape)]


def test_how_a_tensor_is_shown_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self, **_: "tensor")
    monkeypatch.setattr(torch.Tensor, "compat_added", lambda self: None, raising=False)  # torch has no such method
    assert replaced.of_the_program() == []
