"""`thread_state` finds state of the compiling thread that no other process can be put into: such graphs stay here."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxpool.torch_compat.state import thread_state


class Dispatching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Calling(TorchFunctionMode):
    pass


def reason() -> str | None:
    tied = thread_state.tied_to_thread()
    return tied[0] if tied is not None else None


@contextlib.contextmanager
def functionalizing_in_inference_mode() -> Iterator[None]:
    with torch.inference_mode(), torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.Functionalize):
        yield


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Until 2.12, leaving a guard for dispatch keys does not restore all of a thread's state."""
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(work).result()


def test_an_ordinary_thread_is_tied_to_nothing() -> None:
    assert thread_state.tied_to_thread() is None


@pytest.mark.parametrize(
    ("enter", "expected"),
    [
        (Dispatching, "dispatch_mode"),
        (Calling, "torch_function_mode"),
        (torch.inference_mode, None),
        (lambda: torch.inference_mode(False), None),
        (functionalizing_in_inference_mode, "dispatch_keys"),
        (lambda: torch.device("meta"), None),  # captured as a switch
        (lambda: torch.autocast("cpu"), None),
        (torch.no_grad, None),
        (lambda: torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)),
         "dispatch_keys"),
        (lambda: torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.Functionalize), "dispatch_keys"),
        (lambda: torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)), None),
    ],
)  # fmt: skip
def test_what_is_in_force_is_named(enter: Callable[[], AbstractContextManager[Any]], expected: str | None) -> None:
    def inside_and_afterwards() -> list[str | None]:
        with enter():
            inside = reason()
        return [inside, reason()]

    assert in_a_thread(inside_and_afterwards) == [expected, None]


def test_dispatch_keys_do_not_matter_after_autograd() -> None:
    def inside() -> Any:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)):
            return thread_state.tied_to_thread(before_autograd=False)

    assert in_a_thread(inside) is None


def test_a_transform_of_torch_func_is_found() -> None:
    seen: list[str | None] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.append(reason())
        return x

    torch.func.vmap(look)(torch.ones(2))
    assert seen == ["functorch_level"]


def test_a_wrapper_for_partitions_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import utils

    monkeypatch.setattr(utils._unstable_customized_partition_wrapper, "wrapper", lambda call, metadata: call)
    assert reason() == "partition_wrapper"


def test_a_default_tensor_type_of_another_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch._C._get_default_device() == "cpu"
    core = types.SimpleNamespace(**{name: getattr(torch._C, name) for name in dir(torch._C)})
    core._get_default_device = lambda: "cuda"
    monkeypatch.setattr(torch, "_C", core)
    tied = thread_state.tied_to_thread()
    monkeypatch.undo()
    assert tied == ("default_tensor_type", "the default tensor type is one of cuda")


def test_the_modes_of_tracing_itself_do_not_count() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert not thread_state.dispatch_modes_active()
        with Dispatching():
            assert thread_state.dispatch_modes_active()


def graph_of(function: Any) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(function)


@pytest.mark.parametrize(
    ("pack", "unpack", "expected"),
    [
        (graph_of(lambda x: x * 2), graph_of(lambda x: x / 2), True),
        (lambda x: x, lambda x: x, False),
        (None, None, False),
    ],
)
def test_hooks_that_are_graphs_are_compiled_into_the_graph(pack: Any, unpack: Any, expected: bool) -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack) if pack is not None else nullcontext()
    with hooks:
        assert thread_state.saved_tensor_hooks_compiled() is expected


def test_all_keys_that_are_explained_are_keys_of_torch() -> None:
    assert thread_state._mask("AutocastCPU", "compat_unknown") == thread_state._mask("AutocastCPU") != 0
    for name in ("AutocastCUDA", "Python", "PythonTLSSnapshot", "FuncTorchDynamicLayerFrontMode", "FuncTorchBatched"):
        assert thread_state._mask(name), name
    assert "torch._inductor.utils" in sys.modules  # read from there only if it has been imported
