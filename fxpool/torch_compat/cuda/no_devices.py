"""Keeps devices out of reach temporarily, in a process that must stay safe to fork.

Any call of CUDA's driver, even for the number of devices when all are hidden, starts a thread and leaves a state that
children of the process cannot use. Torch calls it in many places: functions of `torch.cuda`, Triton's driver, and the
guards of its C++, through which autograd counts devices. Inside `out_of_reach` none of them sees a device. To answer
for a device instead (`device_answers`), enter that inside `out_of_reach`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpool.torch_compat.patching import patched, triton_driver

# A symbol of c10, in all supported releases: one pointer for each device type.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_KINDS = 16  # at most the number of types; the two used here are among the first


_BINDINGS = ("_cuda_init", "_cuda_get", "_cuda_set", "_cuda_maybe", "_cuda_exchange", "_cuda_synchronize")
_OF_THE_BUILD = ("_cuda_getCompiledVersion", "_cuda_getArchFlags")


class OutOfReachError(RuntimeError):
    """A device was used while devices were out of reach."""


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OutOfReachError(f"{name} was called where no device is within reach")

    return refuse


class _NoDriver:
    """Replaces Triton's driver, whose constructor loads CUDA's driver."""

    def __getattr__(self, name: str) -> Any:
        raise OutOfReachError(f"Triton's driver was asked for {name} where no device is within reach")


def guards_can_be_replaced() -> bool:
    """Return whether the guards in this build of torch's C++ can be replaced."""
    return _registry() is not None


@contextlib.contextmanager
def out_of_reach() -> Iterator[None]:
    """Hide devices from this process; fake tensors on a device still work. Not thread-safe."""
    from torch._dynamo import device_interface

    interface = device_interface.CudaInterface
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: False,
        "is_initialized": lambda: False,
        "device_count": lambda: 0,
        "_device_count_nvml": lambda: 0,
        "_raw_device_count_nvml": lambda: 0,
    }
    for name in ("_lazy_init", "init", "current_device", "set_device", "get_device_properties", "synchronize"):
        answers[name] = _refusal(f"torch.cuda.{name}")
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            if hasattr(owner, name):
                stack.enter_context(patched(owner, name, value))

        for name, answer in answers.items():
            put(torch.cuda, name, answer)
            if name in vars(interface):
                put(interface, name, staticmethod(answer))
        # Bindings that those functions lead to; they exist only in a build for CUDA.
        for name in dir(torch._C):
            if name.startswith(_BINDINGS) and name not in _OF_THE_BUILD:
                put(torch._C, name, _refusal(f"torch._C.{name}"))
        put(torch._C, "_cuda_getDeviceCount", lambda: 0)
        put(torch._C, "_cuda_isCurrentStreamCapturing", lambda: False)
        if (accelerator := getattr(torch, "accelerator", None)) is not None:
            put(accelerator, "is_available", lambda: False)
            put(accelerator, "device_count", lambda: 0)
            put(accelerator, "current_accelerator", lambda *args, **kwargs: None)
        if "triton.runtime.driver" in sys.modules:
            stack.enter_context(triton_driver(_NoDriver()))
        stack.enter_context(_guards_of_nothing())
        yield


def _registry() -> Any | None:
    try:
        library = ctypes.CDLL(os.path.join(os.path.dirname(torch.__file__), "lib", "libc10.so"))
        return (ctypes.c_void_p * _KINDS).in_dll(library, _REGISTRY)
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def _guards_of_nothing() -> Iterator[None]:
    """Give CUDA the guard of meta tensors, which enters and leaves devices without effect.

    Autograd then starts no thread for CUDA. A child of this process does not inherit that, because torch creates a new
    engine in a child.
    """
    guards = _registry()
    if guards is None:
        yield
        return
    kinds = torch._C._autograd.DeviceType
    cuda, meta = kinds.CUDA.value, kinds.Meta.value
    before = guards[cuda]
    guards[cuda] = guards[meta]
    try:
        yield
    finally:
        guards[cuda] = before
