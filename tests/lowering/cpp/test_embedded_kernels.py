"""Graphs on a GPU that are called through C++ have their kernels' binaries in their library. No GPU is needed."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fxpool.codecache.key import toolchain
from fxpool.torch_compat.cpp import cpp_wrappers
from fxpool.torch_compat.cpp.cpp_wrappers import embed_kernels

#: As Inductor generates it, with loaders that say which of them was called.
SOURCE = """
#include <string>
#include <cstdint>
#include <optional>
static const void* loadKernel(std::string, const std::string&, uint32_t, const std::optional<std::string>&) {{
    return nullptr;
}}
static const void* loadKernel(const void* start, const std::string& name, uint32_t shared) {{
    return name == "mangled_{{}}" && shared == 2304 ? start : nullptr;
}}
namespace generated {{
template <typename In>
static __attribute__((noinline)) const void* call(In x, const std::optional<std::string>& cubin_dir_ = std::nullopt) {{
    static const void* triton_poi_0 = nullptr;
    if (triton_poi_0 == nullptr) {{
        triton_poi_0 = loadKernel("{path}", "mangled_{{}}", 2304, cubin_dir_);
    }}
    return triton_poi_0;
}}
}}
extern "C" const void* first() {{ return generated::call(1); }}
extern "C" const void* second() {{ return generated::call(1.0); }}
"""
BINARY = b"\x7fELF" + bytes(range(256)) * 5


@pytest.mark.parametrize("name", ["kernel.cubin", "with space, 100%.cubin"])
def test_a_library_finds_its_kernels_when_their_files_are_gone(tmp_path: Path, name: str) -> None:
    binary = tmp_path / name
    binary.write_bytes(BINARY)
    source = tmp_path / "wrapper.cpp"
    source.write_text(embed_kernels(SOURCE.format(path=binary)))
    library = tmp_path / "wrapper.so"
    compiler = toolchain.find_compiler(None)
    assert compiler is not None
    subprocess.run([compiler.path, "-std=c++17", "-O1", "-fPIC", "-shared", source, "-o", library], check=True)
    binary.unlink()
    loaded = ctypes.CDLL(str(library))
    for entry in (loaded.first, loaded.second):
        entry.restype = ctypes.c_void_p
        start = entry()
        assert start is not None, "the kernel is loaded from its path"
        assert start % 16 == 0
        assert ctypes.string_at(start, len(BINARY)) == BINARY


def test_the_header_that_is_precompiled_stays_first() -> None:
    changed = embed_kernels(
        '#include <wrapper.h>\n#include <other.h>\nf = loadKernel("/k.cubin", "k", 0, cubin_dir_);\n'
    )
    assert changed.startswith("#include <wrapper.h>\n")
    assert changed.index("fxpool_kernel_0") < changed.index("#include <other.h>")
    assert "/k.cubin" not in changed.partition("__asm__")[0]


def test_a_source_without_kernels_is_left_alone() -> None:
    source = "#include <wrapper.h>\nint f() { return 1; }\n"
    assert embed_kernels(source) == source


@pytest.mark.parametrize(
    "line",
    [
        'f = loadKernel("/a/k.cubin", name(), 0, cubin_dir_);',  # in a form that is not known
        'f = loadKernel("/a/k.cubin", "k", 0);',
        'result = runTritonKernelWithAutotune(pending, "k", stream_, x);',  # compiled when it is called
        'f = loadKernel("/a/\\"k.cubin", "k", 0, cubin_dir_);',  # no assembler is told this
    ],
)
def test_a_kernel_that_is_found_in_another_way_is_refused(line: str) -> None:
    with pytest.raises(NotImplementedError):
        embed_kernels(f"#include <wrapper.h>\n{line}\n")


def _collected(monkeypatch: pytest.MonkeyPatch, **told: Any) -> tuple[list[str], list[str]]:
    """(digests that were taken, sources that are built) for a call of Inductor's loader."""
    from torch._inductor.codecache import CppWrapperCodeCache

    taken: list[str] = []
    built: list[str] = []

    def builder(args: Any, kwargs: dict[str, Any]) -> Any:
        built.append(kwargs["main_code"])
        return lambda: b""

    monkeypatch.setattr(cpp_wrappers, "_builder", builder)
    with cpp_wrappers.collecting(lambda digest, source, build: taken.append(digest)):
        CppWrapperCodeCache.load_pybinding(argtypes=[], num_outputs=1, kernel_code=None, **told)
    return taken, built


def test_an_entry_is_found_by_what_was_generated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated call, which is replaced, has the source with paths; what is built has none."""
    source = '#include <wrapper.h>\nf = loadKernel("/k.cubin", "k", 0, cubin_dir_);\n'
    told = {"argtypes": [], "num_outputs": 1, "kernel_code": None, "main_code": source, "device_type": "cuda"}
    taken, built = _collected(monkeypatch, main_code=source, device_type="cuda")
    assert taken == [cpp_wrappers.digest((), told)]
    assert built == [embed_kernels(source)]
    taken, built = _collected(monkeypatch, main_code=source, device_type="cpu")
    assert built == [source]
