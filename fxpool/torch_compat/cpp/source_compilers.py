"""The compilers of `source_kernels`: which of them the configuration lets Inductor use, and how they are called.

`reusing_builds` wraps Inductor's call of nvcc and of ROCm's clang, both for candidates of autotuning and for a graph's
kernels: an earlier build of the same source by the same command is copied to the path where Inductor expects it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch._dynamo  # noqa: F401  # first, see torch_compat
import torch._inductor.config as inductor_config

from fxpool.torch_compat.cpp.source_kernels import CACHES, CUDA, HALIDE, ROCM
from fxpool.torch_compat.patching import patched

__all__ = ["Builds", "command", "compiler", "header_directories", "in_use", "reusing_builds", "without_places"]

# The module and function that build the command, by release: the module of the caches, or a separate module.
_COMMANDS = {
    CUDA: (
        "torch._inductor.codegen.cuda.compile_utils:cuda_compile_command",
        "torch._inductor.codecache:cuda_compile_command",
    ),
    ROCM: ("torch._inductor.codegen.rocm.compile_command:rocm_compile_command",),
}
_COMPILERS = {
    CUDA: (
        "torch._inductor.codegen.cuda.compile_utils:_cuda_compiler",
        "torch._inductor.codecache:_cuda_compiler",
    ),
    ROCM: ("torch._inductor.codegen.rocm.compile_command:rocm_compiler",),
}
_TEMPLATES = {"CUTLASS": CUDA, "CK": ROCM, "CKTILE": ROCM}


def in_use(devices: set[str] | None = None) -> list[str]:
    """Return the kinds of sources that Inductor may generate as configured, for some device types (None: any)."""
    kinds = set()
    for device in ("cpu", "cuda"):
        wanted = devices is None or device in devices
        if wanted and getattr(inductor_config, f"{device}_backend", "") == "halide":
            kinds.add(HALIDE)
    if inductor_config.max_autotune or inductor_config.max_autotune_gemm:
        backends = f"{inductor_config.max_autotune_gemm_backends},{inductor_config.max_autotune_conv_backends}"
        kinds |= {_TEMPLATES[name] for one in backends.split(",") if (name := one.strip().upper()) in _TEMPLATES}
    return sorted(kinds)


def compiler(kind: str) -> str | None:
    """Return the path of nvcc or of ROCm's clang as Inductor would call it; None if it is missing."""
    name = _function(_COMPILERS[kind])()
    return shutil.which(name) if name else None


def command(kind: str, sources: Sequence[str], target: str, arguments: Sequence[str] = ()) -> list[str]:
    """Return the words of Inductor's command that builds a library of CUDA or ROCm sources."""
    line: str = _function(_COMMANDS[kind])(list(sources), target, "so", list(arguments))
    return shlex.split(line)


def without_places(words: Sequence[str]) -> list[str]:
    """Return a command's words without the compiler's path, and without the directories of headers and libraries."""
    left = [os.path.basename(words[0])]
    for word in words[1:]:
        option = next((one for one in ("-I", "-L", "-rpath=") if word.startswith(one)), None)
        left.append(option or word)
    return left


def header_directories(kind: str) -> list[str]:
    """Return the directories of the template library's headers, whose content affects the result."""
    if kind == CUDA:
        directory = getattr(getattr(inductor_config, "cutlass", inductor_config.cuda), "cutlass_dir", None)
    else:
        directory = inductor_config.rocm.ck_dir or _installed_ck()
    found = os.path.join(str(directory), "include") if directory else ""
    return [found] if os.path.isdir(found) else []


def _installed_ck() -> str | None:
    from torch._inductor.utils import try_import_ck_lib

    directory: str | None = try_import_ck_lib()[0]
    return directory


def _function(places: Sequence[str]) -> Callable[..., Any]:
    for place in places[:-1]:
        module, _, name = place.partition(":")
        with contextlib.suppress(ImportError, AttributeError):
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
            return found
    module, _, name = places[-1].partition(":")
    last: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return last


class Builds(Protocol):
    """A store of libraries that were built before."""

    def find(self, kind: str, source: str, words: Sequence[str]) -> bytes | None:
        """Return the library built from this source by this command; None if it is not stored."""

    def keep(self, kind: str, source: str, words: Sequence[str], library: bytes, seconds: float) -> None:
        """Store a library, which took `seconds` to build."""


@contextlib.contextmanager
def reusing_builds(builds: Builds, timer: Callable[[], float]) -> Iterator[None]:
    """Let Inductor build only those libraries of CUDA and ROCm sources that `builds` does not have."""
    from torch._inductor import codecache

    with contextlib.ExitStack() as stack:
        for kind, name in CACHES.items():
            cache: Any = getattr(codecache, name, None)
            if hasattr(cache, "compile"):
                stack.enter_context(patched(cache, "compile", classmethod(_compile(kind, cache, builds, timer))))
        yield


def _compile(kind: str, cache: Any, builds: Builds, timer: Callable[[], float]) -> Callable[..., Any]:
    original = cache.compile

    def compile_or_find(
        cls: Any, source_code: str, dst_file_ext: str, extra_args: list[str] | None = None
    ) -> tuple[str, str, str]:
        if dst_file_ext != "so":
            result: tuple[str, str, str] = original(source_code, dst_file_ext, extra_args)
            return result
        key, source_path = cls.write(source_code, dst_file_ext)
        made = source_path[: -len(cls._SOURCE_CODE_SUFFIX)] + dst_file_ext
        words = command(kind, ["source"], "library", extra_args or ())
        if not os.path.exists(made) and (library := builds.find(kind, source_code, words)) is not None:
            with tempfile.NamedTemporaryFile(dir=os.path.dirname(made), delete=False) as written:
                written.write(library)
            os.replace(written.name, made)
        if os.path.exists(made):
            return made, key, source_path
        started = timer()
        result = original(source_code, dst_file_ext, extra_args)
        with open(result[0], "rb") as file:
            builds.keep(kind, source_code, words, file.read(), timer() - started)
        return result

    return compile_or_find
