"""`substituted_values` finds functions and classes of torch in the place of others of torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._refs
import torch._refs.nn.functional as refs
import torch.nn.functional as F

from fxpool.torch_compat.changes import changed_namespaces
from fxpool.torch_compat.changes.torch_sources import Sources


def places(*, after_autograd: bool = False) -> list[str]:
    return [one.name for one in changed_namespaces.foreign(Sources("here"), after_autograd=after_autograd)]


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        # functions in C
        (torch, "sin", torch.cos),
        (torch, "sum", sum),
        (torch, "relu", torch._C._nn.mish),
        (torch.special, "erf", torch.special.erfc),
        (torch.linalg, "det", torch.linalg.inv),
        (torch.fft, "fft", torch.fft.ifft),
        (F, "gelu", torch._C._nn.mish),
        (F, "softplus", torch._C._nn.elu),
        # functions in Python: of the same module, of the same name elsewhere, imported under their name
        (F, "relu6", F.softsign),
        (F, "glu", refs.glu),
        (F, "softmax", torch.softmax),
        (torch, "einsum", torch.tensordot),
        (torch._refs, "sin", torch._refs.cos),
        (torch._refs, "Tensor", torch.nn.Parameter),
        # methods
        (torch.Tensor, "sin", torch.Tensor.cos),
        (torch.Tensor, "norm", torch.Tensor.split),
        (torch.Tensor, "log_softmax", F.log_softmax),
        (torch.fx.Graph, "find_nodes", torch.fx.Graph.lint),
        # classes
        (torch, "no_grad", torch.enable_grad),
        (torch, "finfo", torch.iinfo),
        (torch.autograd.grad_mode, "no_grad", torch.enable_grad),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_torch_in_the_place_of_torch(owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert places() == []
    monkeypatch.setattr(owner, name, value, raising=False)
    assert [place for place in places() if place.rpartition(".")[2] == name]
    monkeypatch.undo()
    assert places() == []


def test_a_function_in_c_counts_after_autograd_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "full", torch.full_like)
    monkeypatch.setattr(F, "relu6", F.softsign)
    assert places(after_autograd=True) == ["torch.full"]


def test_a_module_whose_import_was_changed_since_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch._refs` has the function that it imported; the module that defines it has another one."""
    import torch._prims_common.wrappers as wrappers

    monkeypatch.setattr(wrappers, "out_wrapper", wrappers.elementwise_type_promotion_wrapper)
    assert [place for place in places() if place.endswith("out_wrapper")] == [
        "torch._prims_common.wrappers.out_wrapper"
    ]
