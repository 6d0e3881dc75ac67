"""Compiles for a CUDA device in a process without one: answers torch and Triton from `DeviceFacts`.

A query without an answer is an error that names it: no answer is guessed. Generated code is not executed: a generated
module is only read for the calls that compile its kernels.
"""

from __future__ import annotations

import ast
import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fxpool.torch_compat.cuda.device_facts import DeviceFacts
from fxpool.torch_compat.inductor import import_paths, preload
from fxpool.torch_compat.patching import patched, triton_driver


class UnansweredError(Exception):
    """A query for a device has no captured answer; the text names it."""


class _UnansweredPropertyError(UnansweredError, AttributeError):
    """Also an AttributeError, so that `getattr` defaults work."""


class _Properties:
    """Answers like ``torch.cuda.get_device_properties``."""

    def __init__(self, facts: DeviceFacts) -> None:
        self.__dict__.update(facts.properties)

    def __getattr__(self, name: str) -> Any:
        # Every device has this property: 2.15 reads it with a default, and treats the default as another error.
        kind = UnansweredError if name == "multi_processor_count" else _UnansweredPropertyError
        raise kind(f"a device's properties for {name}")

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__dict__.items())
        return f"_CudaDeviceProperties({fields})"


# Messages of torch's C++ about a missing device. It needs a device if an operator has no rule for fake tensors, and
# runs on small real tensors instead.
_NO_DEVICE = ("CUDA error", "CUDA driver", "NVIDIA driver", "No CUDA GPUs", "'CUDA' backend", "compiled with CUDA")


def unanswered(error: BaseException) -> str:
    """Return the unanswered query that caused an error; "" for any other error."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, UnansweredError):
            return str(cause)
        if isinstance(cause, RuntimeError | AssertionError) and any(words in str(cause) for words in _NO_DEVICE):
            return f"torch's C++, which found none: {str(cause).partition('For debugging')[0].strip()}"
        seen.append(cause)
        cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
    return ""


class _Utilities:
    """Replaces ``utils`` of Triton's driver."""

    def __init__(self, facts: Sequence[DeviceFacts]) -> None:
        self._facts = facts

    def get_device_properties(self, device: int) -> dict[str, int]:
        return dict(self._facts[device].driver)

    def __getattr__(self, name: str) -> Any:
        raise UnansweredError(f"Triton's driver for utils.{name}")


class _Driver:
    """Replaces Triton's driver."""

    def __init__(self, facts: Sequence[DeviceFacts], current: int) -> None:
        self.utils = _Utilities(facts)
        self._facts, self._current = facts, current

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        major, minor = self._facts[self._current].capability
        return GPUTarget("cuda", major * 10 + minor, 32)

    def get_current_device(self) -> int:
        return self._current

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", self._current)

    def is_active(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        raise UnansweredError(f"Triton's driver for {name}")


class _Nowhere:
    """A device or stream that can be entered, without effect."""

    idx = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __enter__(self) -> _Nowhere:
        return self

    def __exit__(self, *error: object) -> None: ...


def _index(device: Any, current: int) -> int:
    if isinstance(device, int):
        return device if device >= 0 else current
    index = torch.device(device).index if device is not None else None
    return current if index is None else index


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise UnansweredError(f"torch.cuda for {name}")

    return refuse


def _answers(facts: Sequence[DeviceFacts], current: int) -> dict[str, Callable[..., Any]]:
    """Return functions of ``torch.cuda`` by name."""
    properties = [_Properties(one) for one in facts]
    no_state = torch.zeros(16, dtype=torch.uint8)

    def capability(device: Any = None) -> tuple[int, int]:
        return facts[_index(device, current)].capability

    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,  # ``torch.tensor(0.0, device=...)`` in a graph calls it first
        "_is_compiled": lambda: True,
        "device_count": lambda: len(facts),
        "current_device": lambda: current,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: properties[_index(device, current)],
        "get_device_capability": capability,
        "get_device_name": lambda device=None: facts[_index(device, current)].name,
        "is_bf16_supported": lambda including_emulation=True: including_emulation or capability() >= (8, 0),
        "memory_allocated": lambda device=None: 0,
        "get_rng_state": lambda device="cuda": no_state.clone(),
        "set_rng_state": lambda state, device="cuda": None,
        "_exchange_device": lambda index: current,
        "_maybe_exchange_device": lambda index: current,
    }


def _clock(facts: Sequence[DeviceFacts], original: Callable[..., Any]) -> Callable[..., Any]:
    def max_clock_rate(device: int | None = None) -> Any:
        # Since 2.15 it takes a device, and reads that device's properties.
        return facts[0].clock if device is None else original(device)

    return max_clock_rate


# Functions that query the device itself: a call during a compile is a query without an answer above.
_REFUSED = ("current_stream", "default_stream", "mem_get_info", "get_arch_list", "memory_stats")


@contextlib.contextmanager
def answering(facts: Sequence[DeviceFacts], current: int = 0) -> Iterator[None]:
    """Let this process compile for devices with these facts, by index, while it sees none. `current` is an index.

    For processes that serve one job: the answers apply to all threads, and caches in torch keep them.
    """
    from torch._dynamo import device_interface
    from torch._inductor.runtime import triton_helpers

    interface = device_interface.CudaInterface
    answers = _answers(facts, current)
    with contextlib.ExitStack() as stack:

        def put(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(patched(owner, name, value, create=True))

        for name, answer in answers.items():
            if hasattr(torch.cuda, name):
                put(torch.cuda, name, answer)
            if name in vars(interface):
                put(interface, name, staticmethod(answer))
        for name in _REFUSED:
            put(torch.cuda, name, _refusal(name))
        for name in ("get_rng_state", "set_rng_state"):
            put(torch.cuda.random, name, answers[name])
        for owner in (torch.cuda, interface):
            put(owner, "device", _Nowhere)
        put(interface, "get_raw_stream", staticmethod(lambda index: 0))
        put(interface.Worker, "get_device_properties", staticmethod(answers["get_device_properties"]))
        put(interface.Worker, "current_device", staticmethod(answers["current_device"]))
        put(torch._subclasses.fake_tensor, "init_gpu_context", lambda *device: None)  # would allocate on it
        put(torch._subclasses.FakeTensorMode, "avoid_device_init", True)
        put(torch.version, "cuda", facts[0].cuda)
        put(torch.accelerator, "current_device_index", lambda: current)
        # Whether CUDA graphs can be recorded depends on the process that loads the graph: `output_code` checks there.
        put(torch._C, "_cuda_cudaCachingAllocator_is_enabled", lambda: True)
        put(torch._utils_internal, "max_clock_rate", _clock(facts, torch._utils_internal.max_clock_rate))
        if facts[0].cudnn is not None:
            put(torch.backends.cudnn, "version", lambda: facts[0].cudnn)
            put(torch.backends.cudnn, "is_available", lambda: True)
        put(triton_helpers, "set_driver_to_gpu", lambda: None)
        stack.enter_context(triton_driver(_Driver(facts, current)))
        stack.enter_context(_modules_read())
        stack.enter_context(_constants_on_cpu())
        preload.forget_devices()
        stack.callback(preload.forget_devices)
        yield


class _OnCpu(TorchDispatchMode):
    """Creates tensors on the CPU in place of a CUDA device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = torch.device("cpu")
        if func is torch.ops.prims.device_put.default:
            args = (args[0], torch.device("cpu"), *args[2:])
        return func(*args, **kwargs)


@contextlib.contextmanager
def _constants_on_cpu() -> Iterator[None]:
    """Compute constants on the CPU. Their device would be used in two places: Inductor folds uniform constants by
    computing one element, and values derived from a ``torch.tensor(0.0)`` are computed while the graph is traced."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch.fx.experimental import proxy_tensor

    real = proxy_tensor.unset_fake_temporarily

    @contextlib.contextmanager
    def real_on_cpu() -> Iterator[Any]:
        with real() as outer, _OnCpu():
            yield outer

    with contextlib.ExitStack() as stack:
        stack.enter_context(patched(proxy_tensor, "unset_fake_temporarily", real_on_cpu))
        for name in ("__init__", "run"):
            original = getattr(UniformValueConstantFolder, name)

            def on_cpu(*args: Any, _original: Any = original, **kwargs: Any) -> Any:
                with _OnCpu():
                    return _original(*args, **kwargs)

            stack.enter_context(patched(UniformValueConstantFolder, name, on_cpu))
        yield


# --- generated modules ------------------------------------------------------------------------


@contextlib.contextmanager
def _modules_read() -> Iterator[None]:
    """Let Inductor read a generated module for its kernels instead of executing it."""
    from torch._inductor.codecache import PyCodeCache

    original = PyCodeCache.load_by_key_path

    def load_by_key_path(key: str, path: str, *args: Any, **kwargs: Any) -> Any:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if "async_compile = AsyncCompile()" not in text:
            return original(key, path, *args, **kwargs)
        return _read(text, path)

    with patched(PyCodeCache, "load_by_key_path", load_by_key_path):
        yield


# Kinds of kernels that compile without a device.
_COMPILED_APART = ("triton", "cpp_pybinding", "cuda")


def _read(text: str, path: str) -> types.ModuleType:
    from torch._inductor.async_compile import AsyncCompile

    compiler, made = AsyncCompile(), dict[str, Any]()
    for node in ast.walk(ast.parse(text)):
        owner, kind = import_paths.called(node)
        if owner != "async_compile" or kind == "wait":
            continue
        assert isinstance(node, ast.Call)
        if kind not in _COMPILED_APART:
            raise UnansweredError(f"a kernel of the kind {kind}")
        arguments = [ast.literal_eval(argument) for argument in node.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in node.keywords if keyword.arg}
        made[f"kernel {len(made)}"] = getattr(compiler, kind)(*arguments, **named)
    for kernel in made.values():  # without `collecting`, torch returns them compiled but not loaded
        if (compiling := getattr(kernel, "future", None)) is not None:
            compiling.result()
    compiler.wait({})
    module = types.ModuleType("fxpool_unexecuted")
    module.__file__ = path
    module.call = _never_called  # type: ignore[attr-defined]
    if "\nrunner = Runner(" in text:  # a partitioned graph, as CUDA graphs need it
        module.runner = _Runner()  # type: ignore[attr-defined]
    return module


class _Runner:
    """Replaces the runner of a partitioned graph that is not called here: it wraps nothing around the partitions."""

    def __init__(self) -> None:
        self.partitions: list[Any] = []  # torch deletes it with the graph

    def recursively_apply_fns(self, functions: Any) -> None:
        pass


def _never_called(*args: Any) -> Any:
    raise RuntimeError("a graph was called in the process that compiled it")
