"""Everything that a program can set in torch, found in torch itself, and how each of it is set to something else.

`setters` and `entries` enumerate; `flips` gives, for what of it can be changed on this machine, context managers that
change it and put it back. A name of which no flip is known is for `switch_decisions` to explain.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

SETTER = re.compile(r"(^|_)(set|enable|disable|allow|use|activate|rename|restore|preferred|increment|toggle)_")
_PUBLIC = re.compile(
    r"^_?((set|enable|disable|allow|use|activate|rename|restore|preferred|toggle)(_|$)|\w*_workspace_size)"
)
#: packages that no compiled graph ever meets
_NO_PART = ("torch.testing", "torch.onnx", "torch.ao", "torch.package")


@dataclasses.dataclass(frozen=True)
class Flip:
    """`name` set to `value` within `enter()`."""

    name: str
    value: str
    enter: Callable[[], AbstractContextManager[Any]]


class CannotSetError(Exception):
    """This build or machine has no such state."""


# ---------------------------------------------------------------- what there is


def setters() -> dict[str, Any]:
    """Name -> callable, of what sets something: in the core, and below ``torch`` by public names."""
    core: Any = torch._C
    found: dict[str, Any] = {}
    for prefix, owner in (("core.", core), ("core._functorch.", core._functorch), ("core._autograd.", core._autograd)):
        for name in dir(owner):
            value = getattr(owner, name)
            if SETTER.search(name) and not re.match(r"_?(jit_)?get_", name) and _is_function(value):
                found[prefix + name] = value
    for name, module in sorted(sys.modules.items()):
        if not _is_public(name) or name.startswith(("torch.backends", *_NO_PART)) or module is None:
            continue
        for key, value in list(vars(module).items()):
            is_named_so = _PUBLIC.match(key) and (name == "torch" or not key.startswith("_"))
            # Operators are not settings: cuDNN's have such names.
            if is_named_so and _is_function(value) and not hasattr(core._VariableFunctions, key):
                found[f"{name}.{key}"] = value
    return found


def backend_attributes() -> dict[str, tuple[Any, str]]:
    """Name -> (object, attribute) of everything below ``torch.backends`` that can be assigned."""
    found: dict[str, tuple[Any, str]] = {}

    def look(path: str, owner: Any) -> None:
        for kind in type(owner).__mro__:
            for name, value in vars(kind).items():
                if hasattr(type(value), "__set__") and not name.startswith("__") and _is_settable(value):
                    found[f"{path}.{name}"] = (owner, name)
                elif type(value).__name__ == "_FP32Precision":
                    found[f"{path}.{name}.fp32_precision"] = (value, "fp32_precision")

    for name, module in sorted(sys.modules.items()):
        if name == "torch.backends" or (name.startswith("torch.backends.") and _is_public(name)):
            module = getattr(torch.backends, name.rpartition(".")[2], module) if "." in name[6:] else torch.backends
            look(name.removeprefix("torch."), module)
    products = torch.backends.cuda.matmul
    for name in _strings(type(products).__setattr__.__code__.co_consts):
        if hasattr(products, name):
            found[f"backends.cuda.matmul.{name}"] = (products, name)
    found["backends.cuda.cufft_plan_cache.max_size"] = (torch.backends.cuda.cufft_plan_cache, "max_size")
    return found


def backend_functions() -> dict[str, Any]:
    """Name -> function below ``torch.backends`` that sets something."""
    return {
        f"{name.removeprefix('torch.')}.{key}": value
        for name, module in sorted(sys.modules.items())
        if name.startswith("torch.backends") and _is_public(name) and module is not None
        for key, value in list(vars(getattr(module, "m", module)).items())
        if _PUBLIC.match(key) and not key.startswith("_") and _is_function(value) and key != "set_flags"
    }


def configuration_modules() -> dict[str, Any]:
    """Path -> module, of every module in torch's tree that torch's own installer made one of configuration."""
    root = os.path.dirname(torch.__file__)
    found: dict[str, Any] = {}
    for directory, _, files in os.walk(root):
        for file in files:
            path = os.path.join(directory, file)
            if not file.endswith(".py") or "config" not in file or "testing" in path:
                continue
            dotted = "torch." + os.path.relpath(path, root)[:-3].replace(os.sep, ".")
            with open(path, encoding="utf-8") as text:
                content = text.read()
            if "install_config_module(" in content and "def install_config_module" not in content:
                found[dotted] = importlib.import_module(dotted)
    return found


def plain_configuration_modules() -> set[str]:
    """Other modules named ``config``, which hold settings as mere globals."""
    known = set(configuration_modules())
    return {
        name
        for name, module in sys.modules.items()
        if name.startswith("torch.")
        and not name.startswith(_NO_PART)
        and name.rpartition(".")[2] in ("config", "_config")
        and isinstance(module, types.ModuleType)
    } - known


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, (type, types.ModuleType))


def _is_public(module: str) -> bool:
    parts = module.split(".")
    return parts[0] == "torch" and all(part == "__future__" or not part.startswith("_") for part in parts)


def _is_settable(value: Any) -> bool:
    return not isinstance(value, property) or value.fset is not None


def _strings(constants: Iterable[Any]) -> list[str]:
    return [name for name in constants if isinstance(name, str) and name.isidentifier()]


# ---------------------------------------------------------------- how it is changed


@contextlib.contextmanager
def _set(write: Callable[[Any], Any], value: Any, before: Any) -> Iterator[None]:
    try:
        write(value)
    except (RuntimeError, ValueError, AssertionError) as error:
        with contextlib.suppress(RuntimeError, ValueError):  # some of them are set and refused afterwards
            write(before)
        raise CannotSetError(str(error)) from error
    try:
        yield
    finally:
        write(before)


def _precisions() -> dict[tuple[str, str], str]:
    pairs = [("generic", "all"), *itertools.product(("cuda", "mkldnn"), ("all", "matmul", "conv", "rnn"))]
    return {pair: torch._C._get_fp32_precision_getter(*pair) for pair in pairs}


@contextlib.contextmanager
def _precision_restored() -> Iterator[None]:
    """Old names for the precision of products set several new ones, which are not what they were afterwards."""
    before = _precisions()
    coarse, convolutions = torch.get_float32_matmul_precision(), torch._C._get_cudnn_allow_tf32()
    try:
        yield
    finally:
        torch._C._set_float32_matmul_precision(coarse)
        torch._C._set_cudnn_allow_tf32(convolutions)
        for (backend, operator), value in before.items():
            torch._C._set_fp32_precision_setter(backend, operator, value)


def _getter(owner: Any, name: str) -> Callable[[], Any] | None:
    """The getter beside a setter, by the ways in which torch names them."""
    stem = re.sub(r"^_?set_", "", name)
    sdp = re.sub(r"^sdp_use_", "", stem)
    for candidate in (
        f"_get_{stem}", f"get_{stem}", f"_is_{stem}", f"is_{stem}", f"_{stem}", f"get_{stem}_enabled",
        f"_get_{sdp}_sdp_enabled", f"_get_{stem}_mode",
    ):  # fmt: skip
        found = getattr(owner, candidate, None)
        if found is not None and candidate != name:
            return found
    return None


def _simple(
    name: str, write: Any, read: Callable[[], Any], values: Iterable[Any], *, asked: bool = True
) -> Iterator[Flip]:
    """`asked`: whether `read` tells what became of a value, which may be another name of the one in force."""
    before = read()

    @contextlib.contextmanager
    def enter(value: Any) -> Iterator[None]:
        with _set(write, value, before):
            if asked and read() == before:
                raise CannotSetError(f"{value} means {before} here")
            yield

    for value in values:
        if value != before:
            yield Flip(name, str(value), partial(enter, value))


def _autocast_flips(name: str) -> Iterator[Flip]:
    for device in torch._C._autocast_supported_devices():
        enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
        if name.endswith("set_autocast_enabled"):
            write = partial(torch.set_autocast_enabled, device)
            yield Flip(name, device, partial(_set, write, not enabled, enabled))
        else:
            write = partial(torch.set_autocast_dtype, device)
            for other in (torch.float16, torch.bfloat16):
                if other != dtype:
                    yield Flip(name, f"{device} {other}", partial(_set, write, other, dtype))


def _fp32_flips(name: str) -> Iterator[Flip]:
    for (backend, operator), before in _precisions().items():
        for value in ("ieee", "tf32", "bf16", "none"):
            if value == before or (backend, value) == ("cuda", "bf16"):
                continue

            def write(wanted: str, pair: tuple[str, str] = (backend, operator)) -> None:
                torch._C._set_fp32_precision_setter(*pair, wanted)

            yield Flip(name, f"{backend} {operator} {value}", partial(_set, write, value, before))


def _dispatch_flips(name: str) -> Iterator[Flip]:
    # Excluding what gradients need; the keys of autocast and of modes are captured or refused by other names.
    write: Any = getattr(torch._C, name.removeprefix("core."))
    keys = ("AutogradCPU", "AutogradOther") if name.endswith("excluded") else ("Negative", "Conjugate")
    core: Any = torch._C

    @contextlib.contextmanager
    def enter(key: Any) -> Iterator[None]:
        # Put back as a whole: taking a key away leaves its device among the others'.
        sets = (core._dispatch_tls_local_include_set(), core._dispatch_tls_local_exclude_set())
        with core._ForceDispatchKeyGuard(*sets):
            write(key, True)
            yield

    for text in keys:
        yield Flip(name, text, partial(enter, core._dispatch_key_parse(text)))


@contextlib.contextmanager
def _default_tensor_type() -> Iterator[None]:
    torch._C._set_default_tensor_type(torch.DoubleTensor)
    try:
        yield
    finally:
        torch._C._set_default_tensor_type(torch.FloatTensor)


def _reduction(name: str, dtype: str) -> Iterator[Flip]:
    core: Any = torch._C
    before = getattr(core, f"_get_cublas_allow_{dtype}_reduced_precision_reduction")()
    write: Any = getattr(core, f"_set_cublas_allow_{dtype}_reduced_precision_reduction")
    if isinstance(before, tuple):
        for value in ((False, True), (False, False)):
            yield Flip(name, str(value), partial(_set, lambda pair: write(*pair), value, before))
    else:
        yield Flip(name, str(not before), lambda: _set(write, not before, before))


def _members(name: str) -> Iterator[Flip]:
    write: Any = getattr(torch._C, name.removeprefix("core."))
    read: Any = _getter(torch._C, name.removeprefix("core."))
    yield from _simple(name, write, read, list(type(read()).__members__.values()))


def _values(name: str, values: Iterable[Any], read: Callable[[], Any] | None = None) -> Iterator[Flip]:
    owner: Any = torch._C if name.startswith("core.") else torch
    short = name.rpartition(".")[2]
    getter = read or _getter(owner, short)
    assert getter is not None, name
    yield from _simple(name, getattr(owner, short), getter, values)


def _special() -> dict[str, Callable[[str], Iterator[Flip]]]:
    """Setters whose values are no mere truth, and how their flips are made."""
    core: Any = torch._C
    dtypes = (torch.float64, torch.float16, torch.bfloat16)
    matmul = ("highest", "high", "medium")
    threads = torch.get_num_threads()

    def pair(write: Callable[[Any], Any], values: Iterable[Any], before: Any) -> Callable[[str], Iterator[Flip]]:
        return lambda name: _simple(name, write, lambda: before, values, asked=False)

    def whole(write: Callable[[Any], Any], values: Iterable[Any]) -> Callable[[str], Iterator[Flip]]:
        """Of what changes several precisions: all of them are put back."""

        @contextlib.contextmanager
        def enter(value: Any) -> Iterator[None]:
            with _precision_restored(), _set(write, value, value):
                yield

        return lambda name: iter(Flip(name, str(v), partial(enter, v)) for v in values)

    deterministic = pair(
        lambda p: core._set_deterministic_algorithms(p[0], warn_only=p[1]),
        [(True, False), (True, True)],
        (False, False),
    )
    anomaly = pair(
        lambda p: torch.set_anomaly_enabled(*p), [(True, True), (True, False), (False, False)], (False, True)
    )
    tensor_type: Callable[[str], Iterator[Flip]] = lambda name: iter([Flip(name, "double", _default_tensor_type)])  # noqa: E731
    found: dict[str, Callable[[str], Iterator[Flip]]] = {
        "core._dispatch_tls_set_dispatch_key_excluded": _dispatch_flips,
        "core._dispatch_tls_set_dispatch_key_included": _dispatch_flips,
        "core._set_fp32_precision_setter": _fp32_flips,
        "core._set_default_tensor_type": tensor_type,
        "torch.set_default_tensor_type": tensor_type,
        "core._set_default_dtype": lambda name: _values(name, dtypes, torch.get_default_dtype),
        "torch.set_default_dtype": lambda name: _values(name, dtypes),
        "torch.set_default_device": lambda name: _simple(
            name, torch.set_default_device, lambda: None, ["meta"], asked=False
        ),
        "core._set_deterministic_algorithms": deterministic,
        "torch.use_deterministic_algorithms": deterministic,
        "torch.set_deterministic_debug_mode": pair(torch.set_deterministic_debug_mode, [1, 2], 0),
        "core.set_anomaly_enabled": anomaly,
        "torch.set_anomaly_enabled": anomaly,
        "core._set_sdp_priority_order": lambda name: _values(name, [core._get_sdp_priority_order()[::-1]]),
        "core._set_qengine": lambda name: _values(name, core._supported_qengines()),
        "core._set_autograd_fallback_mode": lambda name: _values(name, ["nothing", "warn", "error"]),
        "core._set_cudnn_depthwise_kernel": lambda name: _values(name, ["auto", "cudnn", "native"]),
        "core._set_sm_carveout_experimental": lambda name: _values(name, [4]),
        "core._set_blas_preferred_backend": _members,
        "core._set_linalg_preferred_backend": _members,
        "core._set_rocm_fa_preferred_backend": _members,
        "core._set_torch_function_state": _members,
        "core._set_float32_matmul_precision": whole(core._set_float32_matmul_precision, matmul[1:]),
        "torch.set_float32_matmul_precision": whole(torch.set_float32_matmul_precision, matmul[1:]),
        "core._set_cublas_allow_tf32": whole(core._set_cublas_allow_tf32, [True]),
        "core._set_cudnn_allow_tf32": whole(core._set_cudnn_allow_tf32, [False]),
        "core.set_flush_denormal": pair(torch.set_flush_denormal, [True], False),
        "torch.set_flush_denormal": pair(torch.set_flush_denormal, [True], False),
        "core.set_num_threads": pair(torch.set_num_threads, [threads + 1], threads),
        "torch.set_num_threads": pair(torch.set_num_threads, [threads + 1], threads),
        "torch._functionalize_enable_reapply_views": pair(torch._functionalize_enable_reapply_views, [True], False),
        "torch.autograd.graph.disable_saved_tensors_hooks": lambda name: iter(
            [Flip(name, "on", lambda: torch.autograd.graph.disable_saved_tensors_hooks("not now"))]
        ),
        "torch.utils.checkpoint.set_checkpoint_early_stop": lambda name: iter(
            [Flip(name, "off", lambda: torch.utils.checkpoint.set_checkpoint_early_stop(False))]
        ),
        "core._set_cublas_allow_fp16_reduced_precision_reduction": lambda name: _reduction(name, "fp16"),
        "core._set_cublas_allow_bf16_reduced_precision_reduction": lambda name: _reduction(name, "bf16"),
    }
    for device in ("cpu", "gpu", "ipu", "xla"):
        for home in ("core", "torch"):
            kind = "cuda" if device == "gpu" else device
            dtype = torch.get_autocast_dtype(kind)
            found[f"{home}.set_autocast_{device}_dtype"] = pair(
                getattr(torch, f"set_autocast_{device}_dtype", None),  # type: ignore[arg-type]
                [torch.float16 if dtype == torch.bfloat16 else torch.bfloat16],
                dtype,
            )
    for home in ("core", "torch"):
        found[f"{home}.set_autocast_enabled"] = found[f"{home}.set_autocast_dtype"] = _autocast_flips
    return found


def setter_flips() -> Iterator[Flip]:
    """Of every setter that can be understood: how its state is changed."""
    special = _special()
    for name, write in setters().items():
        if name in special:
            yield from special[name](name)
            continue
        owner: Any = torch._C._functorch if "_functorch." in name else torch._C
        read = _getter(owner, name.rpartition(".")[2])
        if read is None or not name.startswith(("core.", "torch.set_")):
            continue
        with contextlib.suppress(TypeError, RuntimeError):  # a getter of something that is asked for by name
            before = read()
            if isinstance(before, bool):
                yield Flip(name, str(not before), partial(_set, write, not before, before))


def backend_flips() -> Iterator[Flip]:
    """Of everything below ``torch.backends``."""
    core: Any = torch._C
    for name, (owner, attribute) in backend_attributes().items():
        try:
            before = getattr(owner, attribute)
        except (RuntimeError, AttributeError, AssertionError):
            continue

        def write(value: Any, owner: Any = owner, attribute: str = attribute) -> None:
            setattr(owner, attribute, value)

        values: Iterable[Any] = ()
        if isinstance(before, bool):
            values = (not before,)
        elif attribute == "fp32_precision":
            values = [v for v in ("ieee", "tf32") if v != before]
        elif name == "backends.quantized.engine":
            values = [e for e in torch.backends.quantized.supported_engines if e != before]
        elif attribute == "depthwise_kernel":
            values = ("cudnn", "native")
        elif attribute == "benchmark_limit":
            values = (before + 1,) if before is not None else ()
        elif attribute == "strategy" and before is not None:
            values = ("greedy", "optimal")
        for value in values:

            @contextlib.contextmanager
            def enter(write: Any = write, value: Any = value, before: Any = before) -> Iterator[None]:
                with _precision_restored(), _set(write, value, before):
                    yield

            yield Flip(name, str(value), enter)
    for name in backend_functions():
        function = backend_functions()[name]
        short = name.rpartition(".")[2]
        reads: dict[str, Any] = {
            "enable_flash_sdp": core._get_flash_sdp_enabled,
            "enable_mem_efficient_sdp": core._get_mem_efficient_sdp_enabled,
            "enable_math_sdp": core._get_math_sdp_enabled,
            "enable_cudnn_sdp": core._get_cudnn_sdp_enabled,
            "allow_fp16_bf16_reduction_math_sdp": core._get_math_sdp_allow_fp16_bf16_reduction,
            "set_fastpath_enabled": torch.backends.mha.get_fastpath_enabled,
        }
        if short in reads:
            before = reads[short]()
            yield Flip(name, str(not before), partial(_set, function, not before, before))
        elif short.startswith("preferred_"):
            yield from _simple(name, function, function, list(type(function()).__members__.values()))


# ---------------------------------------------------------------- configuration


def some_function(*_: Any) -> None:
    """What is configured where code is asked for."""


def other_values(module: Any, name: str) -> list[Any]:
    """Legal values of an entry that are not the one in force; all of them where they are few."""
    before, entry = getattr(module, name), module._config[name]
    kind = getattr(entry, "value_type", None)
    if typing.get_origin(kind) is typing.Literal and (others := set(typing.get_args(kind)) - {before}):
        return sorted(others, key=str)
    if isinstance(before, bool):
        return [not before]
    if isinstance(before, (int, float)):
        return [before + 1]
    if isinstance(before, str):
        return [before + "x"]
    if isinstance(before, (list, tuple)):
        return [type(before)([*before, "x"])]
    if isinstance(before, set):
        return [before | {"x"}]
    if isinstance(before, dict):
        return [{**before, "x": "y"}]
    said = str(kind)
    if "Callable" in said or "Pass" in said or "Fn" in said or "Policy" in said:
        return [some_function]
    return [True] if "bool" in said else [7] if "int" in said or "float" in said else ["x"]


def configuration_flips(path: str, module: Any) -> Iterator[Flip]:
    """Every entry of a configuration module, set to each of some other values."""
    for name in module._config:
        for value in other_values(module, name):
            yield Flip(f"{path}.{name}", str(value)[:40], partial(module.patch, {name: value}))
