"""Compiles Inductor's Triton kernels to the data that a launch needs, in a process that touches no GPU.

Inductor's autotuner picks the candidate configurations and compiles each for the device that is named in the kernel's
source. A launch needs plain data of the result: the binaries, how arguments are passed, how the grid follows from them.
A kernel that needs more than that (a cooperative launch, scratch memory, tuning that compiles again) is reported, and
returned as the files that Triton's own loader reads.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pickle
import re
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxpool.torch_compat.dynamo import log_state
from fxpool.torch_compat.patching import patched, triton_driver

#: Takes name and source of a kernel that Inductor requests, and returns its placeholder in the module.
Collect = Callable[[str, str], Any]


class NotLaunchableError(Exception):
    """Only Triton's own loader can launch a kernel; the text is the reason, in a word or two."""


class Candidate:
    """One configuration of a kernel, compiled.

    `types` has a letter for each argument that the binary takes (in the notation of torch's static launcher, with
    scratch pointers that are passed empty), `arguments` their names, None for scratch pointers. `parameters` are the
    names a wrapper passes; `prefix` and `grid` are the code that computes the three sizes of the grid from them.
    """

    def __init__(self, result: Any) -> None:
        from torch._inductor.runtime.triton_heuristics import GridExpr

        kernel = result.kernel
        self.binary: bytes = kernel.cubin_raw
        self.symbol: str = kernel.name
        self.shared: int = kernel.shared
        self.warps: int = kernel.num_warps
        self.stages: int = result.config.num_stages
        self.values: dict[str, Any] = dict(result.config.kwargs)
        _, self.parameters, without = result._get_arg_lists(kernel.arg_names, kernel.declared_constexprs)
        self.arguments: list[str | None] = [
            name for i, name in enumerate(kernel.arg_names) if i not in kernel.full_constexprs and name not in without
        ]
        self.types: str = kernel.arg_tys
        for scratch in (kernel.has_global_scratch, kernel.has_profile_scratch):
            if scratch:
                self.types += "O"
                self.arguments.append(None)
        if len(self.types) != len(self.arguments):  # a descriptor becomes several arguments of the binary
            raise NotLaunchableError("arguments")
        grid = GridExpr.from_meta(result.inductor_meta, result.config)
        self.prefix: list[str] = list(grid.prefix)
        self.grid = [str(size) for size in (grid.x_grid, grid.y_grid, grid.z_grid)]


class Compiled:
    """A kernel with its candidates, and the facts needed to choose between them and to report it to a profiler."""

    def __init__(self, autotuner: Any) -> None:
        self.candidates = [Candidate(result) for result in autotuner.compile_results]
        self.argument_names: list[str] = list(autotuner.fn.arg_names)
        self.written: list[str] = list(autotuner.mutated_arg_names)
        self.zeroed: list[str] = list(autotuner.reset_to_zero_arg_names)
        self.optimize_memory = bool(autotuner.optimize_mem)
        meta = autotuner.inductor_meta
        self.spill_limit: int | None = None if autotuner.custom_kernel else meta.get("spill_threshold", 16)
        self.report: dict[str, Any] = {
            "kernel_file": "",
            "kernel_hash": autotuner.kernel_hash,
            "kernel_backend": "triton",
            **{name: meta[name] for name in ("kernel_name", "kernel_flop", "kernel_num_gb") if name in meta},
        }


# Environment variables that make torch's launcher do more than launch.
_OBSERVED = ("TRITON_INTERPRET", "TORCHINDUCTOR_DUMP_LAUNCH_PARAMS", "TORCHINDUCTOR_DUMP_LAUNCH_TENSORS")


def may_collect() -> bool:
    """Return whether Inductor, as configured, requests its kernels in a way that can be intercepted."""
    from torch._inductor import config

    return importlib.util.find_spec("triton") is not None and not (
        torch.version.hip
        or config.cpp_wrapper
        or config.triton.multi_kernel
        or config.profile_bandwidth
        or config.triton.store_cubin
        or getattr(config.triton, "proton_profiling", False)
        or not config.use_static_triton_launcher
        or any(os.environ.get(name, "0") == "1" for name in _OBSERVED)
    )


@contextlib.contextmanager
def collecting(collect: Collect) -> Iterator[None]:
    """Let Inductor generate Triton kernels for CUDA without compiling them; `collect` gets each, possibly twice."""
    from torch._dynamo.utils import counters
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen import triton as codegen

    def take(self: Any, kernel_name: str, source_code: str, device_str: str = "cuda") -> Any:
        if device_str != "cuda":
            return original(self, kernel_name, source_code, device_str)
        counters["inductor"]["async_compile_cache_miss"] += 1
        log_state.kernel_code("Triton", source_code, original)
        return collect(kernel_name, source_code)

    original = AsyncCompile.triton
    # If code generation sees a pool, it requests a kernel as soon as its text is complete.
    with (
        patched(AsyncCompile, "triton", take),
        patched(codegen.async_compile, "use_process_pool", lambda: True),
    ):
        yield


def compile_kernel(name: str, source: str, lookup: dict[str, Any], width: int = 1) -> Compiled:
    """Compile all candidates of a kernel, up to `width` at a time.

    `lookup` is Inductor's table of configurations tuned elsewhere.

    Raises:
        NotLaunchableError: the binaries cannot be launched without Triton.
        Exception: any error of Triton.
    """
    from torch._inductor import config

    with config.patch(use_static_triton_launcher=False, autotune_lookup_table=lookup), no_driver(), no_kept_choices():
        autotuner = load(name, source)
        if reason := _keeps_triton(autotuner):
            raise NotLaunchableError(reason)
        _compile_side_by_side(autotuner, width)
        autotuner._precompile_worker()
        autotuner.compile_results = [_static(autotuner, result) for result in autotuner.compile_results]
        if hasattr(autotuner, "_ensure_kernel_loaded"):  # the binaries are in memory already
            autotuner._ensure_kernel_loaded = lambda: None
        autotuner._make_launchers = lambda: None  # the original would load them
        autotuner._dynamic_scale_rblock()
        autotuner.compile_results = [_static(autotuner, result) for result in autotuner.compile_results]
        return Compiled(autotuner)


@contextlib.contextmanager
def no_kept_choices() -> Iterator[None]:
    """Skip the lookup of earlier choices: a job's directory is empty, and the lookup would read torch's sources."""
    from torch._inductor.runtime import triton_heuristics

    with patched(triton_heuristics.AutotuneCache, "create", lambda *args: None):
        yield


def _compile_side_by_side(autotuner: Any, width: int) -> None:
    """Compile candidates in up to `width` processes, which leave them in Triton's cache directory.

    Failures are not reported here: they recur when a candidate is taken from that directory.
    """
    width = min(width, len(autotuner.configs))
    if width < 2 or threading.active_count() > 1:
        return
    mine, *others = [autotuner.configs[start::width] for start in range(width)]
    children = [pid for share in others if (pid := _forked(functools.partial(_compile_some, autotuner, share)))]
    try:
        _compile_some(autotuner, mine)
    finally:
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _compile_some(autotuner: Any, configs: Sequence[Any]) -> None:
    for config in configs:
        with contextlib.suppress(Exception):
            autotuner._precompile_config(config)


def _forked(work: Callable[[], None]) -> int | None:
    """Fork a process that runs `work` and exits; return its pid, or None if the fork fails."""
    try:
        pid = os.fork()
    except OSError:
        return None
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def compile_for_triton(name: str, source: str, lookup: dict[str, Any]) -> bytes:
    """Compile all candidates of a kernel; return, for `add_files`, the files by which Triton's loader finds them."""
    from torch._inductor import config
    from torch._inductor.triton_bundler import TritonBundler

    with config.patch(bundle_triton_into_fx_graph_cache=True, autotune_lookup_table=lookup), no_driver():
        TritonBundler.begin_compile()
        try:
            autotuner = load(name, source)
            autotuner.precompile(warm_cache_only=True)
            bundle, _ = TritonBundler.collect()
        finally:
            TritonBundler.end_compile()
    return pickle.dumps(bundle.kernel_artifacts)


def drop_empty_bundle(graph: Any) -> None:
    """Drop an empty bundle, so that loading the graph needs no module that writes Triton's files."""
    bundle = graph._triton_bundle
    if bundle is not None and not bundle.kernel_artifacts and not bundle.static_autotuners:
        graph._triton_bundle = None


def add_files(graph: Any, files: bytes) -> None:
    """Add the files of one more kernel to a compiled graph that is about to be stored."""
    from torch._inductor.triton_bundler import TritonBundle

    bundle = graph._triton_bundle
    mine = pickle.loads(files)  # from a sub-job of this job
    if bundle is None:
        graph._triton_bundle = TritonBundle(mine, [])
    else:
        bundle.kernel_artifacts.extend(mine)


def lookup_table() -> dict[str, Any]:
    """Return Inductor's table of configurations tuned elsewhere."""
    from torch._inductor import config

    return dict(config.autotune_lookup_table)


def load(name: str, source: str) -> Any:
    """Return the autotuner that a generated module defines, by executing the module."""
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.compile_tasks import _set_triton_ptxas_path

    _set_triton_ptxas_path()
    return getattr(PyCodeCache.load(source), name)


def _keeps_triton(autotuner: Any) -> str | None:
    meta = autotuner.inductor_meta
    for setting in ("coordinate_descent_tuning", "combo_tuning_groups", "incremental_autotune", "store_cubin"):
        if meta.get(setting):
            return setting
    if meta.get("host_tma_descriptor_args"):  # since 2.14: the launcher makes descriptors of tensors
        return "host_tma"
    if type(autotuner).__name__ != "CachingAutotuner":
        return "autotuner"
    if autotuner.device_props.type != "cuda":
        return "device"
    # Since 2.14, under `compile_on_one_rank`: a kernel is launched on several devices; a binary is loaded for only one.
    if autotuner.device_props.index is None:
        return "device_agnostic"
    return None


def _static(autotuner: Any, result: Any) -> Any:
    """Convert a result of Triton's compiler for torch's static launcher, without loading it."""
    from torch._inductor.runtime.static_triton_launcher import StaticallyLaunchedCudaKernel
    from torch._inductor.runtime.triton_heuristics import StaticTritonCompileResult

    if isinstance(result, StaticTritonCompileResult):
        return result
    compiled = result.kernel
    if getattr(compiled.metadata, "launch_pdl", False) or getattr(compiled.metadata, "launch_cooperative_grid", False):
        raise NotLaunchableError("launch_attributes")
    # Since 2.15 torch's launcher supports scratch memory, allocated by Triton; a launch here passes no scratch memory.
    if any(getattr(compiled.metadata, f"{kind}_scratch_size", 0) for kind in ("global", "profile")):
        raise NotLaunchableError("scratch")
    compiled._cubin_path = None
    try:
        kernel = StaticallyLaunchedCudaKernel(compiled)
    except (NotImplementedError, KeyError) as error:  # an argument of a type that its tables lack
        raise NotLaunchableError("arguments") from error
    kernel.n_regs = registers(kernel.cubin_raw, kernel.name)
    return StaticTritonCompileResult(kernel, result.config, result.compile_meta, result.inductor_meta)


_REGISTER_COUNT = b"\x04\x2f\x08\x00"  # attribute of 8 bytes: index of a symbol, registers per thread


def registers(binary: bytes, symbol: str) -> int | None:
    """Return the registers per thread of the kernel `symbol` in a CUDA binary; None if the binary does not say.

    Source: the ELF symbol table, and the attribute EIATTR_REGCOUNT (0x2f) in section .nv.info.
    """
    try:
        sections = _sections(binary)
        info, symbols = sections[".nv.info"], sections[".symtab"]
        strings = sections[".strtab"]
        names = [
            strings[(start := struct.unpack_from("<I", symbols, at)[0]) : strings.index(b"\0", start)].decode()
            for at in range(0, len(symbols), 24)
        ]
        at = 0
        while at + 4 <= len(info):
            kind, size = info[at], struct.unpack_from("<H", info, at + 2)[0]
            if info[at : at + 4] == _REGISTER_COUNT:
                index, count = struct.unpack_from("<II", info, at + 4)
                if names[index] == symbol:
                    return int(count)
            at += 4 + (size if kind == 4 else 0)
    except (KeyError, IndexError, ValueError, struct.error):
        pass
    return None


def _sections(binary: bytes) -> dict[str, bytes]:
    """Return the sections of a 64-bit little-endian ELF file by name. Raises ValueError for any other file."""
    if binary[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", binary, 40)
    entry_size, count, names_at = struct.unpack_from("<HHH", binary, 58)
    headers = [struct.unpack_from("<IIQQQQ", binary, table + number * entry_size) for number in range(count)]
    names = headers[names_at]
    text = binary[names[4] : names[4] + names[5]]
    return {
        text[h[0] : text.index(b"\0", h[0])].decode(): binary[h[4] : h[4] + h[5]]
        for h in headers
        if h[1] != 8  # SHT_NOBITS sections have no bytes
    }


class _NoDriver:
    """Replaces Triton's driver, which compiles for a named target never use."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"compiling a kernel asked Triton's driver for {name}, which a worker lacks")


@contextlib.contextmanager
def no_driver() -> Iterator[None]:
    """Keep Triton from building and loading its driver in this process, which does not need it."""
    from torch._inductor.runtime import triton_helpers

    with patched(triton_helpers, "set_driver_to_gpu", lambda: None), triton_driver(_NoDriver()):
        yield


@functools.cache
def _source_pattern() -> re.Pattern[str]:
    return re.compile(r"async_compile\.triton\('(?P<name>\w+)', '''(?P<source>.*?)'''", re.DOTALL)


def source_of(text: str, name: str) -> str | None:
    """Return the source of a kernel in the text of a generated module, or None."""
    for match in _source_pattern().finditer(text):
        if match["name"] == name:
            return match["source"]
    return None
