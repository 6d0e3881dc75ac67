"""Directories whose names a shell, make or a format would take for something else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from processes import run_python

from fxpool.codecache.key import headers
from fxpool.lowering.cpp import kernels, precompiled_header
from fxpool.pool.host import runtime_dir
from fxpool.torch_compat.cpp import compile_commands, instruction_sets

ODD = "a b 'c\" %d é:$HOME #x;"
PROGRAM = """
import json, torch, fxpool
torch.manual_seed(0)
x = torch.randn(8, 8)
function = lambda x: torch.nn.functional.gelu(x @ x).softmax(-1)
compiled = torch.compile(function, backend="fxpool", options={"strict": True})
assert torch.allclose(compiled(x), function(x), atol=1e-5)
stats = fxpool.stats()
print(json.dumps({name: stats[name] for name in ("hits", "compiles", "fallbacks", "bypasses", "switched_off")}))
"""


@pytest.fixture
def toolchain_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place for the header of a test's own, as Inductor's takes 8 s to compile; its files have odd names, too."""
    include = tmp_path / ODD.replace(":", " ")  # of CPATH, which has no quoting
    include.mkdir()
    (include / "mi ne.h").write_text("#include <Python.h>\ninline int seven() { return 7; }\n")
    monkeypatch.setenv("CPATH", str(include))
    monkeypatch.setattr(compile_commands, "HEADER", "#include <mi ne.h>")
    (tmp_path / ODD).mkdir()
    return tmp_path / ODD


def test_kernels_are_compiled_with_a_header_and_linked(toolchain_dir: Path) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        command = precompiled_header.command(str(toolchain_dir))
    (header,) = (toolchain_dir / "headers").glob("*.gch")
    source = toolchain_dir / "kernel.cpp"
    source.write_text('extern "C" int eight() { return seven() + 1; }\n')
    arguments, made = command.compile(str(source), "kernel")
    said = subprocess.run([*arguments, "-H"], check=True, capture_output=True, text=True).stderr
    assert f"! {header}" in said
    assert made == str(toolchain_dir / "kernel.o") and os.path.exists(made)
    arguments, made = command.link([made], str(toolchain_dir / "library"))
    subprocess.run(arguments, check=True, capture_output=True)
    assert made == str(toolchain_dir / "library.so") and os.path.exists(made)


def test_a_unit_is_compiled_and_linked_where_temporary_files_go(
    toolchain_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(toolchain_dir))
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        submit, end = kernels.in_threads(1)
        linking = kernels.Linking(submit, units=lambda: 1, toolchain_dir=None, patient=True)
        kernel = compile_commands.CollectedKernel(["int*"], 'extern "C" void kernel(int* out) { *out = seven(); }')
        linking.take([kernel], True)
        library = linking.library()
        end()
    assert library is not None and library.startswith(b"\x7fELF")


def test_the_record_of_a_header_names_the_files_that_were_read(toolchain_dir: Path, tmp_path: Path) -> None:
    with instruction_sets.instruction_sets_known(instruction_sets.candidates()):
        precompiled_header.command(str(toolchain_dir))
    (record,) = (toolchain_dir / "headers").glob("*.json")
    assert str(tmp_path / ODD.replace(":", " ") / "mi ne.h") in json.loads(record.read_bytes())


@pytest.mark.parametrize("name", ["plain", "a b", "#a", "a$b", "a'b", 'a"b', "a\\b", "a\\ b", "é", "a%b"])
def test_what_a_compiler_says_it_read_is_understood(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.h").touch()
    rule = ["-MD", "-MF", "rule", "-MT", "header", "-fsyntax-only"]
    subprocess.run(["g++", "-include", f"{name}.h", "-xc++", "/dev/null", *rule], check=True, cwd=tmp_path)
    found = headers.prerequisites((tmp_path / "rule").read_text())
    assert found[-1] == f"{name}.h"


@pytest.mark.slow
def test_a_graph_is_compiled_by_a_worker_and_found_by_the_next_process(tmp_path: Path) -> None:
    places = {}
    for variable, name in (("FXPOOL_RUNTIME_DIR", "a 'b\"%é:"), ("FXPOOL_CACHE_DIR", ODD), ("TMPDIR", f"{ODD}t")):
        place = tmp_path / name
        place.mkdir(mode=0o700)
        places[variable] = str(place)
    places["HOME"] = places["TMPDIR"]
    runtime = Path(places["FXPOOL_RUNTIME_DIR"])
    assert runtime_dir.runtime_root(str(runtime)) == runtime, "short enough to be used itself"
    reports = [json.loads(run_python(["-c", PROGRAM], **places).splitlines()[-1]) for _ in range(2)]
    run_python(["-m", "fxpool", "stop"], **places)  # it would stay until its header is compiled
    assert [one["compiles"]["worker"] for one in reports] == [1, 0]
    assert [one["hits"] for one in reports] == [0, 1]
    for one in reports:
        assert (one["fallbacks"], one["bypasses"], one["switched_off"]) == ({}, {}, {})


NO_TEXT = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import os, sys, json, torch, fxpool
    os.chdir(os.environ.pop("WORKING"))
    sys.path.insert(0, os.getcwd())
    compiled = torch.compile(lambda x: x.sin() + 1, backend="fxpool", options={"strict": True})
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
ours = [str(one.message) for one in caught if "fxpool" in str(one.message)]
stats = fxpool.stats()
print(json.dumps([ours, stats["compiles"], stats["switched_off"], stats["fallbacks"]]))
"""


@pytest.mark.slow
def test_names_that_are_no_text_keep_nobody_from_compiling(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    places = {}
    for variable in ("FXPOOL_RUNTIME_DIR", "FXPOOL_CACHE_DIR", "TMPDIR", "HOME", "WORKING"):
        place = os.path.join(tmp_path, os.fsdecode(variable.encode() + b"\xff"))
        os.mkdir(place, 0o700)
        places[variable] = place
    stand_in = runtime_dir.runtime_root(places["FXPOOL_RUNTIME_DIR"])
    request.addfinalizer(lambda: shutil.rmtree(stand_in))
    warned, compiles, off, fallbacks = json.loads(run_python(["-c", NO_TEXT], **places).splitlines()[-1])
    run_python(["-m", "fxpool", "stop"], **places)
    (about_the_cache,) = warned
    assert "is not UTF-8" in about_the_cache and "FXPOOL_CACHE_DIR" in about_the_cache
    assert set(off) == {"cache_directory_refused"}
    assert (compiles, fallbacks) == ({"worker": 1, "in_process": 0}, {})


PLAIN = """
import json, torch, fxpool
compiled = torch.compile(lambda x: x.relu() + 1, backend="fxpool", options={"strict": True})
assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
stats = fxpool.stats()
print(json.dumps([stats["compiles"], stats["switched_off"], stats["fallbacks"]]))
"""


@pytest.mark.slow
def test_a_working_directory_that_is_gone_keeps_nobody_from_compiling(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    # After what torch itself needs a directory for: MKL, and Dynamo's configuration.
    program = f"import os, torch._inductor; os.chdir({str(gone)!r}); os.rmdir({str(gone)!r})\n{PLAIN}"
    compiles, off, fallbacks = json.loads(run_python(["-c", program]).splitlines()[-1])
    assert (compiles, off, fallbacks) == ({"worker": 1, "in_process": 0}, {}, {})
