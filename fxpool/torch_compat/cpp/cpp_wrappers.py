"""Graphs that are called through C++ (``config.cpp_wrapper``): takes Inductor's libraries as they are built.

Such a graph's generated module hands one long C++ source to Inductor's builder, which compiles it and loads the
library. In a worker the library is built, but not loaded (`collecting`), and its bytes go into the entry; the process
that calls the graph loads them (`entry_at`) and calls no compiler.

Inductor's source of a GPU graph contains paths of its Triton kernels' binaries in the directory of the process that
compiled them, and loads them from there at the graph's first call. Another process, or a later run, cannot rely on
these files. CUDA's driver also loads a binary from memory, and the assembler can embed one in a library (`.incbin`), as
in AOTInductor's packages (`embed_kernels`).
"""

from __future__ import annotations

import ast
import contextlib
import contextvars
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import shlex
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from fxpool.torch_compat.inductor import import_paths
from fxpool.torch_compat.patching import patched

__all__ = [
    "ENTRY", "LOADER", "Collected", "collecting", "digest", "embed_kernels", "entry_at", "generated_digest",
    "headers_in", "unloaded",
]  # fmt: skip

#: The entry function of Inductor's libraries, and the function that a generated module calls to build a library.
ENTRY = "inductor_entry_cpp"
LOADER = ("CppWrapperCodeCache", "load_pybinding")


class Collected:
    """A placeholder in a generated module, for the entry of a C++ wrapper or for a kernel. It cannot be called."""

    def __call__(self, *args: Any) -> None:
        raise RuntimeError("a graph or a kernel was called in the process that compiled it")


#: Takes a wrapper's digest, its source, and a function that builds its library and returns the bytes; it may run in a
#: thread.
Take = Callable[[str, str, Callable[[], bytes]], None]


@contextlib.contextmanager
def collecting(take: Take) -> Iterator[None]:
    """Let Inductor generate C++ wrappers without loading them.

    The library of a GPU wrapper contains its kernels (`embed_kernels`). A compile raises NotImplementedError if its
    wrapper refers to files of this process's directories in another way.
    """
    from torch._inductor import codecache

    def load(cls: Any, *args: Any, **kwargs: Any) -> Collected:
        for flag in kwargs.get("extra_flags", ()):
            if os.path.isabs(str(flag)) and str(flag).endswith(".so"):  # the library of a CUTLASS template
                raise NotImplementedError(f"a C++ wrapper refers to {flag} by a path that is gone afterwards")
        told = dict(kwargs)
        if told.get("device_type") == "cuda":
            told["main_code"] = embed_kernels(told["main_code"])
        source = "\n".join(value for value in (*args, *told.values()) if isinstance(value, str))
        take(digest(args, kwargs), source, _builder(args, told))
        return Collected()

    with patched(codecache.CppWrapperCodeCache, LOADER[1], classmethod(load)):
        yield


@contextlib.contextmanager
def headers_in(folder: str | None) -> Iterator[None]:
    """Let Inductor keep the precompiled headers of its own libraries in `folder`; None leaves them where they are."""
    from torch._inductor import codecache

    if folder is None:
        yield
        return
    # Torch's folder is in the temporary directory, which is cleared more often than a cache.
    with patched(codecache, "_HEADER_DIR", folder), patched(codecache, "_HEADER_LOCK_DIR", f"{folder}/locks"):
        yield


@contextlib.contextmanager
def without_places(places: Iterable[str]) -> Iterator[None]:
    """Let Inductor's calls of g++ and clang write other names for `places` into libraries and their debug information.

    The commands have to be the same in all processes, because they name the precompiled headers.
    """
    from torch._inductor import cpp_builder

    run = cpp_builder._run_compile_cmd
    mapped = "".join(f" {shlex.quote(f'-ffile-prefix-map={place}=/fxpool')}" for place in places)
    with patched(cpp_builder, "_run_compile_cmd", lambda command, cwd: run(command + mapped, cwd)):
        yield


def unloaded(code_cache: Any) -> Any:
    """Return one of Inductor's code caches that builds libraries without loading them: its entries are their paths."""

    class Unloaded(code_cache):
        cache: dict[str, Any] = {}

        @classmethod
        def _load_library(cls, path: str, key: str) -> types.ModuleType:
            module = types.ModuleType(key)
            setattr(module, cls.entry_function, path)
            return module

    return Unloaded


def _builder(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[], bytes]:
    """Return a function that builds a library, with the decisions and configuration of this moment."""
    from torch._inductor.codecache import CppWrapperCodeCache

    context = contextvars.copy_context()
    built = unloaded(CppWrapperCodeCache).load_pybinding_async(*args, **kwargs)

    def build() -> bytes:
        with open(context.run(built), "rb") as file:
            return file.read()

    return build


def digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return a wrapper's digest: of all arguments of its builder."""
    told = [list(args), sorted((name, _plain(value)) for name, value in kwargs.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def generated_digest(call: ast.Call, constants: Mapping[str, Any]) -> str | None:
    """Return the digest of the wrapper that a generated call builds, None for another call.

    `constants` are the module's, by name. Raises ValueError: an argument is only known at run time.
    """
    if import_paths.called(call) != LOADER:
        return None

    def value(node: ast.expr) -> Any:
        return constants[node.id] if isinstance(node, ast.Name) and node.id in constants else ast.literal_eval(node)

    return digest([value(one) for one in call.args], {str(one.arg): value(one.value) for one in call.keywords})


def entry_at(path: str, name: str, entry: str = ENTRY) -> Callable[..., Any]:
    """Load a library and return its entry; `name` is unique. Raises ImportError or OSError."""
    # When loaded, the library reads the addresses of torch's functions from the environment.
    address = torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(address)
    full = f"{name}.{entry}"
    loader = importlib.machinery.ExtensionFileLoader(full, path)
    spec = importlib.util.spec_from_loader(full, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # It is never unloaded, as with torch's: references from compiled code to its functions are not counted.
    sys.modules[full] = module
    loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, entry)
    return function


#: A C++ string as Inductor writes it, and its call of the loader that takes a path.
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_LOADS = re.compile(rf"loadKernel\((?P<path>{_STRING}), (?P<name>{_STRING}), (?P<shared>\d+), cubin_dir_\)")
#: Code that finds kernels in another way: by compiling their text on the first call (the default since 2.12).
_UNKNOWN_LOADS = re.compile(r'runTritonKernelWithAutotune\(|"(?:[^"\\\n]|\\.)*\.(?:cubin|hsaco|spv)"')
_FIRST_HEADER = re.compile(r"^#include [^\n]*\n", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")


def embed_kernels(source: str) -> str:
    """Return the source of a C++ wrapper with its kernels' binaries embedded in place of their paths.

    The files have to exist until it is compiled. Raises NotImplementedError: it also finds code in another way.
    """
    definitions: list[str] = []

    def from_memory(call: re.Match[str]) -> str:
        symbol = _kernel_symbol(len(definitions))
        definitions.append(_kernel_definition(symbol, _ESCAPE.sub(r"\1", call["path"][1:-1])))
        return f"loadKernel(static_cast<const void*>({symbol}), {call['name']}, {call['shared']})"

    changed = _LOADS.sub(from_memory, source)
    if (other := _UNKNOWN_LOADS.search(changed)) is not None:
        raise NotImplementedError(f"a C++ wrapper finds a kernel in a way that is not known: {other[0]}")
    declared = "".join(_kernel_declaration(_kernel_symbol(number)) for number in range(len(definitions)))
    # Not at the top: the first include in a file has to be the precompiled header.
    with_names = _FIRST_HEADER.sub(lambda header: header[0] + declared, changed, count=1)
    if definitions and with_names == changed:
        raise NotImplementedError("a C++ wrapper has no header")
    return with_names + "".join(definitions)


def _kernel_symbol(number: int) -> str:
    return f"fxpool_kernel_{number}"


def _kernel_declaration(symbol: str) -> str:
    return f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];\n'


def _kernel_definition(symbol: str, path: str) -> str:
    if not path.isprintable() or any(character in path for character in '"\\'):
        raise NotImplementedError(f"the path of a kernel can't be told to the assembler: {path!r}")
    lines = (".pushsection .rodata", ".balign 16", f"{symbol}:", f'.incbin \\"{path}\\"', ".popsection")
    return "\n__asm__(" + " ".join(f'"{line}\\n"' for line in lines) + ");"
