"""Kernels to one library: real g++, a header of the test's own because Inductor's takes seconds to read."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpool.lowering.cpp import kernels
from fxpool.lowering.cpp.library import Library
from fxpool.torch_compat.cpp import compile_commands, instruction_sets

Link = Callable[..., Any]
TYPES = ["const float*", "float*", "const int64_t"]


def kernel(body: str, before: str = "") -> compile_commands.CollectedKernel:
    source = f'{before}\nextern "C" void kernel(const float* in, float* out, const int64_t n) {{\n{body}\n}}\n'
    return compile_commands.CollectedKernel(TYPES, source)


def each(expression: str) -> str:
    return f"for (int64_t i = 0; i < n; i++) out[i] = {expression};"


@pytest.fixture
def link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    """Link kernels in up to `units` units; gives the functions, in the order of the kernels."""
    monkeypatch.setattr(compile_commands, "HEADER", "#include <cstdint>")
    submit, end = kernels.in_threads(2)

    def run(*collected: compile_commands.CollectedKernel, units: int = 2) -> list[Any]:
        with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
            linking = kernels.Linking(submit, units=lambda: units, toolchain_dir=None, patient=True)
            for number, one in enumerate(collected):
                linking.take([one], number == len(collected) - 1)
            data = linking.library()
        assert data is not None
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / digest).write_bytes(data)
        with open(tmp_path / digest, "rb") as file:
            module = Library(digest, lambda: contextlib.nullcontext(file.fileno())).load()
        return [getattr(module, name) for name in linking.names.values()]

    yield run
    end()


def results(functions: list[Any]) -> list[float]:
    found = []
    for function in functions:
        out = torch.zeros(4)
        function(torch.full((4,), 3.0), out, 4)
        found.append(out[-1].item())
    return found


@pytest.mark.parametrize("units", [1, 2, 5])
def test_units_become_one_library(units: int, link: Link) -> None:
    functions = link(*(kernel(each(f"in[i] + {number}")) for number in range(3)), units=units)
    assert results(functions) == [3.0, 4.0, 5.0]


def test_equal_kernels_are_compiled_once(link: Link) -> None:
    assert results(link(kernel(each("in[i]")), kernel(each("in[i]")))) == [3.0]


@pytest.mark.parametrize("units", [1, 2])
def test_helpers_of_one_name_are_each_kernels_own(units: int, link: Link) -> None:
    """In one unit they would not compile; in two the linker would silently take one of them for both."""
    helpers = [f"inline float helper(float x) {{ return x * {factor}; }}" for factor in (2, 10)]
    functions = link(*(kernel(each("helper(in[i])"), helper) for helper in helpers), units=units)
    assert results(functions) == [6.0, 30.0]


@pytest.mark.slow
def test_what_is_valid_in_the_global_namespace_only_is_compiled_there(link: Link) -> None:
    special = "struct mine {}; template <> struct std::hash<mine> { int operator()() { return 7; } };"
    special = f"#include <functional>\n{special}"
    functions = link(kernel(each("in[i]")), kernel(each("std::hash<mine>()()"), special), units=1)
    assert results(functions) == [3.0, 7.0]


def test_a_kernel_that_calls_into_torch_is_linked_with_it(link: Link) -> None:
    # The specialization keeps it out of a namespace of its own, where `at` would be another one.
    special = "#include <tuple>\ntemplate <> struct std::tuple_size<int> {};\nnamespace at { int get_num_threads(); }"
    functions = link(kernel(each("at::get_num_threads()"), special))
    assert results(functions) == [float(torch.get_num_threads())]


def test_what_does_not_compile_is_an_error_with_the_compilers_words(link: Link) -> None:
    with pytest.raises(kernels.CppCompileError, match="nonsense"):
        link(kernel(each("in[i]")), kernel("nonsense;"))


def test_arguments_are_checked(link: Link) -> None:
    (function,) = link(kernel(each("in[i]")))
    with pytest.raises(TypeError, match="takes 3 arguments, not 1"):
        function(torch.zeros(4))
    with pytest.raises(TypeError):
        function(torch.zeros(4), torch.zeros(4), "four")


def test_a_graph_without_kernels_has_no_library(link: Link) -> None:
    linking = kernels.Linking(
        lambda *_: pytest.fail("nothing to compile"), units=lambda: 2, toolchain_dir=None, patient=True
    )
    linking.take([], True)
    assert linking.library() is None
