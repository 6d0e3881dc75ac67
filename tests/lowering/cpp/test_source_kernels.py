"""Libraries of CUDA and ROCm sources: built in a worker, kept in the store, loaded without their compilers.

nvcc is the one on the path, behind a script that records how it was called. Where there is none, and for ROCm's clang,
the script runs g++ in its place, so that what is made is a real library in any case. No GPU is needed: the function in
the library works on the host.
"""

from __future__ import annotations

import ast
import ctypes
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import source_jobs
import torch._inductor.config as inductor_config
from processes import HERE, run_python
from torch.utils import cpp_extension

from fxpool.codecache.key import source_toolchain
from fxpool.codecache.store import catalogue
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact.entry_content import content_of
from fxpool.lowering.artifact.entry_parts import generated_code
from fxpool.lowering.cpp import source_builds
from fxpool.lowering.worker import wrapper_linking
from fxpool.torch_compat.cpp import source_compilers, source_kernels

NVCC = shutil.which("nvcc")
# Not of the host's: there is none, and the library does not need one.
RECORDED = """#!/bin/sh
echo "$*" >> {log}
[ "$1" = --version ] && {{ echo "recorded {version}"; exit; }}
for word do
    shift
    case "$word" in -lcuda) ;; *) set -- "$@" "$word";; esac
done
"""
AS_GXX = """
kind=-shared
while [ $# -gt 0 ]; do
    case "$1" in
        -o) made=$2; shift;;
        -c) kind=-c;;
        *.cu|*.cpp) source="-x c++ $1";;
        *.o) source=$1;;
    esac
    shift
done
exec g++ -fPIC $kind -o "$made" $source
"""
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")


class Compiler:
    """A compiler that records how it is called."""

    def __init__(self, path: Path, log: Path, *, version: str = "1.0", behind: str | None = None) -> None:
        self.path, self._log = path, log
        path.parent.mkdir(parents=True, exist_ok=True)
        rest = f'exec {shlex.quote(behind)} "$@"\n' if behind is not None else AS_GXX
        path.write_text(RECORDED.format(log=shlex.quote(str(log)), version=version) + rest)
        path.chmod(0o755)

    def calls(self) -> list[str]:
        """The command lines so far, without those that only ask for its version."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in lines if line not in ("--version", "-v")]


@pytest.fixture
def nvcc(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "nvcc", tmp_path / "nvcc.log", behind=NVCC)


@pytest.fixture
def clang(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path / "rocm/llvm/bin/clang", tmp_path / "clang.log")


def cuda_options(nvcc: Compiler, arch: str = "90") -> dict[str, Any]:
    return {"cuda.cuda_cxx": str(nvcc.path), "cuda.arch": arch, "cuda.version": "13.0"}


def rocm_options(clang: Compiler) -> dict[str, Any]:
    home = str(clang.path.parents[2])
    return {"rocm.rocm_home": home, "rocm.ck_dir": home, "rocm.arch": ["gfx942"]}


def cuda_home(tmp_path: Path) -> str:
    """The toolkit of the nvcc on the path, or a directory for what needs none."""
    real = "/usr/local/cuda"
    return os.environ.get("CUDA_HOME") or (real if NVCC is not None and os.path.isdir(real) else str(tmp_path))


def run(kind: str, tmp_path: Path, options: dict[str, Any], *graphs: str) -> dict[str, Any]:
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    environment = {"CUDA_HOME": cuda_home(tmp_path), "FXPOOL_POOL": "embedded"}
    environment["FXPOOL_CACHE_DIR"] = str(cache / "store")
    arguments = [str(HERE / "source_child.py"), kind, str(cache), json.dumps(options), *graphs]
    return dict(json.loads(run_python(arguments, 250, **environment).strip().splitlines()[-1]))


@pytest.mark.timeout(300)
def test_nvcc_runs_once_whichever_process_and_graph_asks(tmp_path: Path, nvcc: Compiler) -> None:
    options = cuda_options(nvcc)
    first = run("cuda", tmp_path, options, "sin")["sin"]
    assert first["hits"] == 1 and first["doubled"], "the library of the entry was called"
    assert not first["fallbacks"], "and nothing was left to torch's loader"
    assert len(nvcc.calls()) == 2, "an object, and a library of it"
    assert all("sm_90a" in call for call in nvcc.calls()), "the target is the configuration's, no device was asked"
    second = run("cuda", tmp_path, options, "cos")["cos"]
    assert second["doubled"]
    assert len(nvcc.calls()) == 2, "another process, another graph: the library is there"
    assert first["key"] != second["key"] and first["blobs"]["built.0"] == second["blobs"]["built.0"]


@pytest.mark.timeout(300)
@pytest.mark.slow
def test_rocms_compiler_runs_once_as_well(tmp_path: Path, clang: Compiler) -> None:
    found = run("rocm", tmp_path, rocm_options(clang), "sin", "cos")
    assert all(graph["doubled"] and not graph["fallbacks"] for graph in found.values())
    (call,) = clang.calls()
    assert "--offload-arch=gfx942" in call and "-x hip" in call and "-shared" in call


class TestBuilds:
    """The store between Inductor's caches and their compilers. g++ is behind the script here: it takes less time."""

    @pytest.fixture
    def nvcc(self, tmp_path: Path) -> Compiler:
        return Compiler(tmp_path / "nvcc", tmp_path / "nvcc.log")

    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        (tmp_path / "s").mkdir(mode=0o700)
        return LocalStore(str(tmp_path / "s"))

    @pytest.fixture
    def build(self, tmp_path: Path, store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., bytes]:
        """Build a source as Inductor does, in a cache directory of torch's that is new each time."""
        from torch._inductor import codecache
        from torch._inductor.codegen.cuda import cuda_env

        directories = iter(range(100))
        monkeypatch.setattr(cpp_extension, "CUDA_HOME", cuda_home(tmp_path))

        def build(kind: str, options: dict[str, Any], source: str = source_jobs.SOURCE) -> bytes:
            monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / f"torch{next(directories)}"))
            cache: Any = {"cuda": codecache.CUDACodeCache, "rocm": codecache.ROCmCodeCache}[kind]
            cache.cache_clear()
            cuda_env.get_cuda_arch.cache_clear()
            with inductor_config.patch(options), source_builds.kept_in(store.root, None):
                path, _, _ = cache.compile(source, "so")
            cache.cache_clear()
            return Path(path).read_bytes()

        return build

    def test_the_same_source_is_the_same_library(
        self, build: Callable[..., bytes], nvcc: Compiler, store: LocalStore, tmp_path: Path
    ) -> None:
        first = build("cuda", cuda_options(nvcc))
        made = len(nvcc.calls())
        assert build("cuda", cuda_options(nvcc)) == first
        assert len(nvcc.calls()) == made
        library = tmp_path / "library.so"
        library.write_bytes(first)
        values = (ctypes.c_float * 2)(1.5, 2.0)
        opened = source_kernels.opened("cuda", str(library), "library")
        opened.twice(values, 2)
        assert list(values) == [3.0, 4.0]
        with pytest.raises(RuntimeError, match="twice returned 7"):
            opened.twice(values, -1)

    @pytest.mark.parametrize("change", ["source", "target", "flags", "compiler"])
    def test_what_the_key_covers(
        self, change: str, build: Callable[..., bytes], nvcc: Compiler, tmp_path: Path
    ) -> None:
        options = cuda_options(nvcc)
        build("cuda", options)
        before, source = len(nvcc.calls()), source_jobs.SOURCE
        if change == "source":
            source += "// another\n"
        elif change == "target":
            options = cuda_options(nvcc, "80")
        elif change == "flags":
            options = {**options, "cutlass.use_fast_math": True}
        else:
            Compiler(nvcc.path, tmp_path / "nvcc.log", version="1.1")
        build("cuda", options, source)
        assert len(nvcc.calls()) > before

    def test_a_compiler_elsewhere_is_the_same_compiler(self, build: Callable[..., bytes], tmp_path: Path) -> None:
        there = Compiler(tmp_path / "one/nvcc", tmp_path / "log")
        build("cuda", cuda_options(there))
        calls = there.calls()
        moved = Compiler(tmp_path / "other/nvcc", tmp_path / "log")
        build("cuda", cuda_options(moved))
        assert moved.calls() == calls

    def test_rocms_command_is_in_the_key(self, build: Callable[..., bytes], clang: Compiler) -> None:
        build("rocm", rocm_options(clang))
        build("rocm", rocm_options(clang))
        assert len(clang.calls()) == 1
        build("rocm", {**rocm_options(clang), "rocm.arch": ["gfx90a"]})
        build("rocm", {**rocm_options(clang), "rocm.use_fast_math": False})
        assert len(clang.calls()) == 3
        assert "--offload-arch=gfx90a" in clang.calls()[1]

    def test_what_does_not_compile_is_not_kept(self, build: Callable[..., bytes], nvcc: Compiler) -> None:
        from torch._inductor.exc import CUDACompileError

        for _ in range(2):
            before = len(nvcc.calls())
            with pytest.raises(CUDACompileError):
                build("cuda", cuda_options(nvcc), "this is no C++")
            assert len(nvcc.calls()) == before + 1

    def test_people_see_what_it_is(self, build: Callable[..., bytes], nvcc: Compiler, store: LocalStore) -> None:
        build("cuda", cuda_options(nvcc))
        (stored,) = store.scan()
        assert stored.entry is not None
        assert stored.entry.metadata.label == "cuda source" and stored.entry.metadata.compile_seconds > 0
        assert content_of(stored.entry).level == source_builds.SOURCE
        assert generated_code(stored.entry, store) == [], "`cache show` has no module to show"
        assert "sm_90a" in {one.name: one.text for one in stored.entry.components}["command"]

    def test_a_damaged_library_is_built_again(
        self, build: Callable[..., bytes], nvcc: Compiler, store: LocalStore
    ) -> None:
        first = build("cuda", cuda_options(nvcc))
        made = len(nvcc.calls())
        for blob in catalogue.blobs(store.root):
            Path(store.root, blob.path).write_bytes(b"\x7fELF")
        assert len(build("cuda", cuda_options(nvcc))) == len(first)
        assert len(nvcc.calls()) == 2 * made


def test_no_place_is_in_a_command() -> None:
    words = ["/opt/cuda/bin/nvcc", "-O1", "-I/home/me/include", "-L/usr/lib", "-Xlinker", "-rpath=/x", "-o", "library"]
    assert source_compilers.without_places(words) == ["nvcc", "-O1", "-I", "-L", "-Xlinker", "-rpath=", "-o", "library"]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({}, []),
        ({"cpu_backend": "halide"}, ["halide"]),
        ({"max_autotune_gemm_backends": "CUTLASS"}, []),
        ({"max_autotune": True, "max_autotune_gemm_backends": "ATEN,CUTLASS"}, ["cuda"]),
        ({"max_autotune_gemm": True, "max_autotune_gemm_backends": "ck"}, ["rocm"]),
    ],
)  # fmt: skip
def test_compilers_are_asked_for_only_where_they_may_be_used(options: dict[str, Any], kinds: list[str]) -> None:
    with inductor_config.patch(options):
        assert source_compilers.in_use() == kinds


def test_the_compiler_is_in_a_graphs_key(nvcc: Compiler, tmp_path: Path) -> None:
    options = {**cuda_options(nvcc), "max_autotune": True, "max_autotune_gemm_backends": "CUTLASS"}
    assert source_toolchain.SOURCES not in source_toolchain.key_facts()
    with inductor_config.patch(options):
        first = source_toolchain.key_facts()[source_toolchain.SOURCES]["cuda"]
        assert "recorded 1.0" in first["compiler"]
        Compiler(nvcc.path, tmp_path / "nvcc.log", version="1.1", behind=NVCC)
        second = source_toolchain.key_facts()[source_toolchain.SOURCES]["cuda"]
        assert first["compiler"] != second["compiler"] and first["files"] != second["files"]
        nvcc.path.unlink()
        with inductor_config.patch({"cuda.cuda_cxx": None}), pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", str(tmp_path))
            assert source_compilers.compiler("cuda") is None


def test_directories_of_the_environment_count_by_content(
    nvcc: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For compilers that are not asked which headers they read."""
    directory = tmp_path / "headers"
    directory.mkdir()
    monkeypatch.setenv("CPATH", f".:{directory}")
    monkeypatch.setenv("HALIDE_INCLUDE", str(directory))
    options = {
        **cuda_options(nvcc),
        "max_autotune": True,
        "max_autotune_gemm_backends": "CUTLASS",
        "cpu_backend": "halide",
    }
    found = []
    with inductor_config.patch(options):
        for text in ("one", "two", "one"):
            (directory / "mine.h").write_text(text)
            source_toolchain._tree.cache_clear()
            found.append(source_toolchain.key_facts()[source_toolchain.SOURCES])
    assert found[0] == found[2]
    assert all(found[0][kind] != found[1][kind] for kind in ("cuda", "halide"))


GENERATED = """
from torch._inductor.async_compile import AsyncCompile
async_compile = AsyncCompile()
doubling = async_compile.cuda(r'''int f();''', 'so', aot_compile=False)
async_compile.wait(globals())
del async_compile
def call(args):
    doubling.f(1)
"""


def call_of(text: str) -> ast.Call:
    expression = ast.parse(text, mode="eval").body
    assert isinstance(expression, ast.Call)
    return expression


def test_a_library_takes_the_place_of_its_source() -> None:
    digest = source_kernels.generated_digest(call_of("async_compile.cuda(r'''int f();''', 'so', aot_compile=False)"))
    assert digest is not None
    linked = wrapper_linking.link(GENERATED, "<w>", {}, built={digest: "t0"})
    assert linked.built == 1 and not linked.unlinked
    assert b"int f" not in linked.code
    other = wrapper_linking.link(GENERATED, "<w>", {}, built={digest[::-1]: "t0"})
    assert other.built == 0 and other.unlinked == ["async_compile.cuda"]


def test_objects_for_packages_are_left_to_torch() -> None:
    assert source_kernels.generated_digest(call_of("async_compile.cuda('f', 'so', aot_compile=True)")) is None
    assert source_kernels.generated_digest(call_of("async_compile.rocm('f', 'exe')")) is None
    assert source_kernels.generated_digest(call_of("async_compile.triton('f', 'g')")) is None


def test_the_version_that_nvcc_reports_is_more_than_a_line() -> None:
    if NVCC is None:
        pytest.skip("no nvcc here")
    with inductor_config.patch({"cuda.cuda_cxx": NVCC}):
        found = source_toolchain.compiler_facts("cuda")
    said = subprocess.run([NVCC, "--version"], capture_output=True, text=True, check=True).stdout
    assert found["compiler"] == said.strip() and "release" in found["compiler"]
    assert len(found["files"].split()) > 1, "what nvcc runs counts, too"
