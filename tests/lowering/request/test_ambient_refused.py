"""State that no other process can be put into is refused by name, and compiled where it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxpool.errors import CannotTravelError
from fxpool.lowering.request import ambient_state
from fxpool.torch_compat.state import thread_state


class Functions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def vmapped() -> Iterator[None]:
    from torch._C._functorch import _vmap_decrement_nesting, _vmap_increment_nesting

    _vmap_increment_nesting(2, "error")
    try:
        yield
    finally:
        _vmap_decrement_nesting()


@contextlib.contextmanager
def without_key(name: str) -> Iterator[None]:
    core: Any = torch._C
    key = core._dispatch_key_parse(name)
    with core._ForceDispatchKeyGuard(core._dispatch_tls_local_include_set(), core._dispatch_tls_local_exclude_set()):
        core._dispatch_tls_set_dispatch_key_excluded(key, True)
        yield


@contextlib.contextmanager
def wrapped_partitions() -> Iterator[None]:
    from torch._inductor.utils import set_customized_partition_wrappers

    set_customized_partition_wrappers(lambda call, metadata: call)
    try:
        yield
    finally:
        set_customized_partition_wrappers(None)


CIRCUMSTANCES: dict[str, tuple[str, Callable[[], AbstractContextManager[Any]]]] = {
    "a mode of operators": ("dispatch_mode", Operators),
    "a mode of functions": ("torch_function_mode", Functions),
    "a level of vmap": ("functorch_level", vmapped),
    "no gradients by key": ("dispatch_keys", lambda: without_key("AutogradCPU")),
    "no views by key": ("dispatch_keys", lambda: without_key("ADInplaceOrView")),
    "a wrapper of partitions": ("partition_wrapper", wrapped_partitions),
}


@pytest.mark.parametrize("name", sorted(CIRCUMSTANCES))
def test_what_only_this_thread_has_is_refused(name: str) -> None:
    reason, circumstance = CIRCUMSTANCES[name]
    ambient_state.capture(before_autograd=True)
    with circumstance(), pytest.raises(CannotTravelError) as refused:
        ambient_state.capture(before_autograd=True)
    assert refused.value.reason == reason
    ambient_state.capture(before_autograd=True)


@pytest.mark.parametrize(
    "circumstance",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu"),
        lambda: torch.device("cpu"),
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    ],
)
def test_what_is_captured_is_not_refused(circumstance: Callable[[], AbstractContextManager[Any]]) -> None:
    with circumstance():
        assert thread_state.tied_to_thread() is None


def test_a_default_tensor_type_of_a_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C, "_get_default_device", lambda: "cuda")  # setting it needs the device
    with pytest.raises(CannotTravelError) as refused:
        ambient_state.capture(before_autograd=True)
    assert refused.value.reason == "default_tensor_type"
