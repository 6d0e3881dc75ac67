"""Other JITs through `fxpool.once`: torch's C++ extensions, Numba's cache, a plain C++ build. Their compilers run."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

GXX = """#!{python}
import os, sys
if any(word.endswith((".cpp", ".o")) for word in sys.argv[1:]):
    with open({log!r}, "a") as file:
        file.write("compiled\\n")
os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


@pytest.fixture
def compiler(tmp_path: Path) -> tuple[Path, Path]:
    """A g++ that writes a line to a file for each compile, and the file."""
    real = shutil.which("g++")
    if real is None:
        pytest.skip("no g++")
    script, log = tmp_path / "g++", tmp_path / "compiled"
    script.write_text(GXX.format(python=sys.executable, real=real, log=str(log)))
    script.chmod(0o755)
    return script, log


def _run(code: str, *arguments: str, **environment: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


PLAIN = """
import ctypes, json, os, subprocess, sys
import fxpool
source, compiler = 'extern "C" int twice(int x) { return 2 * x; }', os.environ["CXX"]
flags = ["-O2", "-shared", "-fPIC"]

def build(directory):
    with open(f"{directory}/twice.cpp", "w") as file:
        file.write(source)
    subprocess.run([compiler, *flags, f"{directory}/twice.cpp", "-o", f"{directory}/twice.so"], check=True)

path = fxpool.once(["twice", source, flags], build, version="g++ 12")
library = ctypes.CDLL(f"{path}/twice.so")
print(json.dumps([library.twice(21), path, fxpool.stats()["once"]["builds"]]))
"""


def test_a_plain_build(compiler: tuple[Path, Path], tmp_path: Path) -> None:
    script, log = compiler
    first, second = (_run(PLAIN, CXX=str(script)) for _ in range(2))
    assert (first[0], second[0]) == (42, 42) and (first[2], second[2]) == (1, 0)
    assert log.read_text().count("compiled") == 1
    library = ctypes.CDLL(os.path.join(second[1], "twice.so"))
    assert library.twice(4) == 8
    _run(PLAIN.replace("2 * x", "x + x"), CXX=str(script))
    assert log.read_text().count("compiled") == 2, "another source is another key"


EXTENSION = """
import json, os, sys
import fxpool
import torch
from torch.utils import cpp_extension
source, target = sys.argv[1], sys.argv[2]
key = ["thrice", open(source).read(), torch.__version__, sys.version_info[:2]]

def build(directory):
    cpp_extension.load("thrice", [source], build_directory=directory, is_python_module=False)

directory = fxpool.once(key, build, directory=target, in_place=True)
cpp_extension.load("thrice", [source], build_directory=directory, is_python_module=False)
result = torch.ops.fxpool_test.thrice(torch.ones(3))
print(json.dumps([result.tolist(), fxpool.stats()["once"]["builds"]]))
"""
EXTENSION_SOURCE = """
#include <torch/library.h>
#include <ATen/ATen.h>
at::Tensor thrice(const at::Tensor& x) { return x * 3; }
TORCH_LIBRARY(fxpool_test, m) { m.def("thrice(Tensor x) -> Tensor", &thrice); }
"""


@pytest.mark.slow
def test_an_extension_of_torch(compiler: tuple[Path, Path], tmp_path: Path) -> None:
    """`cpp_extension.load` calls ninja in each process; in a directory of fxpool's, ninja has nothing to do."""
    if shutil.which("ninja") is None:
        pytest.skip("no ninja, which torch.utils.cpp_extension needs")
    script, log = compiler
    source = tmp_path / "thrice.cpp"
    source.write_text(EXTENSION_SOURCE)
    first = _run(EXTENSION, str(source), str(tmp_path / "t1"), CXX=str(script))
    compiled = log.read_text().count("compiled")
    assert first == [[3.0] * 3, 1] and compiled >= 1
    # A process that has the directory, and one of another directory, filled from the store.
    for target in ("t1", "t2"):
        assert _run(EXTENSION, str(source), str(tmp_path / target), CXX=str(script)) == [[3.0] * 3, 0]
    assert log.read_text().count("compiled") == compiled


NUMBA = """
import json, os, sys
import fxpool
module, target = sys.argv[1], sys.argv[2]
sys.path.insert(0, os.path.dirname(module))
key = ["kernels", open(module).read(), os.stat(module).st_mtime_ns, module]

def build(directory):
    import subprocess
    code = "import kernels; kernels.total(10)"
    environment = {**os.environ, "NUMBA_CACHE_DIR": directory, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)

os.environ["NUMBA_CACHE_DIR"] = fxpool.once(key, build, directory=target)
import kernels
result = kernels.total(10)
stats = kernels.total.stats
counts = [sum(stats.cache_hits.values()), sum(stats.cache_misses.values())]
print(json.dumps([result, *counts, fxpool.stats()["once"]["builds"]]))
"""
KERNELS = """
import numba

@numba.njit(cache=True)
def total(n):
    result = 0
    for i in range(n):
        result += i * i
    return result
"""


@pytest.mark.slow
def test_numba_s_cache(tmp_path: Path) -> None:
    pytest.importorskip("numba")
    module = tmp_path / "m" / "kernels.py"
    module.parent.mkdir()
    module.write_text(KERNELS)
    assert _run(NUMBA, str(module), str(tmp_path / "t1")) == [285, 1, 0, 1]
    for target in ("t1", "t2"):
        assert _run(NUMBA, str(module), str(tmp_path / target)) == [285, 1, 0, 0], "Numba compiles nothing"
