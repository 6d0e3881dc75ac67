"""Kernels in sources of one library each: C++, Halide programs, and CUDA and ROCm templates (CUTLASS, CK).

A generated module hands such a source to Inductor, which runs the compiler and loads the resulting library. In a worker
the library is built but not loaded (`collecting`); the process that calls the graph loads its bytes (`opened`).

    cpp      g++: a library of plain C functions (ordinary kernels have Python bindings: `compile_commands`)
    halide   Halide's generator in a separate process, then g++; all its kernels share one runtime library
    cuda     nvcc
    rocm     ROCm's clang

Halide for GPUs is left to torch: its runtime takes the process's CUDA context.
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import ctypes
import hashlib
import os
import shlex
import subprocess
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fxpool.torch_compat.cpp import cpp_wrappers
from fxpool.torch_compat.inductor import import_paths
from fxpool.torch_compat.patching import patched

__all__ = [
    "CPP",
    "CUDA",
    "HALIDE",
    "KINDS",
    "ROCM",
    "Built",
    "collecting",
    "generated_digest",
    "opened",
]

CPP, HALIDE, CUDA, ROCM = "cpp", "halide", "cuda", "rocm"
KINDS = (CPP, HALIDE, CUDA, ROCM)
#: Inductor's caches of CUDA and ROCm sources.
CACHES = {CUDA: "CUDACodeCache", ROCM: "ROCmCodeCache"}


class Built(NamedTuple):
    """A library as bytes, and the runtime library that it needs, if any."""

    library: bytes
    runtime: bytes | None = None


#: Takes a kernel's kind, digest and source, and a function that builds its library; that may run in a thread.
Take = Callable[[str, str, str, Callable[[], Built]], None]


@contextlib.contextmanager
def collecting(take: Take) -> Iterator[None]:
    """Let Inductor generate such kernels without loading them."""
    from torch._inductor.async_compile import AsyncCompile

    here = {kind: vars(AsyncCompile).get(kind) for kind in KINDS}

    def halide(self: Any, meta: Any, source_code: str) -> Any:
        if meta.is_cuda():
            return here[HALIDE](self, meta, source_code)
        take(HALIDE, _digest(HALIDE, _normal(repr(meta)), source_code), source_code, _halide(meta, source_code))
        return cpp_wrappers.Collected()

    def template(kind: str) -> Callable[..., Any]:
        def compile_template(self: Any, source_code: str, dst_file_ext: str, aot_compile: bool = False) -> Any:
            if aot_compile or dst_file_ext != "so":
                return here[kind](self, source_code, dst_file_ext, aot_compile)
            take(kind, _digest(kind, source_code), source_code, _template(kind, source_code))
            return cpp_wrappers.Collected()

        return compile_template

    def cpp(self: Any, source_code: str) -> Any:
        take(CPP, _digest(CPP, source_code), source_code, _cpp(source_code))
        return cpp_wrappers.Collected()

    replacements = {CPP: cpp, HALIDE: halide, CUDA: template(CUDA), ROCM: template(ROCM)}
    with contextlib.ExitStack() as stack:
        for kind, method in replacements.items():
            if here[kind] is not None:
                stack.enter_context(patched(AsyncCompile, kind, method))
        yield


def generated_digest(call: ast.Call) -> str | None:
    """Return the digest of the kernel that a generated call builds, None for another call.

    Raises ValueError: an argument is only known at run time.
    """
    owner, kind = import_paths.called(call)
    if owner != "async_compile" or kind not in KINDS:
        return None
    if kind == HALIDE:
        meta, source = call.args
        return _digest(HALIDE, ast.unparse(meta), ast.literal_eval(source))
    if kind == CPP:
        (source,) = map(ast.literal_eval, call.args)
        return _digest(CPP, source)
    source, ending = map(ast.literal_eval, call.args)
    named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    if ending != "so" or named.pop("aot_compile", False) or named:
        return None
    return _digest(kind, source)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _normal(expression: str) -> str:
    return ast.unparse(ast.parse(expression, mode="eval").body)


# ---------------------------------------------------------------- building


def _template(kind: str, source: str) -> Callable[[], Built]:
    from torch._inductor import codecache

    context = contextvars.copy_context()  # the current configuration

    def build() -> Built:
        path, *_ = context.run(getattr(codecache, CACHES[kind]).compile, source, "so")
        return Built(_read(path))

    return build


def _cpp(source: str) -> Callable[[], Built]:
    from torch._inductor.codecache import CppCodeCache

    class Unloaded(CppCodeCache):
        cache: dict[str, Any] = {}

        @classmethod
        def _load_library(cls, path: str, key: str) -> Any:
            return types.SimpleNamespace(path=path)

    context = contextvars.copy_context()
    return lambda: Built(_read(context.run(Unloaded.load, source).path))


def _halide(meta: Any, source: str) -> Callable[[], Built]:
    from torch._inductor.codecache import HalideCodeCache

    runtimes: list[str] = []

    base: Any = cpp_wrappers.unloaded(HalideCodeCache)

    class Unloaded(base):
        @classmethod
        def build_standalone_runtime(cls) -> str:
            runtimes.append(_halide_runtime())
            return runtimes[-1]

    context = contextvars.copy_context()

    def build() -> Built:
        path = context.run(Unloaded.generate_halide, meta, source)
        return Built(_read(path), _read(runtimes[-1]))

    return build


def _halide_runtime() -> str:
    """Return the path of Halide's runtime as a library that other libraries refer to by name instead of by path."""
    from torch._inductor.codecache import HalideCodeCache
    from torch._inductor.cpp_builder import get_cpp_compiler

    directory = os.path.dirname(HalideCodeCache.build_standalone_runtime())
    archive = os.path.join(directory, "standalone_halide_runtime.a")
    name = f"libfxpool_halide_{hashlib.sha256(_read(archive)).hexdigest()[:16]}.so"
    made = os.path.join(directory, name)
    if not os.path.exists(made):
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            written = os.path.join(scratch, name)
            whole = ["-Wl,--whole-archive", archive, "-Wl,--no-whole-archive"]
            command = [*shlex.split(get_cpp_compiler()), "-shared", f"-Wl,-soname,{name}", *whole, "-o", written]
            subprocess.run(command, check=True, capture_output=True)
            os.replace(written, made)
    return made


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


# ---------------------------------------------------------------- loading


class TemplateLibrary:
    """A library of CUDA or ROCm templates: its functions return 0, and raise RuntimeError for anything else."""

    def __init__(self, path: str) -> None:
        """Load the library. Raises OSError: it cannot be loaded."""
        self._library = ctypes.CDLL(path)

    def __getattr__(self, name: str) -> Callable[..., None]:
        function = getattr(self._library, name)

        def call(*args: Any) -> None:
            if status := function(*args):
                raise RuntimeError(f"{name} returned {status}")

        setattr(self, name, call)
        return call


def opened(kind: str, path: str, name: str) -> Any:
    """Load a library of this kind as generated code uses it; `name` is unique.

    Halide's runtime has to be loaded already. Raises ImportError or OSError.
    """
    if kind == HALIDE:
        return cpp_wrappers.entry_at(path, name, "kernel")
    return ctypes.CDLL(path).kernel if kind == CPP else TemplateLibrary(path)
