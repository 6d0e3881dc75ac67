"""Directories on file systems mounted noexec: what lies there is loaded all the same, and compiled once."""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from processes import run_python

from fxpool.errors import NotExecutableError
from fxpool.lowering.cpp import library as libraries
from fxpool.lowering.cpp.library import Library
from fxpool.lowering.cpp.unit_source import MODULE

PROGRAM = """
import json, torch, fxpool

first, second = (torch.compile(function, backend="fxpool") for function in (lambda x: (x + 1) * 3, lambda x: x * 5 - 2))
assert first(torch.ones(2)).tolist() == [6.0] * 2 and second(torch.ones(2)).tolist() == [3.0] * 2
stats = fxpool.stats()
print(json.dumps({name: stats[name] for name in ("hits", "compiles", "fallbacks", "bypasses", "corrupt_entries")}))
"""


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "n"
    place.mkdir()
    options = "noexec,size=400m,mode=700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "variables",
    [pytest.param(("FXPOOL_CACHE_DIR",), marks=pytest.mark.slow), ("FXPOOL_CACHE_DIR", "FXPOOL_RUNTIME_DIR", "TMPDIR")],
)
def test_graphs_are_compiled_once_and_found(variables: tuple[str, ...], noexec: Path) -> None:
    places = {}
    for number, name in enumerate(variables):
        place = noexec / "crt"[number]
        place.mkdir(mode=0o700)
        places[name] = str(place)
    for hits in (0, 2):
        report: dict[str, Any] = json.loads(run_python(["-c", PROGRAM], **places).splitlines()[-1])
        assert report == {
            "hits": hits,
            "compiles": {"worker": 2 - hits, "in_process": 0},
            "fallbacks": {},
            "bypasses": {},
            "corrupt_entries": 0,
        }
    if "FXPOOL_RUNTIME_DIR" in places:
        run_python(["-m", "fxpool", "stop"], **places)


def library(path: Path, number: int) -> Path:
    source = f"""
        #include <Python.h>
        static PyObject* number(PyObject* self, PyObject* none) {{ return PyLong_FromLong({number}); }}
        static PyObject* bind(PyObject* self, PyObject* address) {{ Py_RETURN_NONE; }}
        static PyMethodDef methods[] = {{
            {{"number", number, METH_NOARGS, ""}}, {{"bind", bind, METH_O, ""}}, {{NULL}}
        }};
        static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{MODULE}", "", -1, methods}};
        PyMODINIT_FUNC PyInit_{MODULE}() {{ return PyModule_Create(&module); }}
    """
    include = f"-I{sysconfig.get_paths()['include']}"
    command = ["g++", "-shared", "-fPIC", "-fpermissive", "-w", "-xc++", "-", include, "-o", str(path)]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def loaded(path: Path) -> Any:
    @contextmanager
    def opened() -> Iterator[int]:
        with open(path, "rb") as file:
            yield file.fileno()

    return Library(hashlib.sha256(path.read_bytes()).hexdigest(), opened).load()


def test_each_library_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy's descriptor is the next one's, too, and the loader goes by names."""
    paths = [library(tmp_path / f"{number}.so", number) for number in range(3)]
    monkeypatch.setattr(libraries, "is_forbidden", lambda path: True)
    assert [loaded(path).number() for path in paths] == [0, 1, 2]
    before = len(os.listdir("/proc/self/fd"))
    with libraries.loadable_file(str(paths[0])) as place:
        ctypes.CDLL(place)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_library_is_loaded_through_its_descriptor(tmp_path: Path) -> None:
    """Another file of the same name, put there after it was opened, is not run."""
    first, second = (library(tmp_path / f"{number}.so", number) for number in (1, 2))

    @contextmanager
    def exchanged() -> Iterator[int]:
        with open(first, "rb") as file:
            os.rename(second, first)
            yield file.fileno()

    assert Library(hashlib.sha256(first.read_bytes()).hexdigest(), exchanged).load().number() == 1


def test_where_memory_may_not_be_executed_either_the_remedy_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> int:
        raise PermissionError("sysctl vm.memfd_noexec")

    path = tmp_path / "library.so"
    path.write_bytes(b"no library at all")
    monkeypatch.setattr(libraries, "is_forbidden", lambda path: True)
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(NotExecutableError, match="noexec") as caught:
        loaded(path)
    assert "FXPOOL_CACHE_DIR" in caught.value.remedy
