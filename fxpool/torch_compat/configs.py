"""Inductor's, functorch's and the shape machinery's configuration as data, for keys and for workers.

Portable values (numbers, strings, lists) travel and are hashed. Values that are code (custom
passes, estimators) are listed by `code_values`: they go into a key by their ``uuid()`` and
travel only if they can be pickled by name.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config
import torch.fx.experimental._config as fx_config

_MODULES: dict[str, Any] = {"inductor": inductor_config, "functorch": functorch_config, "fx": fx_config}

# Not portable by torch's list, but plain data that decides what is generated.
_ALSO = {
    "inductor": ("pre_grad_pass_timing", "force_disable_cudagraph_TESTING_ONLY", "trace.provenance_tracking_level"),
    "functorch": ("_test_disable_functionalization",),
    "fx": (),
}

# They say how a compile is run or where things are kept, not what comes out of it.
_NOT_IN_KEYS = {
    "inductor": {
        "compile_threads", "worker_start_method", "worker_suppress_logging", "worker_log_path",
        "fx_graph_cache", "fx_graph_remote_cache", "autotune_local_cache", "autotune_remote_cache",
        "bundled_autotune_remote_cache", "bundle_triton_into_fx_graph_cache", "force_disable_caches",
        "quiesce_async_compile_pool", "quiesce_async_compile_time", "verbose_progress", "disable_progress",
        "log_tlparse", "enable_auto_functionalized_v2_log", "autotune_in_subproc", "subprocess_autotune_timeout",
        "sleep_sec_TESTING_ONLY", "_profile_var", "profiler_mark_wrapper_call_log", "cpp.cxx",
        "cpp_cache_precompile_headers", "save_args", "developer_warnings",
    },
    "functorch": {
        "enable_autograd_cache", "enable_remote_autograd_cache", "bundled_autograd_cache", "strict_autograd_cache",
        "force_autograd_cache", "autograd_cache_normalize_inputs", "cse_log", "debug_assert_log",
        "force_non_lazy_backward_lowering",
    },
    "fx": {"print_data_dependent_error", "translation_validation_no_bisect"},
}  # fmt: skip

_CODE = {
    "inductor": (
        "pre_grad_custom_pass", "joint_custom_pre_pass", "joint_custom_post_pass", "post_grad_custom_pre_pass",
        "post_grad_custom_post_pass", "_pre_fusion_custom_pass", "_post_fusion_custom_pass", "cudagraph_policy",
        "custom_partitioner_fn", "reorder_for_compute_comm_overlap_passes_custom", "custom_should_partition_ops_fn",
    ),
    "functorch": (
        "activation_memory_budget_runtime_estimator", "activation_memory_budget_solver", "joint_custom_pass",
    ),
    "fx": (),
}  # fmt: skip


def capture() -> dict[str, dict[str, Any]]:
    """Portable configuration by module; what `entered` needs to reproduce it."""
    state: dict[str, dict[str, Any]] = {}
    for name, module in _MODULES.items():
        values = _portable(module)
        for extra in _ALSO[name]:
            with contextlib.suppress(AttributeError):
                values[extra] = getattr(module, extra)
        for key in [key for key, value in values.items() if type(value) not in _ATOMS and _is_code(value)]:
            del values[key]
        state[name] = values
    return state


# Where torch can keep what it last exported (2.13), it does so at a tenth of the cost.
_KEEPS = "readonly_values" in inspect.signature(type(inductor_config).save_config_portable).parameters


def _portable(module: Any) -> dict[str, Any]:
    if not _KEEPS:
        return module.save_config_portable(ignore_private_configs=False)
    values = module.save_config_portable(ignore_private_configs=False, readonly_values=True)
    for name in [name for name, value in values.items() if type(value) not in _IMMUTABLE]:
        # Changed in place, torch would not have noticed.
        values[name] = _copied(getattr(module, name))
    return values


_ATOMS = frozenset((int, float, bool, str, type(None)))
_IMMUTABLE = _ATOMS | {types.FunctionType, types.BuiltinFunctionType}


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple, set) and all(type(part) in _ATOMS for part in value):
        return type(value)(value)  # most are, and it takes a tenth of the time
    return copy.deepcopy(value)


def _is_code(value: Any) -> bool:
    return callable(value) or (isinstance(value, (list, tuple)) and any(callable(v) for v in value))


def key_values(state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The part of `capture` that decides what is generated."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in state.items():
        found[name] = kept = dict(values)
        for key in _names_not_in_keys(name):
            kept.pop(key, None)
    return found


@functools.cache
def _names_not_in_keys(name: str) -> frozenset[str]:
    tracing = {key for key in _MODULES[name]._config if key.startswith("trace.")}
    return frozenset(_NOT_IN_KEYS[name] | tracing.difference(_ALSO[name]))


def code_values() -> dict[str, Any]:
    """Configured functions and pass objects, by ``module.name``; empty in an ordinary program."""
    found: dict[str, Any] = {}
    for name, module in _MODULES.items():
        for key in _CODE[name]:
            value = getattr(module, key, None)
            if value is not None and not isinstance(value, str):
                found[f"{name}.{key}"] = value
    for key in ("_fuse_ddp_communication_passes",):
        value = getattr(inductor_config, key, None)
        if isinstance(value, (list, tuple)) and any(callable(v) for v in value):
            found[f"inductor.{key}"] = value
    return found


@contextlib.contextmanager
def entered(state: dict[str, dict[str, Any]], code: dict[str, Any] | None = None) -> Iterator[None]:
    """Configuration as captured elsewhere. Only values that differ are patched."""
    changes: dict[str, dict[str, Any]] = {}
    for name, values in state.items():
        module = _MODULES[name]
        changes[name] = {}
        for key, value in values.items():
            try:
                here = getattr(module, key)
            except AttributeError:
                continue
            if here != value or type(here) is not type(value):
                changes[name][key] = value
    for path, value in (code or {}).items():
        name, key = path.split(".", 1)
        changes.setdefault(name, {})[key] = value
    with contextlib.ExitStack() as stack:
        for name, changed in changes.items():
            if changed:
                stack.enter_context(_MODULES[name].patch(changed))
        yield


def inductor_option_names() -> list[str]:
    """Every option ``torch.compile(options=...)`` may name."""
    return sorted(inductor_config.get_config_copy())


def check_inductor_option(name: str, value: Any) -> tuple[str, Any]:
    """The option's name as the configuration spells it, and the value.

    Raises:
        KeyError: there is no such option.
        TypeError: the value is of another type than the option's.
    """
    attribute = name.replace("-", "_")
    if attribute not in inductor_config._config and attribute not in inductor_option_names():
        raise KeyError(name)
    expected = inductor_config.get_type(attribute) if hasattr(inductor_config, "get_type") else None
    if (
        expected is not None
        and isinstance(expected, type)
        and value is not None
        and not isinstance(value, expected)
        and not (expected is float and isinstance(value, int))
    ):
        raise TypeError(f"option {name!r} takes {expected.__name__}, not {type(value).__name__}")
    return attribute, value


def mode_options(mode: str) -> dict[str, Any]:
    """Inductor options behind torch.compile's mode names; KeyError for an unknown one."""
    import torch._inductor

    table = torch._inductor.list_mode_options()
    return dict(table[mode])


def mode_names() -> list[str]:
    import torch._inductor

    return sorted(torch._inductor.list_mode_options())


def patched(options: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Inductor options in force for a while."""
    return inductor_config.patch(options) if options else contextlib.nullcontext()


def freezing() -> bool:
    return bool(inductor_config.freezing)


# Options under which lowering itself runs code on the device to choose by time, or needs it for anything else.
_MEASURING = ("max_autotune_custom_op", "benchmark_fusion", "benchmark_combo_kernel", "benchmark_template_fusion",
              "runtime_estimations_mms_benchmark", "multi_kernel_hints", "triton.multi_kernel", "cpp_wrapper",
              "profile_bandwidth", "benchmark_kernel")  # fmt: skip
# Options under which templates are timed in other ways than `autotuning` knows; whose templates it does know.
_TIMED_OTHERWISE = ("pipeline_max_autotune_gemm", "distributed_max_autotune_gemm")
_BACKENDS_TIMED = {"ATEN", "TRITON", "CPP"}


def times_templates() -> bool:
    """Whether lowering chooses between templates by time."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def measures() -> str:
    """The first option in force that has lowering measure on a device in a way that only it can; empty if none has."""
    names = [*_MEASURING, *(_TIMED_OTHERWISE if times_templates() else ())]
    for name in names:
        value: Any = inductor_config
        for part in name.split("."):
            value = getattr(value, part, None)
        if value:
            return name
    if times_templates():
        if not inductor_config.benchmark_epilogue_fusion:  # registers decide then, which a loaded kernel knows
            return "benchmark_epilogue_fusion"
        for name in ("max_autotune_gemm_backends", "max_autotune_conv_backends"):
            if {one.strip().upper() for one in getattr(inductor_config, name).split(",")} - _BACKENDS_TIMED:
                return name
    return ""


def caches_disabled() -> bool:
    """Whether the user turned every compile cache off (torch.compiler.config.force_disable_caches)."""
    import torch

    return bool(inductor_config.force_disable_caches or torch.compiler.config.force_disable_caches)


def functions_marked_cacheable() -> frozenset[str]:
    """Functions the user vouches for, by qualified name (``unsafe_marked_cacheable_functions``)."""
    return frozenset(inductor_config.unsafe_marked_cacheable_functions or ())
