"""`changed_namespaces` finds the program's code in torch's places."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._refs
import torch.nn.functional as F

from fxpool.torch_compat.changes import changed_namespaces
from fxpool.torch_compat.changes.torch_sources import Sources


def places(*, after_autograd: bool = False) -> list[str]:
    return [one.name for one in changed_namespaces.foreign(Sources("here"), after_autograd=after_autograd)]


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
        (torch._C._nn, "cross_entropy_loss", "torch._C._nn.cross_entropy_loss"),
        (torch._C._linalg, "linalg_norm", "torch._C._linalg.linalg_norm"),
        (sys.modules["torch._VF"], "stft", "torch._VF.stft"),
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


@pytest.mark.parametrize("name", ["torch._C._nn.gelu", "torch._C._special.special_i0", "torch._VF.stft"])
def test_a_function_in_c_under_the_name_of_another_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _, function = name.rpartition(".")
    monkeypatch.setattr(sys.modules[module], function, torch._C._nn.silu, raising=False)
    assert places() == [name]
    monkeypatch.undo()
    assert places() == []


def test_a_second_replaced_function_in_c_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["torch._VF"], "stft", wrapped(torch.stft), raising=False)
    assert places() == ["torch._VF.stft"]
    monkeypatch.setattr(sys.modules["torch._VF"], "einsum", wrapped(torch.einsum), raising=False)
    assert places() == ["torch._VF.einsum", "torch._VF.stft"]
    monkeypatch.undo()
    assert places() == []


@pytest.mark.parametrize(("name", "other"), [("relu6", "softsign"), ("softsign", "tanhshrink")])
def test_a_function_of_torch_under_the_name_of_another_is_found(
    name: str, other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(F, name, getattr(F, other))
    assert places() == [f"torch.nn.functional.{name}"]


def test_a_torch_wrapper_around_a_function_of_the_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "silu", torch.no_grad()(lambda x: x))
    assert places() == ["torch.nn.functional.silu"]


def copied(module: types.ModuleType, name: str) -> types.ModuleType:
    """A module of the program's with the functions of one of torch's."""
    made = types.ModuleType(name)
    vars(made).update({key: value for key, value in vars(module).items() if key not in ("__name__", "__spec__")})
    return made


class _Lazy(types.ModuleType):
    """A module that finds its functions elsewhere."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.nn.functional, name)


@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (torch._decomp.decompositions, "F", "torch._decomp.decompositions.F"),  # import torch.nn.functional as F
        (torch._decomp.decompositions, "prims", "torch._decomp.decompositions.prims"),
        (torch._refs, "utils", "torch._refs.utils"),
        (torch._refs, "math", "torch._refs.math"),
        (torch._refs, "torch", "torch._refs.torch"),
        (torch.nn, "functional", "torch.nn.functional"),
        (torch, "_prims", "torch._prims"),
        (torch._refs, "linalg", "torch._refs.linalg"),
    ],
)
def test_another_module_in_place_of_one_is_found(
    owner: Any, name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(owner, name)
    for other in (
        copied(original, "of_the_program"),
        copied(original, original.__name__),
        torch.nn.init,
        types.SimpleNamespace(pad=places),
        _Lazy(original.__name__),
    ):
        monkeypatch.setattr(owner, name, other)
        assert expected in places(), other
    monkeypatch.undo()
    assert places() == []


def test_additions_and_what_no_compile_runs_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "an_addition", lambda self: self, raising=False)
    monkeypatch.setattr(F, "an_addition", lambda x: x, raising=False)
    monkeypatch.setattr(torch, "load", wrapped(torch.load))
    monkeypatch.setattr(torch.Tensor, "__repr__", lambda self: "tensor")
    assert [place for place in places() if "__repr__" not in place] == []


def test_a_name_that_hides_a_builtin_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "len", lambda x: 3, raising=False)
    assert places() == ["torch.nn.functional.len"]


def test_the_code_of_another_function_of_torch_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "silu", types.FunctionType(F.softsign.__code__, vars(F), "silu"))
    assert places() == ["torch.nn.functional.silu"]
