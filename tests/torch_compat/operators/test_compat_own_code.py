"""`own_code` tells torch's code from the program's, by its file and not by the names that it claims."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._refs
import torch.nn.functional as F

from fxpool.torch_compat.operators import added_kernels, own_code


def places(*, after_autograd: bool = False) -> list[str]:
    return [one.name for one in own_code.foreign(after_autograd=after_autograd)]


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the program's that has the module and the name of torch's."""

    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


def test_torch_as_it_was_imported_has_only_torch_s_code() -> None:
    import torch._inductor.compile_fx
    import torch._inductor.lowering  # noqa: F401

    assert places() == [] and places(after_autograd=True) == []


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (torch, "einsum", "torch.einsum"),
        (torch, "sin", "torch.sin"),
        (F, "relu6", "torch.nn.functional.relu6"),
        (F, "gelu", "torch.nn.functional.gelu"),
        (torch.Tensor, "norm", "torch._tensor.Tensor.norm"),
        (torch.Tensor, "sin", "torch._tensor.Tensor.sin"),
        (torch.Tensor, "__rdiv__", "torch._tensor.Tensor.__rdiv__"),
        (torch._refs, "sin", "torch._refs.sin"),
        (torch.fx.Graph, "find_nodes", "torch.fx.graph.Graph.find_nodes"),
        (torch.autograd.Function, "mark_dirty", None),
    ],
)
def test_a_wrapper_with_torch_s_name_is_the_program_s(
    owner: Any, name: str, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)), raising=False)
    found = places()
    monkeypatch.undo()
    assert found == ([expected] if expected else ["torch.autograd.function.FunctionCtx.mark_dirty"]) or len(found) == 1
    assert places() == []


def test_what_only_autograd_runs_does_not_count_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "relu6", wrapped(F.relu6))
    monkeypatch.setattr(torch._refs, "sin", wrapped(torch._refs.sin))
    assert places() == ["torch._refs.sin", "torch.nn.functional.relu6"]
    assert places(after_autograd=True) == ["torch._refs.sin"]


@pytest.mark.parametrize(("name", "other"), [("relu6", "softsign"), ("softsign", "tanhshrink")])
def test_a_function_of_torch_under_the_name_of_another_is_found(
    name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F, name, getattr(F, other))
    assert places() == [f"torch.nn.functional.{name}"]


def test_a_torch_wrapper_around_a_function_of_the_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "silu", torch.no_grad()(lambda x: x))
    assert places() == ["torch.nn.functional.silu"]


def test_additions_and_what_no_compile_runs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "an_addition", lambda self: self, raising=False)
    monkeypatch.setattr(F, "an_addition", lambda x: x, raising=False)
    monkeypatch.setattr(torch, "load", wrapped(torch.load))
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "tensor")
    assert [place for place in places() if "__repr__" not in place] == []
    assert not own_code.is_tensor_method("an_addition") and own_code.is_tensor_method("norm")


def test_a_name_that_hides_a_builtin_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "len", lambda x: 3, raising=False)
    assert places() == ["torch.nn.functional.len"]


def test_a_kernel_for_an_operator_of_torch_is_found() -> None:
    operator = torch.ops.aten.erfc.default
    kernel = lambda x: x  # noqa: E731
    operator.py_impl(torch._C.DispatchKey.AutogradCPU)(kernel)
    try:
        assert added_kernels.foreign() == [("aten.erfc.default for AutogradCPU", kernel)]
    finally:
        del operator.py_kernels[torch._C.DispatchKey.AutogradCPU]
        operator._dispatch_cache.clear()
    assert added_kernels.foreign() == []


def test_functions_in_c_by_their_operator() -> None:
    assert own_code.operator_function(torch.sin) == "sin"
    assert own_code.operator_function(torch._C._nn.gelu) == "gelu"
    assert own_code.operator_function(torch.Tensor.add) == "add"
    assert own_code.operator_function(torch.tensor) == "tensor"
    for other in (torch.get_num_threads, len, torch.Tensor.data_ptr, torch.einsum, torch.is_grad_enabled):
        assert own_code.operator_function(other) is None


def test_the_home_of_a_function_leads_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_code.function_home(F.relu6) == ("torch.nn.functional", "relu6")
    assert own_code.function_home(F.max_pool2d) == ("torch.nn.functional", "max_pool2d")
    original = F.relu6
    monkeypatch.setattr(F, "relu6", wrapped(original))
    assert own_code.function_home(F.relu6) is None and own_code.function_home(original) is None


def test_a_module_is_torch_s_by_its_place() -> None:
    assert own_code.is_torchs_module(torch) and own_code.is_torchs_module(F)
    impostor = types.ModuleType("torch.nn.functional")
    assert not own_code.is_torchs_module(impostor) and not own_code.is_torchs_module(types)


def test_the_code_of_another_function_of_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "silu", types.FunctionType(F.softsign.__code__, vars(F), "silu"))
    assert places() == ["torch.nn.functional.silu"]
