"""Captures and re-enters global state that affects compiled code, outside the configuration modules.

`TABLE` has a reader and a writer for each switch, so that a captured switch cannot be forgotten on re-entry. `capture`
reads every switch into plain data. `entered` puts a process (or a new thread, which starts with defaults) into that
state temporarily. State that cannot be re-entered elsewhere (see `thread_state`) is not included. torch's other
switches are listed, with the reason, beside the test that enumerates torch (``tests/lowering/switch_decisions.py``).
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpool.torch_compat.dynamo import process_groups
from fxpool.torch_compat.state import compile_flags

__all__ = ["AUTOCAST_DEVICES", "OF_A_THREAD", "OF_CPU", "TABLE", "Reader", "Writer", "capture", "entered"]


def capture() -> dict[str, Any]:
    """Return every switch as plain data (strings, numbers, booleans, lists), without those this build cannot read."""
    state: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some readers warn of their newer names
        for name, (read, _) in TABLE.items():
            # Fails for a build without the backend, or for a mix of old and new precision switches that torch refuses
            # to read by the old name. The same state reads the same way in every process that re-enters it.
            with contextlib.suppress(RuntimeError, AttributeError, TypeError):
                state[name] = read()
    return state


@contextlib.contextmanager
def entered(state: dict[str, Any], *, thread_only: bool = False) -> Iterator[None]:
    """Put this thread (and, unless `thread_only`, the process's global switches) into `state`; restore it afterwards.

    Only switches that differ are written. So re-entry in the process that captured the state changes only switches
    that a new thread does not inherit.
    """
    names = [name for name in TABLE if not thread_only or name in OF_A_THREAD]
    before = capture()
    with _inference_mode(state.get("inference", False)):  # it sets others of autograd's switches: before them
        try:
            _write(names, state)
            yield
        finally:
            _write(names, before)


@contextlib.contextmanager
def _inference_mode(on: bool) -> Iterator[None]:
    """Have inference mode on or off in a block. torch has no other setter for it."""
    if torch.is_inference_mode_enabled() == on:
        yield
        return
    with torch.inference_mode(on):
        yield


def _write(names: list[str], state: dict[str, Any]) -> None:
    """Set switches that differ, in the order of the table: a switch that sets others comes before them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the same warnings as when reading
        for name in names:
            read, write = TABLE[name]
            if write is not None and name in state and _differs(read, state[name]):
                write(state[name])


def _differs(read: Reader, value: Any) -> bool:
    try:
        return bool(read() != value)
    except (RuntimeError, AttributeError, TypeError):
        return True  # a mix that torch refuses to read; setting it ends the mix


Reader = Callable[[], Any]
Writer = Callable[[Any], None]
Switches = dict[str, tuple[Reader, Writer | None]]

#: Switches that affect only C++ code.
OF_CPU = frozenset(("num_threads",))

# Below the smallest normal number: a product with it is zero if denormals are flushed.
_DENORMAL, _ONE = 5e-324, 1.0


def _attribute(owner: Any, name: str) -> tuple[Reader, Writer]:
    return (lambda: getattr(owner, name)), (lambda value: setattr(owner, name, value))


def _later(module: str, name: str, default: Any) -> tuple[Reader, Writer]:
    """Return reader and writer of a global in a module that most programs never import: `default` until it is."""

    def read() -> Any:
        return getattr(sys.modules.get(module), name, default)

    def write(value: Any) -> None:
        import importlib

        setattr(importlib.import_module(module), name, value)

    return read, write


def _enumerated(owner: Any, getter: str, setter: str) -> tuple[Reader, Writer] | None:
    """Return a getter and setter of one of torch's enumerations, by number; None if this release lacks them."""
    read, write = getattr(owner, getter, None), getattr(owner, setter, None)
    if read is None or write is None:
        return None
    return (lambda: int(read())), (lambda number: write(type(read())(number)))


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _specialized_floats() -> list[str]:
    tracer = sys.modules.get("torch._dynamo.symbolic_convert")
    return sorted(tracer.TensorifyState.force_specializations) if tracer is not None else []


def _specialize_floats(names: list[str]) -> None:
    from torch._dynamo.symbolic_convert import TensorifyState

    TensorifyState.force_specializations = set(names)


def _pairs(owner: Any, **names: tuple[str, str]) -> Switches:
    """Return the switches with these getters and setters of an object; names that it lacks are left out."""
    return {
        name: (getattr(owner, getter), getattr(owner, setter))
        for name, (getter, setter) in names.items()
        if hasattr(owner, getter) and hasattr(owner, setter)
    }


def _numbers(**names: tuple[str, str]) -> Switches:
    """Return the same for enumerations of torch's, by number."""
    found = {name: _enumerated(torch._C, *accessors) for name, accessors in names.items()}
    return {name: accessors for name, accessors in found.items() if accessors is not None}


def _of_tensors() -> Switches:
    return {
        "default_dtype": (
            lambda: _dtype_name(torch.get_default_dtype()),
            lambda name: torch.set_default_dtype(getattr(torch, name)),
        ),
        "default_device": (_default_device, torch.set_default_device),
        "num_threads": (torch.get_num_threads, torch.set_num_threads),
        "flush_denormal": (lambda: _DENORMAL * _ONE == 0.0, torch.set_flush_denormal),
        "deterministic": (
            lambda: [
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ],
            lambda pair: torch._C._set_deterministic_algorithms(pair[0], warn_only=pair[1]),
        ),
        "fill_uninitialized_memory": _attribute(torch.utils.deterministic, "fill_uninitialized_memory"),
    }


def _of_autograd() -> Switches:
    """Return switches that the autograd engine and AOTAutograd read."""
    core: Any = torch._C
    switches: Switches = {
        "anomaly": (
            lambda: [torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()],
            lambda pair: torch.set_anomaly_enabled(*pair),
        ),
        # Floats that a pass asked Dynamo to specialize in an earlier trace: the pass does not ask twice.
        "specialized_floats": (_specialized_floats, _specialize_floats),
        "inference": (torch.is_inference_mode_enabled, None),  # `entered` sets it
        "saved_tensor_hooks_disabled": (
            core._autograd._saved_tensors_hooks_get_disabled_error_message,
            _disable_saved_tensor_hooks,
        ),
    }
    switches |= _pairs(
        core,
        grad=("is_grad_enabled", "_set_grad_enabled"),
        forward_grad=("_is_fwd_grad_enabled", "_set_fwd_grad_enabled"),
        grad_layout_enforcement=("_is_grad_layout_enforcement_enabled", "_set_grad_layout_enforcement_enabled"),
        multithreading=("_is_multithreading_enabled", "_set_multithreading_enabled"),
        view_replay=("_is_view_replay_enabled", "_set_view_replay_enabled"),
        autograd_fallback=("_get_autograd_fallback_mode", "_set_autograd_fallback_mode"),
        only_lift_cpu_tensors=("_only_lift_cpu_tensors", "_set_only_lift_cpu_tensors"),
        sparse_invariants=("_check_sparse_tensor_invariants", "_set_check_sparse_tensor_invariants"),
        dtensor_implicit_replication=(
            "_get_dtensor_allow_implicit_replication",
            "_set_dtensor_allow_implicit_replication",
        ),
        autocast_cache=("is_autocast_cache_enabled", "set_autocast_cache_enabled"),
    )  # fmt: skip
    switches |= _pairs(
        core._functorch,
        vmap_fallback=("_is_vmap_fallback_enabled", "_set_vmap_fallback_enabled"),
        inplace_requires_grad=("get_inplace_requires_grad_allowed", "set_inplace_requires_grad_allowed"),
        single_level_functions=(
            "get_single_level_autograd_function_allowed",
            "set_single_level_autograd_function_allowed",
        ),
    )
    if hasattr(core, "_functionalization_reapply_views_tls"):
        switches["reapply_views"] = (
            core._functionalization_reapply_views_tls,
            torch._functionalize_enable_reapply_views,
        )
    switches |= _numbers(torch_function=("_get_torch_function_state", "_set_torch_function_state"))
    return switches | {f"autocast_{device}": _autocast(device) for device in AUTOCAST_DEVICES}


def _of_kernels() -> Switches:
    """Return switches that select operators' kernels."""
    core: Any = torch._C
    switches = _pairs(
        core,
        sdp_flash=("_get_flash_sdp_enabled", "_set_sdp_use_flash"),
        sdp_flash_3=("_get_fa3_sdp_enabled", "_set_sdp_use_fa3"),
        sdp_flash_4=("_get_fa4_sdp_enabled", "_set_sdp_use_fa4"),
        sdp_mem_efficient=("_get_mem_efficient_sdp_enabled", "_set_sdp_use_mem_efficient"),
        sdp_math=("_get_math_sdp_enabled", "_set_sdp_use_math"),
        sdp_cudnn=("_get_cudnn_sdp_enabled", "_set_sdp_use_cudnn"),
        sdp_overrideable=("_get_overrideable_sdp_enabled", "_set_sdp_use_overrideable"),
        sdp_math_reduction=(
            "_get_math_sdp_allow_fp16_bf16_reduction",
            "_set_math_sdp_allow_fp16_bf16_reduction",
        ),
        mkldnn=("_get_mkldnn_enabled", "_set_mkldnn_enabled"),
        mkldnn_deterministic=("_get_mkldnn_deterministic", "_set_mkldnn_deterministic"),
        nnpack=("_get_nnpack_enabled", "_set_nnpack_enabled"),
        quantized_engine=("_get_qengine", "_set_qengine"),
        cudnn=("_get_cudnn_enabled", "_set_cudnn_enabled"),
        cudnn_benchmark=("_get_cudnn_benchmark", "_set_cudnn_benchmark"),
        cudnn_benchmark_limit=("_cuda_get_cudnn_benchmark_limit", "_cuda_set_cudnn_benchmark_limit"),
        cudnn_deterministic=("_get_cudnn_deterministic", "_set_cudnn_deterministic"),
        cudnn_depthwise_kernel=("_get_cudnn_depthwise_kernel", "_set_cudnn_depthwise_kernel"),
        miopen_immediate=("_get_miopen_immediate", "_set_miopen_immediate"),
        sm_carveout=("_get_sm_carveout_experimental", "_set_sm_carveout_experimental"),
        cublaslt_grouped=("_get_cublaslt_prefer_grouped_gemm", "_set_cublaslt_prefer_grouped_gemm"),
        native_aot=("_get_native_aot_enabled", "_set_native_aot_enabled"),
        native_aot_masked=("_get_native_aot_unconditional_masked", "_set_native_aot_unconditional_masked"),
    )
    switches["sdp_priority"] = (
        lambda: [int(b) for b in core._get_sdp_priority_order()],
        lambda order: core._set_sdp_priority_order(list(order)),
    )
    switches |= _numbers(
        blas=("_get_blas_preferred_backend", "_set_blas_preferred_backend"),
        linalg=("_get_linalg_preferred_backend", "_set_linalg_preferred_backend"),
        rocm_flash=("_get_rocm_fa_preferred_backend", "_set_rocm_fa_preferred_backend"),
    )
    switches["flash_implementation"] = (_flash_implementation, None)  # its kernels run in the program's process
    if hasattr(torch.backends, "python_native"):
        switches["python_native"] = (_native_filters, _set_native_filters)
    return switches | {
        "opt_einsum": _attribute(torch.backends.opt_einsum, "enabled"),
        "opt_einsum_strategy": _attribute(torch.backends.opt_einsum, "strategy"),
        "mha_fastpath": (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    }


def _of_precision() -> Switches:
    core: Any = torch._C
    switches = _pairs(
        core,
        cpu_allow_fp16_reduced_precision_reduction=(
            "_get_cpu_allow_fp16_reduced_precision_reduction",
            "_set_cpu_allow_fp16_reduced_precision_reduction",
        ),
        onednn_allow_tf32=("_get_onednn_allow_tf32", "_set_onednn_allow_tf32"),
        cuda_allow_fp16_accumulation=("_get_cublas_allow_fp16_accumulation", "_set_cublas_allow_fp16_accumulation"),
    )
    # A switch that sets others (the precision of products by its old name) comes before them.
    switches["float32_matmul_precision"] = (torch.get_float32_matmul_precision, core._set_float32_matmul_precision)
    for dtype in ("fp16", "bf16"):
        switches[f"cuda_allow_{dtype}_reduced_precision_reduction"] = _reduction(dtype)
    # By operator (these replaced allow_tf32 one release at a time); the general ones first.
    for backend in ("generic", "cuda", "mkldnn"):
        for operator in ("all", "matmul", "conv", "rnn") if backend != "generic" else ("all",):
            switches[f"fp32_precision_{backend}_{operator}"] = _fp32_precision(backend, operator)
    return switches


def _of_modules() -> Switches:
    """Return globals of Python modules, and facts that are set once."""
    switches: Switches = {
        "distribution_validation": _attribute(torch.distributions.Distribution, "_validate_args"),  # set by Dynamo
        "checkpoint_early_stop": _later("torch.utils.checkpoint", "_enable_checkpoint_early_stop", None),
    }
    for name, default in (
        ("_FORCE_MIN_COST_REDISTRIBUTION_PLAN", None),
        ("_DISABLE_REDISTRIBUTE_TRANSFORM_OPTIMIZATION", False),
    ):
        switches[f"dtensor{name.lower()}"] = _later("torch.distributed.tensor._redistribute", name, default)
    switches["numpy_dtypes"] = (_numpy_dtypes, _set_numpy_dtypes)
    semi_structured = getattr(torch.sparse, "SparseSemiStructuredTensor", None)
    for name in ("_FORCE_CUTLASS", "_FUSE_TRANSPOSE", "_DEFAULT_ALG_ID"):
        if hasattr(semi_structured, name):
            switches[f"semi_structured{name.lower()}"] = _attribute(semi_structured, name)
    switches["private_device"] = (torch._C._get_privateuse1_backend_name, None)  # set once, by its library
    switches["process_group"] = (process_groups.initialized, None)  # a worker is shown a stand-in
    return switches


def _autocast(device: str) -> tuple[Reader, Writer]:
    """Return a switch of [on, dtype]: the dtype counts even if off, as a function may enable autocast itself."""

    def write(value: list[Any]) -> None:
        torch.set_autocast_dtype(device, getattr(torch, value[1]))
        torch.set_autocast_enabled(device, value[0])
        torch.clear_autocast_cache()  # drops casts to the other dtype

    return (lambda: [torch.is_autocast_enabled(device), _dtype_name(torch.get_autocast_dtype(device))]), write


def _reduction(dtype: str) -> tuple[Reader, Writer]:
    """Return a switch for reductions in lower precision and for split-K: two settings in newer releases."""
    read = getattr(torch._C, f"_get_cublas_allow_{dtype}_reduced_precision_reduction")
    write = getattr(torch._C, f"_set_cublas_allow_{dtype}_reduced_precision_reduction")

    def get() -> Any:
        value = read()
        return list(value) if isinstance(value, tuple) else value

    return get, lambda value: write(*value) if isinstance(value, list) else write(value)


def _fp32_precision(backend: str, operator: str) -> tuple[Reader, Writer]:
    return (
        lambda: torch._C._get_fp32_precision_getter(backend, operator),
        lambda value: torch._C._set_fp32_precision_setter(backend, operator, value),
    )


def _default_device() -> str | None:
    from torch.utils._device import CURRENT_DEVICE

    return str(CURRENT_DEVICE) if CURRENT_DEVICE is not None else None


def _disable_saved_tensor_hooks(message: str | None) -> None:
    if message is None:
        torch._C._autograd._saved_tensors_hooks_enable()
    else:
        torch._C._autograd._saved_tensors_hooks_disable(message)


def _flash_implementation() -> str | None:
    registry = sys.modules.get("torch.nn.attention._registry")
    current = getattr(registry, "current_flash_attention_impl", None)
    return current() if current is not None else None


# The default dtypes of torch's NumPy: from Dynamo's configuration, until they are first read or set.
_NUMPY_KINDS = ("float", "complex", "int")
_NUMPY_DEFAULTS = ("float64", "complex128", "int64")


def _numpy_dtypes() -> list[str]:
    known = getattr(sys.modules.get("torch._numpy._dtypes_impl"), "_default_dtypes", None)
    if known is not None:
        return [_dtype_name(dtype) for dtype in known]
    config = sys.modules.get("torch._dynamo.config")
    return [
        getattr(config, f"numpy_default_{kind}", name) for kind, name in zip(_NUMPY_KINDS, _NUMPY_DEFAULTS, strict=True)
    ]


def _set_numpy_dtypes(names: list[str]) -> None:
    from torch._numpy import _dtypes_impl

    _dtypes_impl._default_dtypes = _dtypes_impl.DefaultDTypes(*(getattr(torch, name) for name in names))


# The filters of `torch.backends.python_native` for disabled parts, with the names of its arguments.
_FILTERS = (("_dsl_names", "dsl_names"), ("_op_symbols", "op_symbols"), ("_dispatch_keys", "dispatch_keys"))


def _native_filters() -> list[list[str]]:
    filters = getattr(sys.modules.get("torch._native.registry"), "_filter_state", None)
    return [sorted(getattr(filters, attribute, ())) for attribute, _ in _FILTERS]


def _set_native_filters(wanted: list[list[str]]) -> None:
    from torch._native import registry

    for (_, word), off, here in zip(_FILTERS, wanted, _native_filters(), strict=True):
        if set(here) - set(off):
            registry.reenable_op_overrides(**{f"enable_{word}": sorted(set(here) - set(off))})
        if set(off) - set(here):
            registry.deregister_op_overrides(**{f"disable_{word}": sorted(set(off) - set(here))})


AUTOCAST_DEVICES: tuple[str, ...] = tuple(torch._C._autocast_supported_devices())
#: Name -> (read, write). Names that this release of torch lacks are left out.
TABLE: Switches = {
    **_of_tensors(),
    **_of_autograd(),
    **_of_kernels(),
    **_of_precision(),
    **{name: compile_flags.accessors(name) for name in compile_flags.FLAGS},
    **_of_modules(),
}

#: Per-thread switches; all others belong to the process.
OF_A_THREAD = frozenset(
    ("default_device", "flush_denormal", "inference", "saved_tensor_hooks_disabled", "grad", "forward_grad",
     "multithreading", "view_replay", "autocast_cache", "vmap_fallback", "inplace_requires_grad",
     "single_level_functions", "fx_tracing", "torch_function", "reapply_views",
     *(f"autocast_{device}" for device in AUTOCAST_DEVICES))
)  # fmt: skip
