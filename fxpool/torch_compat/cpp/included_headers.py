"""The headers that generated C++ may include, and the compiler's commands that list everything these include in turn.

Generated sources differ from graph to graph, but all include some of the same few headers (`_NAMES`; a test compares
them with torch's own sources). So one source for each kind includes every header that a generated source of this kind
may include. A generated source that includes another header (`unasked`) is compiled, but its result is not cached.

    kernels    C++ kernels, and their calls from Python
    wrapper    graphs that are called through C++ (`config.cpp_wrapper`), for each kind of device
    package    exported programs (AOTInductor), for each kind of device
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import sysconfig
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from fxpool.torch_compat import versions
from fxpool.torch_compat.cpp import compile_commands, instruction_sets

__all__ = ["KERNELS", "Kind", "decided_by", "in_use", "listing_commands", "unasked", "unlike"]


class Kind(NamedTuple):
    """A kind of generated source, for a type of device."""

    name: str
    device: str = "cpu"


KERNELS = Kind("kernels")
_INDUCTOR = "torch/csrc/inductor"
# Below include directories; releases of torch lack some of them.
_NAMES = {
    "kernels": (
        # bindings of kernels, fxpool's and Inductor's
        "Python.h", "exception", "stdexcept", "type_traits", "sstream", "cstdlib", "cerrno",
        # templates of matrix products and attention, profiling
        "ATen/Context.h", "ATen/native/CPUBlas.h", "ATen/native/cpu/utils.h", "c10/util/Unroll.h",
        *(("ATen/cpu/Utils.h",) if versions.parse(torch.version.__version__) >= (2, 15) else ()),
        f"{_INDUCTOR}/aoti_torch/c/shim.h", f"{_INDUCTOR}/aoti_runtime/utils.h",
        f"{_INDUCTOR}/aoti_runtime/kernel_context_tls.h",
    ),
    "wrapper": (
        f"{_INDUCTOR}/cpp_wrapper/{{device}}.h", f"{_INDUCTOR}/cpp_wrapper/common.h",
        f"{_INDUCTOR}/cpp_wrapper/array_ref.h",
        # calls of operators through the dispatcher
        "ATen/core/dispatch/Dispatcher.h", "ATen/core/ivalue.h", "ATen/core/jit_type.h",
        f"{_INDUCTOR}/aoti_torch/utils.h",
    ),
    "package": (
        f"{_INDUCTOR}/aoti_include/{{device}}.h", f"{_INDUCTOR}/aoti_include/common.h",
        f"{_INDUCTOR}/aoti_include/array_ref.h", f"{_INDUCTOR}/aoti_runtime/interface.h",
        f"{_INDUCTOR}/aoti_runtime/model.h",
    ),
}  # fmt: skip
_OF_BOTH = (
    "mutex", f"{_INDUCTOR}/aoti_torch/c/shim_{{device}}.h", f"{_INDUCTOR}/aoti_torch/c/shim_cpu.h",
    f"{_INDUCTOR}/aoti_torch/generated/c_shim_{{device}}.h",
    f"{_INDUCTOR}/aoti_torch/generated/extend/c_shim_{{device}}.h",
    f"{_INDUCTOR}/aoti_runtime/cpu_triton_runtime_wrappers.h",
)  # fmt: skip
_OF_CUDA = ("c10/cuda/CUDAGuard.h", "c10/cuda/CUDAStream.h", "ATen/cuda/EmptyTensor.h")

_INCLUDE = re.compile(
    r'^[ \t]*#[ \t]*(?:include(?:_next)?|import|embed)\b[ \t]*(?:[<"]([^>"\n]+)[>"]|([A-Z_]\w*))', re.M
)
# Entries of Inductor's configuration that change what the preprocessor sees.
_OPTIONS = (
    "cpp_cache_precompile_headers", "cpp.march", "cpp.enable_unsafe_math_opt_flag",
    "aot_inductor.debug_compile", "aot_inductor.link_libtorch", "aot_inductor.cross_target_platform",
    "aot_inductor.weight_use_caching_allocator", "aot_inductor.compile_wrapper_opt_level",
)  # fmt: skip


def in_use(*, package: bool = False, gpu: bool = True) -> list[Kind]:
    """Return the kinds of sources that Inductor may generate as configured; `package`: for an exported program.

    Without `gpu`, for a graph on the CPU: the toolkit whose headers the others include may not be installed.
    """
    from torch._inductor import config

    devices = ("cpu", "cuda") if torch.version.hip or (gpu and torch.version.cuda) else ("cpu",)
    names = [name for name, wanted in (("wrapper", config.cpp_wrapper), ("package", package)) if wanted]
    return [KERNELS, *(Kind(name, device) for name in names for device in devices)]


def _names(kind: Kind) -> list[str]:
    names = _NAMES[kind.name]
    if kind != KERNELS:
        names += _OF_BOTH + (_OF_CUDA if kind.device == "cuda" else ())
    return [name.format(device=kind.device) for name in names]


@functools.cache
def _source(kind: Kind, header: str) -> str:
    lines = [header] if kind == KERNELS else []
    for name in _names(kind):
        lines += [f"#if __has_include(<{name}>)", f"#include <{name}>", "#endif"]
    return "\n".join([*lines, ""])


def unasked(source: str) -> set[str]:
    """Return the headers that a generated source names and `listing_commands`, as configured, do not cover."""
    asked = {name for kind in in_use() for name in _names(kind)}
    asked.update(name for name, _ in _INCLUDE.findall(compile_commands.HEADER))
    return {name or macro for name, macro in _INCLUDE.findall(source)} - asked


def decided_by(kind: Kind) -> list[Any]:
    """Return the plain data that decides what `listing_commands` returns, besides the compiler and the CPU."""
    from torch._inductor import config

    options: list[str] = []
    for name in _OPTIONS:
        value: Any = config
        for part in name.split("."):
            value = getattr(value, part, None)
        options.append(repr(value))
    places = [os.path.dirname(torch.__file__), _python_headers(), os.environ.get("CUDA_HOME", "")]
    return [_source(kind, compile_commands.HEADER), torch.version.__version__, places, options]


@functools.cache
def _python_headers() -> str:
    return sysconfig.get_path("include")


def listing_commands(kind: Kind, compiler: Sequence[str], directory: str) -> list[tuple[list[str], str]]:
    """Write sources into `directory`; return commands that print the compiler's search path, and write a make rule.

    The files that a rule names are the source, the second of each pair, and those it includes. Which headers kernels
    include depends on the instruction set, and which of them the compiler supports is unknown: there is a command for
    each that the CPU has.
    """
    sets = instruction_sets.reported() if kind == KERNELS else instruction_sets.reported()[:1]
    listed = []
    for number, isa in enumerate(sets):
        source = os.path.join(directory, f"{number}.cpp")
        with open(source, "w") as file:
            file.write(_source(kind, compile_commands.HEADER))
        listed.append(([*compiler, source, *_flags(isa, kind.device), "-M", "-v"], source))
    return listed


def _flags(isa: Any, device: str = "cpu") -> list[str]:
    """Return Inductor's flags, except for the linker.

    For the CPU, those that its builder adds for torch are repeated here: to name three directories, the builder imports
    setuptools, which takes 0.1 s and changes the program's distutils. `unlike` compares them with the builder's.
    """
    from torch._inductor import cpp_builder

    if device == "cpu":
        options: Any = cpp_builder.CppOptions(compile_only=True)
        macros, arch = cpp_builder._get_build_args_of_chosen_isa(isa)
        macros += cpp_builder._get_torch_cpp_wrapper_definition() + cpp_builder._use_custom_generated_macros()
        macros += cpp_builder.get_caching_allocator_macro()
        flags = [*options.get_cflags(), *cpp_builder._get_openmp_args(options.get_compiler())[0]]
        torchs = os.path.join(os.path.dirname(torch.__file__), "include")
        places = [_python_headers(), torchs, os.path.join(torchs, "torch/csrc/api/include")]
    else:
        options = cpp_builder.CppTorchDeviceOptions(vec_isa=isa, device_type=device, compile_only=True)
        macros, flags, places, arch = options.get_definitions(), options.get_cflags(), options.get_include_dirs(), []
    words = [*(f"-D{macro.strip()}" for macro in macros if macro), *(f"-{flag}" for flag in flags)]
    passed = shlex.split(" ".join((*arch, *options.get_passthrough_args())))
    return [*words, *(f"-I{place}" for place in places), *passed]


def unlike(arguments: Sequence[str]) -> set[str]:
    """Return the words of a kernel's command that change what the preprocessor sees and are not in `listing_commands`.

    And the other way round. Empty, unless a release of torch adds such words.
    """
    from torch._inductor import cpu_vec_isa

    return _preprocessed(arguments) ^ _preprocessed(_flags(cpu_vec_isa.pick_vec_isa()))


def _preprocessed(words: Sequence[str]) -> set[str]:
    joined = [word + following.strip() if word in ("-D", "-I") else word for word, following in pairwise((*words, ""))]
    searched = " ".join(word for word in joined if word.startswith(("-I", "-isystem")))  # their order counts
    return {searched, *(word for word in joined if word.startswith(("-D", "-U", "-std", "-nostd", "-m", "-O", "-f")))}
