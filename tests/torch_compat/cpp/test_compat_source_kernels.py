"""`source_kernels` collects kernels whose source is a library of its own, and loads what was built of one elsewhere."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fxpool.torch_compat.cpp import source_kernels
from fxpool.torch_compat.cpp.cpp_wrappers import Collected
from fxpool.torch_compat.cpp.source_kernels import CPP, CUDA, HALIDE, KINDS, ROCM, Built


def generated(text: str) -> str | None:
    (node,) = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)][:1]
    return source_kernels.generated_digest(node)


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_cpp", "_template"):
        monkeypatch.setattr(source_kernels, name, lambda *told: lambda: Built(b"library"))
    monkeypatch.setattr(source_kernels, "_halide", lambda meta, source: lambda: Built(b"library", b"runtime"))


def test_kernels_are_collected_under_the_digests_of_their_generated_calls(not_built: None) -> None:
    from torch._inductor.async_compile import AsyncCompile

    here = [kind for kind in KINDS if kind in vars(AsyncCompile)]
    assert CPP in here and HALIDE in here
    before = {kind: vars(AsyncCompile)[kind] for kind in here}
    taken: list[tuple[str, str]] = []
    with source_kernels.collecting(lambda kind, digest, source, build: taken.append((kind, digest))):
        compiler = AsyncCompile()
        made = [compiler.cpp("int x;")]
        for kind in (CUDA, ROCM):
            if kind in here:
                made.append(getattr(compiler, kind)("int x;", "so"))
    assert {kind: vars(AsyncCompile)[kind] for kind in here} == before
    expected = {
        CPP: generated("async_compile.cpp('int x;')"),
        CUDA: generated("async_compile.cuda('int x;', 'so')"),
        ROCM: generated("async_compile.rocm('int x;', 'so', aot_compile=False)"),
    }
    assert taken == [(kind, digest) for kind, digest in expected.items() if kind in here]
    assert len(set(taken)) == len(taken)
    for kernel in made:
        assert isinstance(kernel, Collected)
        with pytest.raises(RuntimeError, match="called in the process that compiled it"):
            kernel()


def test_a_halide_kernel_is_described_as_inductor_writes_it(not_built: None) -> None:
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.runtime.hints import HalideInputSpec, HalideMeta

    meta = HalideMeta([HalideInputSpec("float*", "in_ptr0", shape=["8L"], stride=["1L"], offset="0")], target="host")
    taken: list[tuple[str, str]] = []
    with source_kernels.collecting(lambda kind, digest, source, build: taken.append((kind, digest))):
        AsyncCompile().halide(meta, "import halide")
    assert taken == [(HALIDE, generated(f"async_compile.halide(\n    {meta!r}, '''import halide''')"))]
    assert not meta.is_cuda()


@pytest.mark.parametrize(
    "text",
    [
        "async_compile.triton('name', 'text')",
        "other.cpp('int x;')",
        "cpp('int x;')",
        "async_compile.cuda('int x;', 'o')",
        "async_compile.cuda('int x;', 'so', aot_compile=True)",
    ],
)
def test_other_calls_have_no_digest(text: str) -> None:
    assert generated(text) is None


def test_an_argument_that_is_not_known_is_refused() -> None:
    with pytest.raises(ValueError):
        generated("async_compile.cpp(source)")


@pytest.fixture
def library(tmp_path: Path) -> Callable[[str], str]:
    compiler = shutil.which("g++") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler")

    def build(source: str) -> str:
        path, made = tmp_path / "source.c", tmp_path / "library.so"
        path.write_text(source)
        subprocess.run([compiler, "-xc", "-shared", "-fPIC", str(path), "-o", str(made)], check=True)
        return str(made)

    return build


def test_a_library_of_plain_functions_is_loaded(library: Callable[[str], str]) -> None:
    kernel = source_kernels.opened(CPP, library("int kernel(int x) { return x + 1; }"), "compat")
    assert kernel(6) == 7


def test_a_library_of_templates_raises_for_a_status(library: Callable[[str], str]) -> None:
    loaded = source_kernels.opened(
        CUDA, library("int good(int x) { return 0; } int bad(int x) { return x; }"), "compat"
    )
    assert loaded.good(3) is None
    with pytest.raises(RuntimeError, match="bad returned 3"):
        loaded.bad(3)
    with pytest.raises(AttributeError):
        loaded.unknown(1)
    with pytest.raises(OSError):
        source_kernels.opened(ROCM, "/nowhere/library.so", "compat")


def test_the_caches_that_build_are_inductor_s() -> None:
    from torch._inductor import codecache

    assert issubclass(codecache.HalideCodeCache, codecache.CppPythonBindingsCodeCache)
    for name in ("generate_halide", "build_standalone_runtime"):
        assert name in vars(codecache.HalideCodeCache)
    assert hasattr(codecache.CppCodeCache, "_load_library") and hasattr(codecache.CppCodeCache, "load")


def test_a_c_library_is_built_by_inductor_and_not_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The build itself is left out: Inductor's cache is asked for the library of a source, and gives its path."""
    from torch._inductor.codecache import CppCodeCache

    made = tmp_path / "kernel.so"
    made.write_bytes(b"a library")

    def load(cls: Any, source: str) -> Any:
        return cls._load_library(str(made), "key")

    monkeypatch.setattr(CppCodeCache, "load", classmethod(load))
    assert source_kernels._cpp("int x;")() == Built(b"a library")
