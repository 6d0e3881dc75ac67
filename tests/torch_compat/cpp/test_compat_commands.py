"""`compile_commands` has the compiler command for libraries of kernels, and collects its C++ kernels uncompiled."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import config as inductor_config

from fxpool.torch_compat.cpp import compile_commands
from fxpool.torch_compat.cpp.compile_commands import CollectedKernel, Command
from fxpool.torch_compat.cpp.instruction_sets import instruction_sets_known


@pytest.fixture(autouse=True)
def _no_vector_instructions() -> Iterator[None]:
    """Nothing is probed: that would build test programs."""
    with instruction_sets_known([]):
        yield


def test_kernels_of_a_module_are_collected_instead_of_compiled() -> None:
    from torch._inductor.async_compile import AsyncCompile

    before = AsyncCompile.cpp_pybinding, AsyncCompile.wait
    seen: list[tuple[list[str], bool]] = []

    def collect(kernels: Sequence[CollectedKernel], last: bool) -> None:
        seen.append(([kernel.source for kernel in kernels], last))

    with compile_commands.collecting(collect):
        compiler = AsyncCompile()
        kernel = compiler.cpp_pybinding(["float*"], "void kernel(float*) {}")
        assert isinstance(kernel, CollectedKernel) and kernel.argument_types == ["float*"]
        with pytest.raises(RuntimeError, match="called in the process that compiled it"):
            kernel(1)
        compiler.wait({})
        compiler.cpp_pybinding([], "of a module without a call of wait")
    assert seen == [(["void kernel(float*) {}"], True), (["of a module without a call of wait"], True)]
    assert (AsyncCompile.cpp_pybinding, AsyncCompile.wait) == before


def test_a_graph_is_lowered_to_collected_kernels() -> None:
    """Inductor's lowering of a tiny graph, forward and backward: kernels come with their modules, and before."""
    from torch._inductor.compile_fx import compile_fx

    collected: list[tuple[int, bool]] = []
    begun: list[CollectedKernel] = []
    kernels: list[CollectedKernel] = []

    def collect(module: Sequence[CollectedKernel], last: bool) -> None:
        kernels.extend(module)
        collected.append((len(module), last))

    x = torch.ones(32, requires_grad=True)
    seen: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        with (
            compile_commands.collecting(collect, begun.append),
            torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
            inductor_config.patch(fx_graph_cache=False, force_disable_caches=True),
        ):
            seen.append(compile_fx(gm, inputs))
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x.sin().cos(), backend=backend)(x)
    torch._dynamo.reset()
    assert collected == [(1, False), (1, True)]  # the forward of a training step is not the graph's last
    assert len(begun) == 2
    for kernel, other in zip(begun, kernels, strict=True):
        assert kernel.argument_types == other.argument_types
        assert [line.rstrip() for line in kernel.source.strip().splitlines()] == [
            line.rstrip() for line in other.source.strip().splitlines()
        ]
        assert kernel.argument_types[0] == "const float*" and "float*" in kernel.argument_types
        assert 'extern "C"' in kernel.source and "#include" in kernel.source
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("async_compile.cpp_pybinding(['float*'], '''\nvoid kernel() {}\n''')", (["float*"], "\nvoid kernel() {}\n")),
        ("async_compile.triton('name', '''text''')", None),
        ("async_compile.cpp_pybinding(['float*'], name)", None),
        ("async_compile.cpp_pybinding(['float*'], '''text''', other=1)", None),
        ("async_compile.cpp_pybinding(", None),
        ("void kernel() {}", None),
    ],
)
def test_a_definition_is_read(text: str, expected: Any) -> None:
    kernel = compile_commands.defined_kernel(text)
    assert (None if kernel is None else (kernel.argument_types, kernel.source)) == expected


def test_the_address_is_of_torch_s_function() -> None:
    address = compile_commands.tensor_data_pointer()
    assert address == torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr > 0


def test_a_source_is_compiled_by_inductor_s_command(tmp_path: Path) -> None:
    place = tmp_path / "it's a place"
    source = place / "kernel.cpp"
    words, made = Command(["/usr/bin/compat-g++"]).compile(str(source), "kernel")
    assert words[0] == "/usr/bin/compat-g++" and str(source) in words
    assert made == str(place / "kernel.o") and words[words.index("-o") + 1] == made
    assert "-c" in words and "-shared" not in words
    assert any(word.startswith("-std=c++") for word in words) and any(word.startswith("-O") for word in words)
    includes = [word.removeprefix("-I") for word in words if word.startswith("-I")]
    assert any(os.path.isfile(os.path.join(include, "Python.h")) for include in includes)


def test_a_library_is_linked_by_inductor_s_command(tmp_path: Path) -> None:
    command = Command(["g++"])
    objects = [str(tmp_path / "a.o"), str(tmp_path / "b.o")]
    words, made = command.link(objects, str(tmp_path / "library"))
    assert made == str(tmp_path / "library.so") and set(objects) <= set(words) and "-shared" in words
    lightly, same = command.link_lightly(objects, str(tmp_path / "library"), "/stand-in.so")
    assert same == made and lightly[-2:] == ["-Wl,--no-as-needed", "/stand-in.so"]
    assert [word for word in lightly if word.startswith(("-ltorch", "-lc10"))] == []


def test_the_stand_in_has_the_name_of_torch_s_library(tmp_path: Path) -> None:
    words, made = Command(["g++"]).stand_in(str(tmp_path))
    assert words[0] == "g++" and made == str(tmp_path / "libtorch_cpu.so") and words[-1] == made
    assert "-Wl,-soname,libtorch_cpu.so" in words
    assert os.path.isfile(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))


def test_a_precompiled_header_is_made_and_used(tmp_path: Path) -> None:
    command = Command(["g++"])
    header = str(tmp_path / "prefix.h")
    with inductor_config.patch(cpp_cache_precompile_headers=True):
        assert command.precompiles_headers() and command.lacks_header()
        words, made = command.precompile(header)
        assert made == f"{header}.gch" and "-o" in words and words[words.index("-o") + 1] == made
        command.use_header(header)
        assert not command.lacks_header()
        words, _ = command.compile(str(tmp_path / "kernel.cpp"), "kernel")
        assert header in words and words[words.index(header) - 1] == "-include"
    with inductor_config.patch(cpp_cache_precompile_headers=False):
        assert not command.precompiles_headers() and not command.lacks_header()


def test_the_header_of_kernels_is_torch_s() -> None:
    (name,) = [word.strip("<>") for word in compile_commands.HEADER.split() if word.startswith("<")]
    assert os.path.isfile(os.path.join(os.path.dirname(torch.__file__), "include", name))
    assert shlex.split(compile_commands.HEADER)[0] == "#include"


def test_inductor_s_files_go_where_they_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.runtime import cache_dir_utils

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "before"))
    compile_commands.inductor_directory(str(tmp_path / "there"))
    assert cache_dir_utils.cache_dir() == str(tmp_path / "there")
    compile_commands.inductor_directory(str(tmp_path / "elsewhere"))
    assert cache_dir_utils.cache_dir() == str(tmp_path / "elsewhere")
