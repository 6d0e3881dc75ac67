"""GPU graphs that are called through C++: embeds the binaries of their Triton kernels in the library.

Inductor's source contains paths of files in the directory of the process that compiled the kernels, and loads them from
there at the graph's first call. Another process, or a later run, cannot rely on these files. CUDA's driver also loads a
binary from memory, and the assembler can embed one in a library (`.incbin`), as in AOTInductor's packages.
"""

from __future__ import annotations

import re

__all__ = ["self_contained"]

#: A C++ string as Inductor writes it, and its call of the loader that takes a path.
_STRING = r'"(?:[^"\\\n]|\\.)*"'
_LOADS = re.compile(rf"loadKernel\((?P<path>{_STRING}), (?P<name>{_STRING}), (?P<shared>\d+), cubin_dir_\)")
#: Code that finds kernels in another way: by compiling their text on the first call (the default since 2.12).
_OTHERWISE = re.compile(r'runTritonKernelWithAutotune\(|"(?:[^"\\\n]|\\.)*\.(?:cubin|hsaco|spv)"')
_FIRST_HEADER = re.compile(r"^#include [^\n]*\n", re.MULTILINE)
_ESCAPE = re.compile(r"\\(.)")


def self_contained(source: str) -> str:
    """Return the source of a C++ wrapper with its kernels' binaries embedded in place of their paths.

    The files have to exist until it is compiled. Raises NotImplementedError: it also finds code in another way.
    """
    definitions: list[str] = []

    def from_memory(call: re.Match[str]) -> str:
        symbol = _symbol(len(definitions))
        definitions.append(_definition(symbol, _ESCAPE.sub(r"\1", call["path"][1:-1])))
        return f"loadKernel(static_cast<const void*>({symbol}), {call['name']}, {call['shared']})"

    changed = _LOADS.sub(from_memory, source)
    if (other := _OTHERWISE.search(changed)) is not None:
        raise NotImplementedError(f"a C++ wrapper finds a kernel in a way that is not known: {other[0]}")
    declared = "".join(_declaration(_symbol(number)) for number in range(len(definitions)))
    # Not at the top: the first include in a file has to be the precompiled header.
    with_names = _FIRST_HEADER.sub(lambda header: header[0] + declared, changed, count=1)
    if definitions and with_names == changed:
        raise NotImplementedError("a C++ wrapper has no header")
    return with_names + "".join(definitions)


def _symbol(number: int) -> str:
    return f"fxpool_kernel_{number}"


def _declaration(symbol: str) -> str:
    return f'extern "C" __attribute__((visibility("hidden"))) const unsigned char {symbol}[];\n'


def _definition(symbol: str, path: str) -> str:
    if not path.isprintable() or any(character in path for character in '"\\'):
        raise NotImplementedError(f"the path of a kernel can't be told to the assembler: {path!r}")
    lines = (".pushsection .rodata", ".balign 16", f"{symbol}:", f'.incbin \\"{path}\\"', ".popsection")
    return "\n__asm__(" + " ".join(f'"{line}\\n"' for line in lines) + ");"
