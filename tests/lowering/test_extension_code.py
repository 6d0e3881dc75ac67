"""Operators of compiled extensions: a library built anew is another, however it came into the process."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch
from programs import Programs

SOURCE = """
#include <Python.h>
#include <torch/library.h>
#include <ATen/ops/mul.h>
static at::Tensor scaled(const at::Tensor& x) { return at::mul(x, FACTOR); }
TORCH_LIBRARY(extension_of_a_test, m) {
  m.def("scaled(Tensor x) -> Tensor");
  m.impl("scaled", c10::DispatchKey::CompositeImplicitAutograd, scaled);
#ifdef DEFINED_IN_PYTHON
  m.impl("defined_in_python", c10::DispatchKey::CompositeImplicitAutograd, scaled);
#endif
}
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "built", nullptr, -1, nullptr};
PyMODINIT_FUNC PyInit_built() { return PyModule_Create(&definition); }
"""
PROGRAM = """
import torch, math
{loading}
function = lambda x: torch.ops.extension_of_a_test.{operator}(x) + 1
inputs = [torch.linspace(-1, 1, 8)]
"""
# A worker finds this module by the schema, and has the operator with it. torch's own compile fails if an operator has a
# formula and no schema, so the other programs have an extension without the formula.
SCHEMA = """
import torch, built
library = torch.library.Library("extension_of_a_test", "FRAGMENT")
library.define("defined_in_python(Tensor x) -> Tensor")
"""
LOADING = {
    "import of an extension module": "import built",
    "load_library": "torch.ops.load_library({path!r})",
    "a library beside an unrelated load_library": "import built\ntorch.ops.load_library({other!r})",
    "a schema of a Python module's": "import schema_of_a_test",
    "such a schema beside an unrelated load_library": "import schema_of_a_test\ntorch.ops.load_library({other!r})",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, bool], Path]:
    """The extension with each of two factors, with and without a formula for an operator that Python defines."""
    directory = tmp_path_factory.mktemp("extension")
    (directory / "built.cpp").write_text(SOURCE)
    root = Path(torch.__file__).parent
    found: dict[tuple[int, bool], Path] = {}
    running = []
    for factor, in_python in itertools.product((2, 5), (False, True)):
        found[factor, in_python] = directory / f"built-{factor}-{in_python}.so"
        command = [
            "g++", "-shared", "-fPIC", "-O0", "-std=c++20", f"-DFACTOR={factor}", "-DTORCH_EXTENSION_NAME=built",
            *(["-DDEFINED_IN_PYTHON"] if in_python else []),
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
            f"-I{root}/include", f"-I{root}/include/torch/csrc/api/include", f"-I{sysconfig.get_paths()['include']}",
            str(directory / "built.cpp"), "-o", str(found[factor, in_python]), f"-L{root}/lib", "-ltorch_cpu", "-lc10",
        ]  # fmt: skip
        running.append(subprocess.Popen(command, stderr=subprocess.PIPE))
    for process in running:
        _, errors = process.communicate(timeout=280)
        assert process.returncode == 0, errors.decode()[-3000:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADING)
def test_an_extension_built_anew(
    name: str, built: dict[tuple[int, bool], Path], programs: Programs, tmp_path: Path
) -> None:
    library, other = tmp_path / "p" / "built.so", tmp_path / "libother.so"
    subprocess.run(["g++", "-shared", "-x", "c++", "/dev/null", "-o", str(other)], check=True)
    (tmp_path / "p" / "schema_of_a_test.py").write_text(SCHEMA)
    operator = "defined_in_python" if "schema" in name else "scaled"
    program = PROGRAM.format(loading=LOADING[name].format(path=str(library), other=str(other)), operator=operator)
    for factor in (2, 5, 5):
        library.unlink(missing_ok=True)
        shutil.copy(built[factor, "schema" in name], library)
        report = programs.run(program)
        assert report["lowerings"] == 0, report["stats"]
    assert report["stats"]["hits"] == 1


@pytest.mark.slow
def test_a_library_replaced_while_it_is_in_use_proves_nothing(
    built: dict[tuple[int, bool], Path], programs: Programs, tmp_path: Path
) -> None:
    library = tmp_path / "p" / "built.so"
    shutil.copy(built[2, True], library)
    (tmp_path / "p" / "schema_of_a_test.py").write_text(SCHEMA)
    replacing = (
        f"import os, shutil\nos.unlink({str(library)!r})\nshutil.copy({str(built[5, True])!r}, {str(library)!r})\n"
    )
    report = programs.run(PROGRAM.format(loading="import schema_of_a_test\n" + replacing, operator="scaled"))
    assert report["stats"]["fallbacks"] == {"code_unknown": 1}
    assert report["lowerings"] == 0, "what AOTAutograd makes of it here has no operator of the library's any more"
