"""Compiler commands and flags as Inductor builds them, and the collection of its C++ kernels.

In a worker the kernels of a graph are collected instead of compiled one by one (`collecting`), so that fxpool decides
how they are grouped. The compiler's command line for a group is Inductor's.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shlex
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from fxpool.torch_compat.cpp.cpp_wrappers import Collected
from fxpool.torch_compat.dynamo import log_state
from fxpool.torch_compat.patching import patched


class CollectedKernel(Collected):
    """One C++ kernel of a generated wrapper."""

    def __init__(self, argument_types: Sequence[str], source: str) -> None:
        self.argument_types = list(argument_types)
        self.source = source


#: Takes the kernels of one generated module, and whether this was the graph's last module.
Collect = Callable[[Sequence[CollectedKernel], bool], None]
#: Takes a kernel when it is generated, before its module is complete.
Begin = Callable[[CollectedKernel], None]


@contextlib.contextmanager
def collecting(collect: Collect, begin: Begin | None = None) -> Iterator[None]:
    """Let Inductor generate C++ kernels without compiling them: `collect` gets those of each generated module.

    `begin` gets each kernel earlier, when it is generated. Only the complete module says which kernels the graph calls.
    """
    from torch._inductor.async_compile import AsyncCompile

    collected: list[CollectedKernel] = []

    def take(self: Any, argument_types: Sequence[str], source: str) -> CollectedKernel:
        log_state.kernel_code("CPP+Bindings", source, original)
        kernel = CollectedKernel(argument_types, source)
        collected.append(kernel)
        return kernel

    def wait(self: Any, scope: dict[str, Any]) -> None:
        original_wait(self, scope)
        kernels = collected.copy()
        collected.clear()
        collect(kernels, not _backward_follows())

    original, original_wait = AsyncCompile.cpp_pybinding, AsyncCompile.wait
    with patched(AsyncCompile, "cpp_pybinding", take), patched(AsyncCompile, "wait", wait):
        with _definitions_seen(begin) if begin is not None else contextlib.nullcontext():
            yield
        if collected:  # from a module without a call of `wait`
            collect(collected, True)


@contextlib.contextmanager
def _definitions_seen(begin: Begin) -> Iterator[None]:
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    def define(self: Any, kernel_name: str, kernel_body: str, *args: Any, **kwargs: Any) -> Any:
        kernel = defined_kernel(kernel_body)
        if kernel is not None:
            begin(kernel)
        return original(self, kernel_name, kernel_body, *args, **kwargs)

    original = PythonWrapperCodegen.define_kernel
    with patched(PythonWrapperCodegen, "define_kernel", define):
        yield


def defined_kernel(definition: str) -> CollectedKernel | None:
    """Return the kernel that a generated expression defines; None unless it is a C++ kernel of a Python wrapper."""
    if not definition.lstrip().startswith("async_compile.cpp_pybinding("):
        return None
    try:
        # In the module the definition is dedented, which changes blank lines of the source.
        call = ast.parse(textwrap.dedent(definition).strip(), mode="eval").body
        if not isinstance(call, ast.Call) or call.keywords:
            return None
        argument_types, source = map(ast.literal_eval, call.args)
    except (SyntaxError, ValueError):
        return None
    return CollectedKernel(argument_types, source)


def _backward_follows() -> bool:
    """Return whether the graph that is being lowered is the forward of a training step."""
    from torch._inductor.virtualized import V

    graph = V.graph
    return not (getattr(graph, "is_inference", True) or getattr(graph, "is_backward", True))


_TORCH_LIBRARY = "libtorch_cpu.so"  # loads the others
HEADER = "#include <torch/csrc/inductor/cpp_prefix.h>"


def tensor_data_pointer() -> int:
    """Return the address of the C function that returns a tensor object's data pointer."""
    return int(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)


class Command:
    """Inductor's compiler command for kernel libraries on this host.

    `compiler` is the compiler's path, with any leading arguments. Inductor's command has only its name, which would be
    looked up again when the command runs, in another working directory.
    """

    def __init__(self, compiler: Sequence[str] = ()) -> None:
        from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
        from torch._inductor.cpu_vec_isa import pick_vec_isa

        self._flags: dict[str, Any] = {
            "vec_isa": pick_vec_isa(),
            "device_type": "cpu",
            "include_pytorch": False,
            "shared": True,
        }
        self._builder = CppBuilder
        self._options = CppTorchDeviceOptions
        self._header: str | None = None
        self._compiler = list(compiler)

    def _arguments(self, name: str, sources: str | list[str], directory: str, **kind: bool) -> tuple[list[str], str]:
        options = self._options(**self._flags, **kind)
        # Inductor puts paths into the command line unquoted; fxpool's may contain spaces and quotes.
        quote = shlex.quote
        if not kind.get("precompiling"):
            options.precompiled_header = quote(self._header) if self._header is not None else None
        quoted = quote(sources) if isinstance(sources, str) else list(map(quote, sources))
        place = quote(directory) if directory else ""
        builder = self._builder(name=quote(name), sources=quoted, BuildOption=options, output_dir=place)
        # The compiler's name is not quoted either: it counts as one word, even with spaces.
        compiler = str(options.get_compiler())
        arguments = shlex.split(builder.get_command_line().removeprefix(compiler))
        return [*(self._compiler or [compiler]), *arguments], shlex.split(builder.get_target_file_path())[0]

    def compile(self, source_path: str, name: str) -> tuple[list[str], str]:
        """Return (compiler arguments, path of the object file that they write beside the source)."""
        return self._arguments(name, source_path, os.path.dirname(source_path), compile_only=True)

    def link(self, paths: Sequence[str], target: str) -> tuple[list[str], str]:
        """Return (arguments that link sources or object files, path of the shared library: `target` with an ending)."""
        return self._arguments(os.path.basename(target), list(paths), os.path.dirname(target))

    def stand_in(self, directory: str) -> tuple[list[str], str]:
        """Return (arguments that make an empty library with the name of torch's, its path)."""
        made = os.path.join(directory, _TORCH_LIBRARY)
        compiler = self._compiler or self.link([], os.path.join(directory, "none"))[0][:1]
        return [
            *compiler,
            "-shared",
            "-nostdlib",
            f"-Wl,-soname,{_TORCH_LIBRARY}",
            "-xc",
            "/dev/null",
            "-o",
            made,
        ], made

    def link_lightly(self, paths: Sequence[str], target: str, stand_in: str) -> tuple[list[str], str]:
        """Return the same as `link`, with the library `stand_in` in place of torch's.

        Reading the symbols of torch's libraries takes longer than compiling a kernel. The result still depends on
        torch's library by name, and finds it in the process, which has already loaded it.
        """
        arguments, made = self.link(paths, target)
        kept = [argument for argument in arguments if not argument.startswith(("-ltorch", "-lc10"))]
        return [*kept, "-Wl,--no-as-needed", stand_in], made

    def precompiles_headers(self) -> bool:
        """Return whether Inductor's configuration asks for a precompiled header."""
        from torch._inductor import config

        return bool(config.cpp_cache_precompile_headers)

    def lacks_header(self) -> bool:
        """Return whether a precompiled header is configured, but none is in use."""
        return self.precompiles_headers() and self._header is None

    def precompile(self, header_path: str) -> tuple[list[str], str]:
        """Return (compiler arguments, path of the compiled header that these kernels can use)."""
        return self._arguments(header_path, header_path, "", precompiling=True)

    def use_header(self, header_path: str) -> None:
        """Include this header first from now on; its compiled form is beside it."""
        self._header = header_path


def inductor_directory(path: str) -> None:
    """Make Inductor write its files (generated sources, locks) under `path` in this process."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = path
    from torch._inductor.runtime import cache_dir_utils

    clear = getattr(cache_dir_utils.cache_dir, "cache_clear", None)
    if clear is not None:
        clear()
