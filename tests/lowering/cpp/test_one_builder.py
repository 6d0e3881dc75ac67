"""C++ libraries, kernels with Python bindings and C++ wrappers: Inductor builds none of them itself in a worker.

Each kind is built once, by what collects it, and comes back as bytes that another process loads.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache
from torch._inductor.async_compile import AsyncCompile

from fxpool.lowering.cpp import kernels
from fxpool.lowering.cpp.built_libraries import BuiltLibraries, BuiltLinking
from fxpool.lowering.cpp.library import Library
from fxpool.torch_compat.cpp import compile_commands, cpp_wrappers

LIBRARY = 'extern "C" int kernel(int* values) { values[0] += 1; return 0; }'
BINDINGS = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(float* out) { out[0] += 1; }
"""


@pytest.fixture
def nothing_is_loaded_by_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("torch built and loaded a library itself")

    for cache in (codecache.CppCodeCache, codecache.CppPythonBindingsCodeCache):
        monkeypatch.setattr(cache, "_load_library_inner", refuse)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))


def loaded(linking: BuiltLinking, tmp_path: Path) -> BuiltLibraries:
    files = []
    for number, data in enumerate(linking.libraries()):
        path = tmp_path / f"{number}.so"
        path.write_bytes(data)
        path.chmod(0o755)
        files.append((f"{tmp_path.name}{number}", _opened(str(path))))
    return BuiltLibraries(files)


def _opened(path: str) -> Callable[[], contextlib.AbstractContextManager[int]]:
    @contextlib.contextmanager
    def opened() -> Iterator[int]:
        with open(path, "rb") as file:
            yield file.fileno()

    return opened


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_loaded_by_torch")
def test_a_library_of_c_functions(tmp_path: Path) -> None:
    linking = BuiltLinking(None)
    try:
        with linking.collecting():
            made = AsyncCompile().cpp(LIBRARY)
            assert isinstance(made, cpp_wrappers.Collected)
            AsyncCompile().cpp(LIBRARY)
        (name,) = linking.names.values()
        values = (ctypes.c_int * 1)(41)
        assert getattr(loaded(linking, tmp_path), name)(values) == 0
        assert values[0] == 42
    finally:
        linking.close()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_is_loaded_by_torch")
def test_kernels_with_python_bindings(tmp_path: Path) -> None:
    submit, end = kernels.in_threads(1)
    linking = kernels.Linking(submit, units=lambda: 1, toolchain_dir=None, patient=False)
    try:
        with compile_commands.collecting(linking.take, linking.begin):
            made = AsyncCompile().cpp_pybinding(["float*"], BINDINGS)
            AsyncCompile().wait({})
        assert isinstance(made, compile_commands.CollectedKernel)
        data = linking.library()
        assert data is not None
        path = tmp_path / "kernels.so"
        path.write_bytes(data)
        module = Library(tmp_path.name, _opened(str(path))).load()
        (name,) = linking.names.values()
        values = torch.zeros(1)
        getattr(module, name)(values)
        assert values.item() == 1
    finally:
        end()


@pytest.mark.usefixtures("nothing_is_loaded_by_torch")
def test_wrappers_of_graphs_that_are_called_through_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is built is in test_cpp_wrappers.py: its headers take long."""
    built: list[tuple[Any, ...]] = []

    def builder(*told: Any) -> Callable[[], bytes]:
        built.append(told)
        return lambda: b"library"

    monkeypatch.setattr(cpp_wrappers, "_builder", builder)
    linking = BuiltLinking(None)
    try:
        with linking.collecting():
            made = codecache.CppWrapperCodeCache.load_pybinding(argtypes=[], main_code="int f();")
        assert isinstance(made, cpp_wrappers.Collected)
        assert linking.libraries() == [b"library"] and len(built) == 1
        assert list(linking.names.values()) == ["e0"]
    finally:
        linking.close()
