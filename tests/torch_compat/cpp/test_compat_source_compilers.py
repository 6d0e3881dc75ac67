"""`source_compilers` knows how Inductor calls nvcc and ROCm's clang, and what was built before by the same command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config

from fxpool.torch_compat.cpp import source_compilers
from fxpool.torch_compat.cpp.source_kernels import CUDA, HALIDE, ROCM


def test_kinds_follow_from_the_configuration() -> None:
    assert source_compilers.in_use() == []
    with inductor_config.patch(cpu_backend="halide"):
        assert source_compilers.in_use() == [HALIDE] == source_compilers.in_use({"cpu"})
        assert source_compilers.in_use({"cuda"}) == []
    backends = {"max_autotune_gemm_backends": "ATEN, cutlass", "max_autotune_conv_backends": "CK,TRITON"}
    with inductor_config.patch(backends):
        assert source_compilers.in_use() == []  # nothing is tuned
        with inductor_config.patch(max_autotune=True):
            assert source_compilers.in_use() == [CUDA, ROCM]


def test_inductor_s_functions_are_found_where_this_release_has_them() -> None:
    for table in (source_compilers._COMMANDS, source_compilers._COMPILERS):
        for kind in (CUDA, ROCM):
            found = source_compilers._function(table[kind])
            assert found.__name__ == table[kind][-1].rpartition(":")[2]
            assert found.__module__.startswith("torch._inductor.")


def test_the_command_of_nvcc_is_inductor_s(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    place = source_compilers._function(source_compilers._COMMANDS[CUDA])
    module = importlib.import_module(place.__module__)
    for name in ("_cuda_compiler", "_nvcc_compiler_options", "_nvcc_host_compiler_options", "_cutlass_include_paths"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_, name=name: "nvcc" if name == "_cuda_compiler" else [])
    for name in ("_cuda_lib_options", "_get_extra_cuda_options"):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *args: [])
    words = source_compilers.command(CUDA, ["source.cu"], "library.so", ["-DX=1"])
    assert words[0] == "nvcc" and "source.cu" in words and "-DX=1" in words
    assert words[words.index("-o") + 1] == "library.so" and "-shared" in words


def test_a_missing_compiler_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(source_compilers, "_function", lambda places: lambda: "compat-nvcc")
    assert source_compilers.compiler(CUDA) is None
    monkeypatch.setattr(source_compilers, "_function", lambda places: lambda: None)
    assert source_compilers.compiler(CUDA) is None


def test_places_on_this_machine_do_not_count() -> None:
    words = ["/opt/cuda/bin/nvcc", "-O3", "-I/home/me/cutlass", "-L/opt/lib", "-rpath=/opt/lib", "-DX"]
    assert source_compilers.without_places(words) == ["nvcc", "-O3", "-I", "-L", "-rpath=", "-DX"]


def test_headers_of_the_template_library_are_found(tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    entry = next(name for name in ("cutlass.cutlass_dir", "cuda.cutlass_dir") if name in inductor_config._config)
    with inductor_config.patch({entry: str(tmp_path)}):
        assert source_compilers.header_directories(CUDA) == [str(tmp_path / "include")]
    with inductor_config.patch({entry: str(tmp_path / "nowhere")}):
        assert source_compilers.header_directories(CUDA) == []
    with inductor_config.patch({"rocm.ck_dir": str(tmp_path)}):
        assert source_compilers.header_directories(ROCM) == [str(tmp_path / "include")]
    with inductor_config.patch({"rocm.ck_dir": None}):  # what is installed: nothing here, or a directory
        assert all(map(os.path.isdir, source_compilers.header_directories(ROCM)))


class Builds:
    """Libraries that were built before, by source."""

    def __init__(self, **built: bytes) -> None:
        self.built = built
        self.kept: list[tuple[str, str, list[str], bytes, float]] = []

    def find(self, kind: str, source: str, words: Sequence[str]) -> bytes | None:
        return self.built.get(source)

    def keep(self, kind: str, source: str, words: Sequence[str], library: bytes, seconds: float) -> None:
        self.kept.append((kind, source, list(words), library, seconds))


def test_a_library_that_was_built_before_is_put_where_inductor_would_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torch._inductor import codecache

    cache: Any = getattr(codecache, "CUDACodeCache", None)
    if not hasattr(cache, "compile"):
        pytest.skip(f"torch {torch.__version__} has no CUDACodeCache")
    assert cache._SOURCE_CODE_SUFFIX == "cu"
    compiled: list[str] = []

    def write(cls: Any, source: str, ending: str) -> tuple[str, str]:
        path = tmp_path / f"{source}.cu"
        path.write_text(source)
        return source, str(path)

    def compile(cls: Any, source: str, ending: str, extra: Any = None) -> tuple[str, str, str]:
        compiled.append(source)
        made = tmp_path / f"{source}.{ending}"
        made.write_bytes(b"built")
        return str(made), source, str(tmp_path / f"{source}.cu")

    monkeypatch.setattr(cache, "write", classmethod(write))
    monkeypatch.setattr(cache, "compile", classmethod(compile))
    monkeypatch.setattr(source_compilers, "command", lambda kind, sources, made, arguments: ["nvcc", *arguments])
    builds, ticks = Builds(known=b"earlier"), iter([1.0, 3.5])
    with source_compilers.reusing_builds(builds, lambda: next(ticks)):
        path, key, source = cache.compile("known", "so", ["-DX"])
        assert Path(path).read_bytes() == b"earlier" and (key, source) == ("known", str(tmp_path / "known.cu"))
        assert Path(cache.compile("unknown", "so")[0]).read_bytes() == b"built"
        assert cache.compile("object", "o")[0].endswith(".o")
    assert compiled == ["unknown", "object"]
    assert builds.kept == [(CUDA, "unknown", ["nvcc"], b"built", 2.5)]
