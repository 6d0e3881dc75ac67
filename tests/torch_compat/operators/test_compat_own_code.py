"""`code_owner` tells torch's code from the program's, by its file and not by the names that it claims."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._refs
import torch.nn.functional as F

from fxpool.torch_compat.operators import code_owner


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the program's that has the module and the name of torch's."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def test_functions_in_c_by_their_operator() -> None:
    assert code_owner.operator_function(torch.sin) == "sin"
    assert code_owner.operator_function(torch._C._nn.gelu) == "gelu"
    assert code_owner.operator_function(torch.Tensor.add) == "add"
    assert code_owner.operator_function(torch.tensor) == "tensor"
    for other in (torch.get_num_threads, len, torch.Tensor.data_ptr, torch.einsum, torch.is_grad_enabled):
        assert code_owner.operator_function(other) is None


def test_the_home_of_a_function_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_owner.function_home(F.relu6) == ("torch.nn.functional", "relu6")
    assert code_owner.function_home(F.max_pool2d) == ("torch.nn.functional", "max_pool2d")
    original = F.relu6
    monkeypatch.setattr(F, "relu6", wrapped(original))
    assert code_owner.function_home(F.relu6) is None and code_owner.function_home(original) is None


def test_a_module_is_torch_s_by_its_place() -> None:
    assert code_owner.is_torchs_module(torch) and code_owner.is_torchs_module(F)
    impostor = types.ModuleType("torch.nn.functional")
    assert not code_owner.is_torchs_module(impostor) and not code_owner.is_torchs_module(types)


def test_tensor_methods_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "an_addition", lambda self: self, raising=False)
    assert not code_owner.is_tensor_method("an_addition") and code_owner.is_tensor_method("norm")


def test_plain_data_on_the_tensor_class_is_no_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "an_addition", 2.0, raising=False)
    assert not code_owner.is_tensor_method("an_addition")


@pytest.mark.parametrize("package", ["numpy", "triton", "einops", "fxpool"])
def test_a_directory_of_the_program_with_a_library_s_name_is_not_the_library(package: str, tmp_path: Path) -> None:
    path = tmp_path / package / "train.py"
    path.parent.mkdir()
    path.touch()
    names: dict[str, Any] = {}
    exec(compile("def step(x):\n    return x", str(path), "exec"), names)
    assert not code_owner.is_own(names["step"])
    (tmp_path / f"{package}-1.0.dist-info").mkdir()
    assert code_owner.is_installed.__wrapped__(str(tmp_path), package)


def test_an_installed_library_may_be_below_a_directory_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "numpy" / "site-packages" / "numpy" / "core.py"
    names: dict[str, Any] = {}
    exec(compile("def step(x):\n    return x", str(path), "exec"), names)
    assert code_owner.is_own(names["step"])


def test_libraries_that_torch_uses_are_own() -> None:
    import numpy
    import sympy

    assert code_owner.is_own(sympy.Integer) and code_owner.is_own(sympy.simplify) and code_owner.is_own(numpy.ndarray)
    assert code_owner.is_own(code_owner.is_own)
