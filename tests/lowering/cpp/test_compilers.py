"""Compilers that are not the one that the zygote warmed up with: kinds, names and places, by turns on one server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import HERE, run_python
from test_compiler_wrappers import script
from tiers import first_tier

from fxpool.torch_compat.cpp import cpp_toolchain

pytestmark = [pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here"), pytest.mark.timeout(600)]

# g++ for those who ask for clang: it refuses, and understands, what clang does of Inductor's flags.
PRESENTS_ITSELF_AS_CLANG = """
for word in "$@"; do
  shift
  case "$word" in
    -fexcess-precision=*|-fno-tree-loop-vectorize) echo "clang: error: $word is not supported" >&2; exit 1;;
    --version) echo "clang version 99.0.0"; exit;;
    -gline-tables-only|-Werror=ignored-optimization-argument) ;;
    *) set -- "$@" "$word";;
  esac
done
exec g++ "$@"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables with which programs come to one server, whose zygote has warmed up with g++."""
    place = tmp_path_factory.mktemp("g")
    for name in "rc":
        (place / name).mkdir(mode=0o700)
    variables = {"FXPOOL_RUNTIME_DIR": str(place / "r"), "FXPOOL_IDLE_TIMEOUT": "300"}
    variables["FXPOOL_CACHE_DIR"] = str(place / "c")
    run_python(["-c", "import torch, fxpool; torch.compile(lambda x: x + 1, backend='fxpool')(torch.ones(2))"],
               **variables)  # fmt: skip
    deadline = time.monotonic() + 240
    while not any("warm_up_training took" in log.read_text() for log in (place / "r").glob("*/server.log")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    yield variables
    run_python(["-m", "fxpool", "stop"], **variables)


def compiled(environment: dict[str, str]) -> dict[str, Any]:
    printed = run_python([str(HERE / "wrapper_child.py")], **environment)
    found: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return found


def clang(place: Path) -> str:
    """The real one, if it is one that Inductor can use."""
    (place / "openmp.cpp").write_text("#include <omp.h>\n")
    found = shutil.which("clang++")
    if (
        found is None
        or subprocess.run([found, "-fopenmp", "-fsyntax-only", place / "openmp.cpp"], check=False).returncode
    ):
        pytest.skip("no clang++ with OpenMP's header here")
    return found


def posing(place: Path) -> str:
    return str(script(place / "clang++", PRESENTS_ITSELF_AS_CLANG))


def with_a_space(place: Path) -> str:
    (place / "my tools").mkdir()
    (place / "my tools" / "g++").symlink_to(str(shutil.which("g++")))
    path = str(place / "my tools" / "g++")
    return shlex.quote(path) if cpp_toolchain.takes_arguments() else path


def with_an_argument(place: Path) -> str:
    if not cpp_toolchain.takes_arguments():
        pytest.skip("this torch takes a compiler's name for one program")
    behind = script(place / "g++", 'exec /usr/bin/env g++ "$@"')
    return f"env {behind}"


def behind_ccache(place: Path) -> str:
    ccache = shutil.which("ccache")
    if ccache is None:
        return str(script(place / "g++", 'shift 0; exec /usr/bin/env g++ "$@"'))  # a wrapper of that name, at least
    (place / "g++").symlink_to(ccache)
    return str(place / "g++")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    first_tier([clang, posing, with_a_space, with_an_argument, behind_ccache], clang, with_a_space, with_an_argument),
)
def test_a_worker_compiles_with_the_program_s_compiler(kind: Any, server: dict[str, str], tmp_path: Path) -> None:
    other = {**server, "CXX": kind(tmp_path), "CCACHE_DIR": str(tmp_path / "ccache")}
    report = compiled({**other, "FXPOOL_CACHE_DIR": str(tmp_path / "c"), "FXPOOL_STRICT": "1"})
    assert report["result"] == [6.0, 6.0]
    assert (report["misses"], report["hits"], report["fallbacks"]) == (1, 0, {})
    # The header is precompiled behind the program's back, and its compiler is this test's.
    while list((tmp_path / "c" / "toolchain" / "headers").glob("building-*")):
        time.sleep(0.1)


IN_WORKER, HERE_ONLY = "", "torch._inductor.config.post_grad_custom_post_pass = lambda graph: None\n"
NO_COMPILER = """
import os, torch, fxpool
import torch._inductor.config
{first}
try:
    torch.compile(lambda x: x.sin() + 1, backend="fxpool")(torch.ones(8))
except Exception as error:
    print(type(error.inner_exception).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("pool", first_tier(["host", "off"], "host"))
@pytest.mark.parametrize("first", [IN_WORKER, HERE_ONLY])
@pytest.mark.parametrize(
    ("way", "remedy"),
    [
        ({}, "apt-get install g++"),
        ({"CXX": "sh -c g++"}, "apt-get install g++" if cpp_toolchain.takes_arguments() else "a script"),
    ],
)
def test_without_a_compiler_the_remedy_is_said(
    pool: str, first: str, way: dict[str, str], remedy: str, server: dict[str, str], tmp_path: Path
) -> None:
    """There is none on the path, or CXX is none; for a server that has seen one."""
    (tmp_path / "bin").mkdir()
    environment = {**server, "FXPOOL_POOL": pool, **way}
    if " " not in way.get("CXX", ""):
        environment["PATH"] = str(tmp_path / "bin")
    environment["FXPOOL_CACHE_DIR"] = str(tmp_path / "c")
    printed = run_python(["-c", NO_COMPILER.format(first=first)], **environment)
    assert printed.startswith("NoCompilerError "), printed
    assert remedy in printed and "InvalidCxx" not in printed
    assert os.listdir(tmp_path / "bin") == []
