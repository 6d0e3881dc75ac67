"""Global state of a process that shapes compiled code, outside the configuration modules.

`capture` reads every switch into plain data; `entered` puts a process (or a new thread, which
starts with all of it at its defaults) into that state for a while. Each switch is a reader and
a writer in one table, so that none can be captured and then forgotten on re-entry.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

Reader = Callable[[], Any]
Writer = Callable[[Any], None]


#: switches that shape nothing but C++
OF_CPU = frozenset(("num_threads",))


def _attribute(owner: Any, name: str) -> tuple[Reader, Writer]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _switches() -> dict[str, tuple[Reader, Writer]]:
    """Name -> (read, write). A name that this release of torch does not have is left out."""
    table: dict[str, tuple[Reader, Writer]] = {}
    backends = torch.backends
    table["grad"] = (torch.is_grad_enabled, torch._C._set_grad_enabled)
    table["default_dtype"] = (
        lambda: _dtype_name(torch.get_default_dtype()),
        lambda name: torch.set_default_dtype(getattr(torch, name)),
    )
    table["num_threads"] = (torch.get_num_threads, torch.set_num_threads)
    table["deterministic"] = (
        lambda: [torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()],
        lambda pair: torch._C._set_deterministic_algorithms(pair[0], warn_only=pair[1]),
    )
    table["fill_uninitialized_memory"] = _attribute(torch.utils.deterministic, "fill_uninitialized_memory")
    table["float32_matmul_precision"] = (torch.get_float32_matmul_precision, torch._C._set_float32_matmul_precision)
    table["autocast_cache"] = (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)

    table["sdp_flash"] = (torch._C._get_flash_sdp_enabled, torch._C._set_sdp_use_flash)
    table["sdp_mem_efficient"] = (torch._C._get_mem_efficient_sdp_enabled, torch._C._set_sdp_use_mem_efficient)
    table["sdp_math"] = (torch._C._get_math_sdp_enabled, torch._C._set_sdp_use_math)
    table["sdp_cudnn"] = (torch._C._get_cudnn_sdp_enabled, torch._C._set_sdp_use_cudnn)
    table["sdp_overrideable"] = (torch._C._get_overrideable_sdp_enabled, torch._C._set_sdp_use_overrideable)
    table["sdp_math_reduction"] = (
        torch._C._get_math_sdp_allow_fp16_bf16_reduction,
        torch._C._set_math_sdp_allow_fp16_bf16_reduction,
    )
    table["sdp_priority"] = (
        lambda: [int(b) for b in torch._C._get_sdp_priority_order()],
        lambda order: torch._C._set_sdp_priority_order(list(order)),
    )

    table["mkldnn"] = (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled)
    table["mkldnn_deterministic"] = (torch._C._get_mkldnn_deterministic, torch._C._set_mkldnn_deterministic)
    table["nnpack"] = (torch._C._get_nnpack_enabled, torch._C._set_nnpack_enabled)
    table["quantized_engine"] = (torch._C._get_qengine, torch._C._set_qengine)
    table["default_device"] = (_default_device, _set_default_device)

    table["cudnn"] = (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled)
    table["cudnn_benchmark"] = (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark)
    table["cudnn_deterministic"] = (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic)
    for name in (
        "allow_fp16_reduced_precision_reduction",
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ):
        matmul = backends.cuda.matmul
        table[f"cuda_{name}"] = _attribute(matmul, name)
    # The precision switches by operator (they took the place of allow_tf32 one release at a time).
    for backend, operator in (
        ("generic", "all"),
        ("cuda", "all"),
        ("cuda", "matmul"),
        ("cuda", "conv"),
        ("cuda", "rnn"),
        ("mkldnn", "all"),
        ("mkldnn", "matmul"),
        ("mkldnn", "conv"),
        ("mkldnn", "rnn"),
    ):
        table[f"fp32_precision_{backend}_{operator}"] = _fp32_precision(backend, operator)
    table["opt_einsum"] = _attribute(backends.opt_einsum, "enabled")
    table["opt_einsum_strategy"] = _attribute(backends.opt_einsum, "strategy")
    return table


def _fp32_precision(backend: str, operator: str) -> tuple[Reader, Writer]:
    return (
        lambda: torch._C._get_fp32_precision_getter(backend, operator),
        lambda value: torch._C._set_fp32_precision_setter(backend, operator, value),
    )


def _default_device() -> str | None:
    from torch.utils._device import CURRENT_DEVICE

    return str(CURRENT_DEVICE) if CURRENT_DEVICE is not None else None


def _set_default_device(name: str | None) -> None:
    torch.set_default_device(name)


_DEVICES = tuple(d for d in ("cpu", "cuda", "xpu", "mps", "hpu") if d in torch._C._autocast_supported_devices())
_TABLE = _switches()


def capture() -> dict[str, Any]:
    """Every switch as plain data (strings, numbers, booleans, lists)."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some readers say that a newer name for themselves exists
        for name, (read, _) in _TABLE.items():
            try:
                state[name] = read()
            except (RuntimeError, AttributeError, TypeError):
                # A build without the backend, or a mix of old and new precision switches that torch
                # refuses to read. The same process state reads the same way wherever it is re-entered.
                state[name] = None
    for device in _DEVICES:
        enabled = torch.is_autocast_enabled(device)
        state[f"autocast_{device}"] = _dtype_name(torch.get_autocast_dtype(device)) if enabled else None
    return state


def _enter_autocast(device: str, dtype_name: str | None) -> contextlib.AbstractContextManager[Any]:
    if dtype_name is None:
        return torch.autocast(device, enabled=False)
    return torch.autocast(device, dtype=getattr(torch, dtype_name))


#: Switches that each thread has for itself, beside autocast; all others are the process's.
OF_A_THREAD = frozenset(("grad", "autocast_cache", "default_device"))


@contextlib.contextmanager
def entered(state: dict[str, Any], *, thread_only: bool = False) -> Iterator[None]:
    """Put this thread (and the process's global switches, but for `thread_only`) into `state`, and back afterwards.

    Only switches that differ are written, so that re-entry in the process that captured the state
    touches nothing but what a new thread starts without.
    """
    before = capture()
    names = [name for name in _TABLE if not thread_only or name in OF_A_THREAD]
    changed = [name for name in names if name in state and state[name] is not None and state[name] != before[name]]
    with contextlib.ExitStack() as stack:
        for name in changed:
            write = _TABLE[name][1]
            _quietly(write, state[name])
            if before[name] is not None:
                stack.callback(_quietly, write, before[name])
        for device in _DEVICES:
            key = f"autocast_{device}"
            if state.get(key) != before[key]:
                stack.enter_context(_enter_autocast(device, state.get(key)))
        yield


def _quietly(write: Writer, value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same remarks as when reading
        write(value)


def saved_tensor_hooks_compiled() -> bool:
    """Whether default hooks for saved tensors are installed that AOTAutograd compiles into the graph.

    Those are graphs themselves. All others (a checkpoint's, `save_on_cpu`) run around compiled code as around any.
    """
    from torch._functorch._aot_autograd import utils

    return bool(utils.saved_tensors_hooks_are_inlineable(utils.top_saved_tensors_hooks()))


def dispatch_modes_active() -> bool:
    """Whether a user's TorchDispatchMode is on: what it does to a graph can't be known elsewhere.

    The modes that tracing itself switches on (fake tensors, functionalization) don't count.
    """
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    return any(not type(mode).is_infra_mode() for mode in _get_current_dispatch_mode_stack())


def inference_mode() -> bool:
    return torch.is_inference_mode_enabled()
