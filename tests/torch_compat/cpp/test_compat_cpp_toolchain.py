"""`cpp_toolchain` lists the compilers that Inductor would try, and has it forget the one it found."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor import cpp_builder, cpu_vec_isa

from fxpool.torch_compat import versions
from fxpool.torch_compat.cpp import cpp_toolchain
from fxpool.torch_compat.patching import cached_functions


@pytest.fixture(autouse=True)
def _settled_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(cpp_toolchain, "_settled", None)
    yield


def test_candidates_are_those_of_the_configuration() -> None:
    with inductor_config.patch({"cpp.cxx": (None, "g++-9", "clang++")}):
        assert cpp_toolchain.compiler_candidates() == ["g++-9", "clang++"]
    with inductor_config.patch({"cpp.cxx": "clang++"}):
        assert cpp_toolchain.compiler_candidates() == ["clang++"]
    assert cpp_toolchain.compiler_candidates() != []


def test_a_compiler_with_arguments_is_split_since_2_14() -> None:
    newer = versions.parse(torch.__version__) >= (2, 14)
    assert cpp_toolchain.takes_arguments() is newer
    assert cpp_toolchain.words("ccache g++") == (["ccache", "g++"] if newer else ["ccache g++"])
    assert cpp_toolchain.words("'g++") == ([] if newer else ["'g++"])


def test_inductor_forgets_its_compiler_when_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.cache
    def of_builder() -> int:
        return 1

    @functools.cache
    def of_sets() -> int:
        return 1

    for function, module in ((of_builder, cpp_builder), (of_sets, cpu_vec_isa)):
        function.__module__ = module.__name__
        monkeypatch.setattr(module, "compat_cached", function, raising=False)

    def remembered() -> tuple[int, int]:
        return of_builder.cache_info().currsize, of_sets.cache_info().currsize

    def remember() -> None:
        of_builder()
        of_sets()

    remember()
    cpp_toolchain.settle("first")
    assert remembered() == (0, 1)  # instruction sets take seconds to find, and may be of this compiler
    remember()
    cpp_toolchain.settle("first")
    assert remembered() == (1, 1)
    cpp_toolchain.settle("second")
    assert remembered() == (0, 0)


def test_functions_that_remember_a_compiler_are_found() -> None:
    names = {function.__name__ for function in cached_functions(cpp_builder.__name__)}
    assert {"is_gcc", "is_clang", "cpp_compiler_search"} & names, names
    assert "valid_vec_isa_list" in {function.__name__ for function in cached_functions(cpu_vec_isa.__name__)}


def test_cached_methods_of_classes_are_found_and_those_of_other_modules_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = types.ModuleType("compat_module")

    class Owner:
        @functools.cache  # noqa: B019
        def method(self) -> int:
            return 1

    Owner.__module__ = "compat_module"
    module.Owner = Owner  # type: ignore[attr-defined]
    module.imported = functools.cache(lambda: 1)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert cached_functions(module.__name__) == [vars(Owner)["method"]]
