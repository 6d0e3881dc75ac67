"""Imports parts of torch ahead of time.

A zygote imports everything a compile needs before it forks workers, and starts no thread.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any

from fxpool.torch_compat.operators import operator_tables
from fxpool.torch_compat.patching import clear_caches, patched

_MODULES = (
    "torch._dynamo",
    "torch._dynamo.backends.common",
    "torch._functorch._aot_autograd.autograd_cache",
    "torch._functorch._aot_autograd.aot_autograd_result",
    "torch._functorch.partitioners",
    "torch._inductor.compile_fx",
    "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad",
    "torch._inductor.fx_passes.pre_grad",
    "torch._inductor.select_algorithm",
    "torch._inductor.scheduler",
    "torch._inductor.codegen.cpp",
    "torch._inductor.codegen.cpp_wrapper_cpu",
    "torch._inductor.codegen.triton",
    "torch._inductor.codegen.wrapper",
    "torch._inductor.codecache",
    "torch._inductor.cpp_builder",
    "torch._inductor.mkldnn_lowerings",
    "torch._inductor.quantized_lowerings",
    "torch._inductor.fx_passes.mkldnn_fusion",
    "torch._higher_order_ops",
    "torch._dynamo.symbolic_convert",
    "torch._dynamo.repro.after_aot",
)


def import_compiler() -> None:
    """Import AOTAutograd, Inductor and their back ends. A module that this release lacks is skipped.

    Cached facts about devices are cleared afterwards: devices are hidden from a zygote, but not from its workers.
    """
    operator_tables.watch()  # a worker tells the program's entries from torch's
    logging.getLogger("torch.utils.cpp_extension").addFilter(_is_not_of_hidden_devices)
    _import(_MODULES)
    forget_devices()


def _is_not_of_hidden_devices(record: logging.LogRecord) -> bool:
    """Return False for torch's message about missing CUDA. If it is true, the program's process logs it itself."""
    return not str(record.msg).startswith("No CUDA runtime is found")


# Variables for Triton's assembler.
_ASSEMBLERS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_asked_of: list[str | None] = []


def settle_assembler() -> None:
    """Make Triton use the version of the assembler that Inductor chooses.

    Triton caches the version, which is part of its keys, and may read it before Inductor has chosen. Binaries compiled
    here would then get keys that no other process computes.
    """
    if importlib.util.find_spec("triton") is None:
        return
    _read_variables()
    from torch._inductor.runtime import compile_tasks

    compile_tasks._set_triton_ptxas_path()
    chosen = [os.environ.get(name) for name in _ASSEMBLERS]
    if chosen == _asked_of:
        return
    _asked_of[:] = chosen
    compiler = sys.modules.get("triton.backends.nvidia.compiler")
    forget = getattr(getattr(compiler, "get_ptxas_version", None), "cache_clear", None)
    if forget is not None:
        forget()


def _read_variables() -> None:
    """Make Triton read its variables again: it read them at import, in a zygote without the program's variables."""
    refresh = getattr(sys.modules.get("triton.knobs"), "refresh_knobs", None)
    if refresh is not None:
        refresh()
    options = getattr(sys.modules.get("triton.backends.nvidia.compiler"), "CUDAOptions", None)
    if options is None or "ptx_options" not in options.__dataclass_fields__:
        return
    options.ptx_options = os.environ.get("PTXAS_OPTIONS")
    defaults = inspect.signature(options.__init__).parameters.values()
    options.__init__.__defaults__ = tuple(
        options.ptx_options if parameter.name == "ptx_options" else parameter.default
        for parameter in defaults
        if parameter.default is not parameter.empty
    )


# Modules that Triton imports when it compiles its first kernel.
_TRITON = ("triton.compiler.code_generator", "triton.backends.nvidia.compiler", "triton.experimental.gluon",
           "torch._inductor.runtime.triton_heuristics", "torch._inductor.runtime.triton_helpers")  # fmt: skip
# Compute capabilities with a separate assembler, in releases of Triton with several.
_CAPABILITIES = (80, 90, 100)


def warm_triton() -> None:
    """Do the first steps of each process that compiles Triton kernels in advance, which saves half a second.

    Triton reads its own sources, whose digest is part of every kernel's key, and runs its assemblers to get their
    versions.
    """
    if importlib.util.find_spec("triton") is None:
        return
    from torch._inductor.runtime import triton_compat

    triton_compat.triton_key()
    _import(_TRITON, of=("torch", "triton"))
    settle_assembler()
    compiler = sys.modules["triton.backends.nvidia.compiler"]
    for capability in _CAPABILITIES:
        with contextlib.suppress(Exception):  # reported, with more detail, when a kernel is compiled
            compiler.get_ptxas_version(capability)


def _import(names: tuple[str, ...], of: tuple[str, ...] = ("torch",)) -> None:
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not (error.name or "").startswith(of):
                raise


@contextlib.contextmanager
def no_progress_thread() -> Iterator[None]:
    """Keep tqdm from starting its monitor thread; Inductor creates progress bars even if it shows none."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield
        return
    with patched(tqdm, "monitor_interval", 0):
        yield


@contextlib.contextmanager
def counters_kept() -> Iterator[None]:
    """Restore Dynamo's counters after a ``with`` block, and reset Inductor's metrics."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    before = {name: counts.copy() for name, counts in counters.items()}
    try:
        yield
    finally:
        counters.clear()
        counters.update(before)
        metrics.reset()


def forget_devices() -> None:
    """Clear torch's caches about devices. Tables of patterns, which are per device anyway, stay."""
    for name in [*sys.modules]:
        is_about_devices = name.startswith(("torch._inductor", "torch.utils._triton", "torch._dynamo.device_interface"))
        if is_about_devices and not name.startswith("torch._inductor.fx_passes"):
            clear_caches(name)
    selecting: Any = sys.modules.get("torch._inductor.select_algorithm")
    if selecting is not None:
        selecting._ALGORITHM_SELECTOR_CACHE = None  # it stores the device when it is created
    if (forget := getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensorMode", None)) is not None:
        forget.cache_clear()
