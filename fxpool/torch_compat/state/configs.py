"""Configuration of everything that compiles, as data, for keys and for workers.

Portable values (numbers, strings, lists) are sent and hashed, except those that `config_decisions` names. Any other
value is code (custom passes, estimators, a factory of choices) or an object. `code_values` finds all of them, whatever
their names; they go into a key by uuid or content, and are sent if they can be pickled by name. Entries of back ends
for other devices count like torch's own.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import functools
import importlib
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch._dynamo  # noqa: F401  # first, see torch_compat
import torch._functorch.config as functorch_config
import torch._inductor.config as inductor_config

from fxpool import forks
from fxpool.torch_compat.state import inductor_choices
from fxpool.torch_compat.state.config_decisions import DIRECTORIES, MODULES, ONLY_TRAVELS, STAYS


def _modules() -> dict[str, Any]:
    modules: dict[str, Any] = {}
    for name, path in MODULES.items():
        with contextlib.suppress(ImportError):  # a release without it
            modules[name] = importlib.import_module(path)
    return modules


_MODULES = _modules()

# Names in `code_values` that are not configuration entries.
_NO_ENTRIES = (inductor_choices.HANDLER, inductor_choices.REGISTERED)


def capture() -> dict[str, dict[str, Any]]:
    """Return portable configuration by module, for `entered` to reproduce."""
    return captured()[0]


def per_thread() -> bool:
    """Return whether each thread has its own values, as since 2.12. Before, a value that one thread sets for a ``with``
    block applies to all threads, and two such blocks that overlap leave one of the values behind."""
    entry = inductor_config._config["max_fusion_size"]
    return isinstance(entry.user_override, contextvars.ContextVar)


def code_values() -> dict[str, Any]:
    """Return all configured values that are not plain data, by ``module.name``; empty in an ordinary program."""
    return captured()[1]


def captured() -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return (`capture`, `code_values`), read once."""
    state: dict[str, dict[str, Any]] = {}
    code: dict[str, Any] = {}
    modules = _modules_now()
    with _unwarned(modules.values()):
        for name, module in modules.items():
            state[name] = values = _values(name, module)
            for key in [key for key, value in values.items() if type(value) not in _ATOMS]:
                value = getattr(module, key)  # read directly: torch does not notice in-place changes
                if _is_plain(value):
                    values[key] = _copied(value)
                else:
                    del values[key]
                    code[f"{name}.{key}"] = value
    return state, {**code, **inductor_choices.captured()}


def _modules_now() -> dict[str, Any]:
    """Return the configuration modules by name, including those of back ends for other devices."""
    common = sys.modules.get("torch._inductor.codegen.common")
    of_devices = getattr(common, "custom_backend_codegen_configs", {})
    return {**_MODULES, **{f"device {name}": module for name, module in of_devices.items() if module is not None}}


# Since 2.13 torch can cache its last export, which is ten times as fast.
_KEEPS = "readonly_values" in inspect.signature(type(inductor_config)._get_dict).parameters


def _values(name: str, module: Any) -> dict[str, Any]:
    """Return the entries to capture. Values that are not atoms may be stale, or copies."""
    if _KEEPS:
        prefixes = getattr(module, "_cache_config_ignore_prefix", [])  # includes passes, which must not be copied
        with contextlib.suppress(Exception):  # a value that cannot be copied: read one by one, below
            values: dict[str, Any] = module._get_dict(ignored_prefixes=prefixes, readonly_values=True)
            for key in _staying(name).intersection(values):
                del values[key]
            # Since 2.15 one entry can imply others, and the export has only the explicit values of these.
            for key in (*_ignored_by_torch(name, module), *values.keys() & getattr(module, "_implications", ())):
                values[key] = getattr(module, key)
            return values
    values = {}
    for key in _entries(name, module):
        with contextlib.suppress(AttributeError):  # deleted temporarily, as mocks do
            values[key] = getattr(module, key)
    return values


@functools.cache
def _entries(name: str, module: Any) -> tuple[str, ...]:
    """Return the names of a module's entries to capture. An alias is captured under its target's name."""
    staying = _staying(name)
    return tuple(key for key, entry in module._config.items() if not entry.alias and key not in staying)


@functools.cache
def _staying(name: str) -> frozenset[str]:
    return frozenset(STAYS.get(name, ()))


@functools.cache
def _ignored_by_torch(name: str, module: Any) -> tuple[str, ...]:
    prefixes = tuple(getattr(module, "_cache_config_ignore_prefix", ()))
    return tuple(key for key in _entries(name, module) if key.startswith(prefixes))


_muted = forks.lock(__name__, "_muted", lambda: _unmute())
_muted_times = 0
_to_warn: list[Any] = []


@contextlib.contextmanager
def _unwarned(modules: Iterable[Any]) -> Iterator[None]:
    """Suppress torch's warnings about deprecated entries while all are read; the program can still get each of them."""
    global _muted_times
    with _muted:
        _muted_times += 1
        for entry in itertools.chain.from_iterable(map(_deprecated, modules)):
            if not entry._deprecation_warned:
                entry._deprecation_warned = True
                _to_warn.append(entry)
    try:
        yield
    finally:
        with _muted:
            _muted_times -= 1
            while _to_warn and not _muted_times:
                _to_warn.pop()._deprecation_warned = False


def _unmute() -> None:
    """Undo, in a forked child, the muting by another thread."""
    global _muted_times
    _muted_times = 0
    while _to_warn:
        _to_warn.pop()._deprecation_warned = False


@functools.cache
def _deprecated(module: Any) -> tuple[Any, ...]:
    return tuple(entry for entry in module._config.values() if getattr(entry, "deprecated", False))


_ATOMS = frozenset((int, float, bool, str, type(None)))


def _is_plain(value: Any) -> bool:
    kind = type(value)
    if kind in _ATOMS or kind is bytes:
        return True
    if kind in (list, tuple, set, frozenset):
        return all(_is_plain(part) for part in value)
    return kind is dict and all(_is_plain(key) and _is_plain(part) for key, part in value.items())


def _copied(value: Any) -> Any:
    if type(value) in (list, tuple, set) and all(type(part) in _ATOMS for part in value):
        return type(value)(value)  # the common case, ten times as fast
    return copy.deepcopy(value)


def key_values(state: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the part of `capture` that affects generated code."""
    by_module: dict[str, dict[str, Any]] = {}
    for name, values in state.items():
        by_module[name] = kept = dict(values)
        for key in ONLY_TRAVELS.get(name, ()):
            kept.pop(key, None)
    config = inductor_config._config
    for key in DIRECTORIES:
        if key in config and by_module["inductor"].get(key) == config[key].default:
            by_module["inductor"][key] = None  # torch's location is not part of a key
    return by_module


@contextlib.contextmanager
def entered(state: dict[str, dict[str, Any]], code: dict[str, Any] | None = None) -> Iterator[None]:
    """Apply configuration captured elsewhere. Only values that differ are patched."""
    modules = _modules_now()
    changes: dict[str, dict[str, Any]] = {}
    with _unwarned(modules.values()):
        for name, values in state.items():
            changes[name] = _differing(modules[name], values) if name in modules else {}
    for path, value in (code or {}).items():
        name, key = path.split(".", 1)
        if path not in _NO_ENTRIES and name in modules:
            changes.setdefault(name, {})[key] = value
    with contextlib.ExitStack() as stack:
        stack.enter_context(inductor_choices.entered(code or {}))
        for name, changed in changes.items():
            if changed:
                stack.enter_context(_patched_quietly(modules[name], changed))
        yield


def _differing(module: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the current configuration."""
    changes = {}
    for key, value in values.items():
        try:
            here = getattr(module, key)
        except AttributeError:
            continue
        if here != value or type(here) is not type(value):
            changes[key] = value
    return changes


@contextlib.contextmanager
def _patched_quietly(module: Any, changes: dict[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with _unwarned([module]):
            stack.enter_context(module.patch(changes))
        try:
            yield
        finally:
            with _unwarned([module]):
                stack.close()


def inductor_option_names() -> list[str]:
    """Return every option that ``torch.compile(options=...)`` may name."""
    return sorted(inductor_config.get_config_copy())


def check_inductor_option(name: str, value: Any) -> tuple[str, Any]:
    """Return the option's name as the configuration spells it, and the value.

    Raises:
        KeyError: there is no such option.
        TypeError: the value is of another type than the option's.
    """
    attribute = name.replace("-", "_")
    owner, key = _owner(attribute)
    if key not in owner._config and attribute not in inductor_option_names():
        raise KeyError(name)
    expected = owner.get_type(key) if hasattr(owner, "get_type") else None
    if (
        expected is not None
        and isinstance(expected, type)
        and value is not None
        and not isinstance(value, expected)
        and not (expected is float and isinstance(value, int))
    ):
        raise TypeError(f"option {name!r} takes {expected.__name__}, not {type(value).__name__}")
    return attribute, value


def _owner(attribute: str) -> tuple[Any, str]:
    """Return the module and the entry of an option; since 2.15 ``device.entry`` belongs to a device's back end."""
    if attribute not in inductor_config._config and "." in attribute:
        from torch._inductor.codegen import common

        if hasattr(common, "get_compile_option_owner"):
            common.init_backend_registration()  # some back ends register on demand
            return common.get_compile_option_owner(attribute) or (inductor_config, attribute)
    return inductor_config, attribute


def mode_options(mode: str) -> dict[str, Any]:
    """Return Inductor's options for one of torch.compile's modes. Raises KeyError for an unknown mode."""
    import torch._inductor

    table = torch._inductor.list_mode_options()
    return dict(table[mode])


def mode_names() -> list[str]:
    import torch._inductor

    return sorted(torch._inductor.list_mode_options())


@contextlib.contextmanager
def patched(options: dict[str, Any]) -> Iterator[None]:
    """Apply Inductor options, as `check_inductor_option` returned them, during a ``with`` block."""
    by_module: dict[Any, dict[str, Any]] = {}
    for name, value in options.items():
        owner, key = _owner(name)
        by_module.setdefault(owner, {})[key] = value
    with contextlib.ExitStack() as stack:
        for module, values in by_module.items():
            stack.enter_context(module.patch(values))
        yield


def calls_through_cpp() -> bool:
    """Return whether Inductor generates a graph's wrapper in C++ (``cpp_wrapper``)."""
    return bool(inductor_config.cpp_wrapper)


def kernels_on_first_call() -> bool:
    """Return whether a graph that is called through C++ compiles its Triton kernels on its first call.

    Since 2.12 torch decides this by itself, but only within a compile: before, the option is None.
    """
    return inductor_config.triton.autotune_at_compile_time is False


#: Inductor options that compile the kernels of a graph called through C++ together with it, time them on the device,
#: and store their binaries. Torch sets the second option only around a compile, which misses later backwards.
KERNELS_AT_COMPILE_TIME = {"triton.autotune_at_compile_time": True, "triton.store_cubin": True}


def freezing() -> bool:
    return bool(inductor_config.freezing)


# Options under which lowering itself runs code on the device, to choose by time or for another reason, or reads the
# amount of its memory (without a device, releases before 2.14 assume plenty).
_MEASURING = ("max_autotune_custom_op", "benchmark_fusion", "benchmark_combo_kernel",
              "combo_kernel_compile_time_autotune", "runtime_estimations_mms_benchmark", "multi_kernel_hints",
              "triton.multi_kernel", "profile_bandwidth", "benchmark_kernel",
              "partitioned_scatter_enabled")  # fmt: skip
# Options under which templates are timed in ways that `autotuning` does not support; backends that it supports.
_TIMED_OTHERWISE = ("pipeline_max_autotune_gemm", "distributed_max_autotune_gemm")
_BACKENDS_TIMED = {"ATEN", "TRITON", "CPP"}
# Since 2.15 the older name is an alias that warns.
_CHOOSES_BY_TIME = next(
    name for name in ("benchmark_template_fusion", "benchmark_epilogue_fusion") if name in inductor_config._config
)


def cudagraphs() -> bool:
    """Return whether Inductor records CUDA graphs, as configured."""
    return bool(inductor_config.triton.cudagraphs)


def times_templates() -> bool:
    """Return whether lowering chooses between templates by time."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def measures() -> str:
    """Return the first enabled option that makes lowering itself measure on a device; "" without such an option."""
    names = [*_MEASURING, *(_TIMED_OTHERWISE if times_templates() else ())]
    for name in names:
        value: Any = inductor_config
        for part in name.split("."):
            value = getattr(value, part, None)
        if value:
            return name
    if times_templates():
        if not getattr(inductor_config, _CHOOSES_BY_TIME):  # then register counts decide, which need a loaded kernel
            return _CHOOSES_BY_TIME
        for name in ("max_autotune_gemm_backends", "max_autotune_conv_backends"):
            if {one.strip().upper() for one in getattr(inductor_config, name).split(",")} - _BACKENDS_TIMED:
                return name
    return ""


def decides_by_memory() -> bool:
    """Return whether the amount of a device's memory affects generated code."""
    return bool(inductor_config.partitioned_scatter_enabled)


def caches_disabled() -> str | None:
    """Return the switch with which the user disabled compile caches; None if they are enabled.

    AOTAutograd's cache refers to Inductor's cache of graphs, so disabling the latter disables both.
    """
    import torch

    if inductor_config.force_disable_caches or torch.compiler.config.force_disable_caches:
        return "force_disable_caches"
    return None if inductor_config.fx_graph_cache else "fx_graph_cache"


def autograd_cache_disabled() -> bool:
    """Return whether only graphs after AOTAutograd may be cached (torch._functorch.config.enable_autograd_cache)."""
    return not functorch_config.enable_autograd_cache


@contextlib.contextmanager
def without_torchs_caches() -> Iterator[None]:
    """Compile without torch's caches of graphs, whose keys lack a program's lowerings, passes and changes."""
    with (
        inductor_config.patch(fx_graph_cache=False, fx_graph_remote_cache=False),
        functorch_config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
    ):
        yield


def must_be_kept() -> bool:
    """Return whether a graph that cannot be cached is an error (torch._functorch.config.strict_autograd_cache).

    ``aot_compile`` sets that switch as well, together with a switch to bypass keys, as it saves the graph in its file.
    """
    keyless = getattr(functorch_config, "bypass_autograd_cache_key", False)
    return bool(functorch_config.strict_autograd_cache) and not keyless


def remote_cache_wanted() -> str | None:
    """Return the switch that enables torch's remote cache; None if it is disabled."""
    if inductor_config.fx_graph_remote_cache:
        return "fx_graph_remote_cache"
    return "enable_remote_autograd_cache" if functorch_config.enable_remote_autograd_cache else None


def functions_marked_cacheable() -> frozenset[str]:
    """Return functions that the user vouches for, by qualified name (``unsafe_marked_cacheable_functions``)."""
    return frozenset(inductor_config.unsafe_marked_cacheable_functions or ())


def reads_example_values() -> bool:
    """Return whether passes over Dynamo's graph are configured that may read the values of its nodes."""
    import torch._inductor.config as inductor

    return bool(inductor.pre_grad_fusion_options or inductor.pre_grad_custom_pass)
