"""The C++ tool chain as Inductor drives it: which flags, which header.

In a worker the kernels of a graph are collected instead of compiled one by one (`collecting`), so
that fxpool decides how they are grouped; the compiler's command line for a group is Inductor's.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class CollectedKernel:
    """One C++ kernel a generated wrapper asked for. It can't be called where it was compiled."""

    def __init__(self, argument_types: Sequence[str], source: str) -> None:
        self.argument_types = list(argument_types)
        self.source = source

    def __call__(self, *args: Any) -> None:
        raise RuntimeError("a kernel was called in the process that compiled it")


@contextlib.contextmanager
def collecting(kernels: list[CollectedKernel]) -> Iterator[None]:
    """Let Inductor generate C++ kernels without compiling them; they are appended to `kernels`."""
    from torch._inductor.async_compile import AsyncCompile

    def collect(self: Any, argument_types: Sequence[str], source: str) -> CollectedKernel:
        kernel = CollectedKernel(argument_types, source)
        kernels.append(kernel)
        return kernel

    original = AsyncCompile.cpp_pybinding
    AsyncCompile.cpp_pybinding = collect  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original  # type: ignore[method-assign]


HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>"


def tensor_data_pointer() -> int:
    """Address of the C function that gives a tensor object's data pointer."""
    return int(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)


class Command:
    """Inductor's compiler command for kernel libraries on this host."""

    def __init__(self) -> None:
        from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        self._flags: dict[str, Any] = {
            "vec_isa": pick_vec_isa(),
            "device_type": "cpu",
            "include_pytorch": False,
            "shared": True,
        }
        self._builder = CppBuilder
        self._options = CppTorchDeviceOptions(**self._flags)

    def compile(self, source_path: str, name: str) -> tuple[list[str], str]:
        """(arguments of the compiler, path of the library it writes beside the source)."""
        directory = os.path.dirname(source_path)
        builder = self._builder(name=name, sources=source_path, BuildOption=self._options, output_dir=directory)
        return shlex.split(builder.get_command_line()), builder.get_target_file_path()

    def precompiles_headers(self) -> bool:
        """Whether Inductor's configuration asks for a precompiled header, and this compiler can use one."""
        from torch._inductor import config

        return bool(config.cpp_cache_precompile_headers)

    def precompile(self, header_path: str) -> tuple[list[str], str]:
        """(arguments of the compiler, path of the compiled header that these kernels can use)."""
        options = type(self._options)(**self._flags, precompiling=True)
        builder = self._builder(name=header_path, sources=header_path, BuildOption=options)
        return shlex.split(builder.get_command_line()), builder.get_target_file_path()

    def use_header(self, header_path: str) -> None:
        """Let `compile` include the header there first, whose compiled form is beside it."""
        self._options.precompiled_header = header_path


def inductor_directory(path: str) -> None:
    """Let Inductor write its files (generated sources, locks) under `path` in this process."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = path
    from torch._inductor.runtime import cache_dir_utils

    clear = getattr(cache_dir_utils.cache_dir, "cache_clear", None)
    if clear is not None:
        clear()
