"""`embedded_kernels` puts the binaries of Triton kernels into the library of a graph that is called through C++."""

from __future__ import annotations

import inspect
import shutil
import subprocess
from pathlib import Path

import pytest

from fxpool.torch_compat.cpp.cpp_wrappers import embed_kernels

HEAD = "#include <torch/csrc/inductor/cpp_wrapper/cuda.h>\n#include <other.h>\n"
LOAD = 'kernels.k0 = loadKernel("{path}", "triton_poi", 1024, cubin_dir_);\n'


def test_paths_are_replaced_by_what_lies_there() -> None:
    source = embed_kernels(HEAD + LOAD.format(path="/tmp/a.cubin") + LOAD.format(path="/tmp/b.cubin"))
    assert ".cubin, " not in source and 'loadKernel("' not in source
    for number, path in enumerate(("/tmp/a.cubin", "/tmp/b.cubin")):
        assert f'loadKernel(static_cast<const void*>(fxpool_kernel_{number}), "triton_poi", 1024)' in source
        assert f'.incbin \\"{path}\\"' in source
    # The first header is the precompiled one: what is declared comes after it.
    assert source.startswith('#include <torch/csrc/inductor/cpp_wrapper/cuda.h>\nextern "C"')


def test_a_source_without_kernels_is_left_as_it_is() -> None:
    source = HEAD + "int x = 1;\n"
    assert embed_kernels(source) == source


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (HEAD + 'runTritonKernelWithAutotune("text");', "not known: runTritonKernelWithAutotune"),
        (HEAD + 'auto path = "/tmp/other.cubin";', "/tmp/other.cubin"),
        (LOAD.format(path="/tmp/a.cubin"), "no header"),
        (HEAD + LOAD.format(path="/tmp/a\\\\b.cubin"), "can't be told to the assembler"),
    ],
)
def test_what_is_found_in_another_way_is_refused(source: str, words: str) -> None:
    with pytest.raises(NotImplementedError, match=words):
        embed_kernels(source)


def test_a_compiler_takes_the_binary_in(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    binary = tmp_path / "kernel.cubin"
    binary.write_bytes(b"the binary of a kernel")
    call = f'int f() {{ return loadKernel("{binary}", "name", 0, cubin_dir_); }}\n'
    source = embed_kernels("#include <cstddef>\nint loadKernel(const void*, const char*, int);\n" + call)
    (tmp_path / "wrapper.cpp").write_text(source)
    made = tmp_path / "wrapper.o"
    subprocess.run([compiler, "-c", "-fPIC", str(tmp_path / "wrapper.cpp"), "-o", str(made)], check=True)
    assert b"the binary of a kernel" in made.read_bytes()


def test_inductor_writes_the_call_that_is_replaced() -> None:
    """And its loader takes a binary from memory."""
    import torch
    from torch._inductor.codegen import cpp_wrapper_gpu

    assert "loadKernel(" in inspect.getsource(cpp_wrapper_gpu)
    include = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "inductor"
    declared = [path for path in include.rglob("*.h") if "loadKernel(" in path.read_text(encoding="utf-8")]
    assert declared
    assert any("const void*" in path.read_text(encoding="utf-8") for path in declared)
