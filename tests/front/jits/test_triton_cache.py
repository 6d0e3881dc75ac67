"""Triton's cache in fxpool's store: kernels that one process compiles and others load. Triton's own compiler runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers import redis_server
from triton_place import path_with_triton

from fxpool.codecache.bundle.authentication import new_key
from fxpool.triton import cache_manager

CHILD = Path(__file__).with_name("triton_cache_child.py")
MANAGER = "fxpool.triton:CacheManager"
PTXAS = """#!{python}
import os, sys, time
real = {real!r}
if "--version" not in sys.argv:
    with open({log!r}, "a") as file:
        file.write("assembled\\n")
    time.sleep(float(os.environ.get("PTXAS_SECONDS", "0")))
    if os.environ.get("PTXAS_FAILS"):
        sys.exit("ptxas fatal: as the test wants")
os.execv(real, [real, *sys.argv[1:]])
"""


class Triton:
    """Starts processes that compile a kernel, and counts how often a kernel was assembled."""

    def __init__(self, root: Path) -> None:
        path = path_with_triton()
        found = subprocess.run(
            [sys.executable, "-c", "import triton.backends.nvidia as n; print(*n.__path__)"],
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        self.root, self.log = root, root / "assembled"
        script = root / "ptxas"
        real = os.path.join(found.stdout.strip(), "bin", "ptxas")
        script.write_text(PTXAS.format(python=sys.executable, real=real, log=str(self.log)))
        script.chmod(0o755)
        self.environment = {
            **os.environ,
            "PYTHONPATH": path,
            "TRITON_PTXAS_PATH": str(script),
            "TRITON_CACHE_MANAGER": MANAGER,
            "TRITON_CACHE_DIR": str(root / "triton"),
        }

    def start(self, directory: str, **more: str | None) -> subprocess.Popen[str]:
        changed = {**self.environment, "TRITON_CACHE_DIR": str(self.root / directory), **more}
        environment = {name: value for name, value in changed.items() if value is not None}
        return subprocess.Popen(
            [sys.executable, str(CHILD)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    @property
    def assembled(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def run(self, directory: str, **more: str | None) -> dict[str, Any]:
        return report(self.start(directory, **more))


def report(process: subprocess.Popen[str]) -> dict[str, Any]:
    output, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[Triton]:
    yield Triton(tmp_path)


def test_the_second_process_compiles_nothing(triton: Triton) -> None:
    first = triton.run("a")
    assert triton.assembled == 1 and first["once"]["builds"] == 1 and not first["torch"]
    second = triton.run("b")  # another directory: all that it knows comes from the store
    assert triton.assembled == 1 and (second["once"]["hits"], second["once"]["builds"]) == (1, 0)
    assert {**second, "once": 0} == {**first, "once": 0} and first["binary"].startswith(b"\x7fELF".hex())
    third = triton.run("b")  # Triton's own directory has it
    assert third["once"]["hits"] == 0 and third["binary"] == first["binary"]
    (name,) = os.listdir(triton.root / "b")
    assert sorted(os.listdir(triton.root / "b" / name)) == sorted(os.listdir(triton.root / "a" / name))
    assert {"add.cubin", "add.json", "__grp__add.json", "add.ptx"} <= set(os.listdir(triton.root / "b" / name))


@pytest.mark.slow
def test_it_is_the_kernel_that_triton_compiles_itself(triton: Triton) -> None:
    ours = triton.run("a")
    stock = triton.run("stock", TRITON_CACHE_MANAGER=None)
    assert stock["binary"] == ours["binary"] and triton.assembled == 2


@pytest.mark.slow
def test_processes_that_start_together_compile_once(triton: Triton) -> None:
    processes = [triton.start(f"d{number}", PTXAS_SECONDS="3") for number in range(4)]
    reports = [report(process) for process in processes]
    assert triton.assembled == 1 and len({one["binary"] for one in reports}) == 1
    assert sum(one["once"]["builds"] for one in reports) == 1
    assert sum(one["once"]["hits"] for one in reports) == 3


@pytest.mark.slow
def test_another_process_takes_a_killed_compile_over(triton: Triton) -> None:
    first = triton.start("a", PTXAS_SECONDS="5")
    end = time.monotonic() + 60
    while not triton.assembled:
        assert time.monotonic() < end
        time.sleep(0.02)
    second = triton.start("b")
    first.kill()
    first.communicate()
    assert report(second)["once"]["builds"] == 1 and triton.assembled == 2


@pytest.mark.slow
def test_a_failed_compile_is_tried_by_the_next(triton: Triton) -> None:
    failed = triton.start("a", PTXAS_FAILS="1")
    _, errors = failed.communicate(timeout=100)
    assert failed.returncode and "PTXASError" in errors
    assert triton.run("a")["once"]["builds"] == 1 and triton.run("b")["once"]["hits"] == 1
    assert triton.assembled == 2


@pytest.mark.slow
def test_a_damaged_kernel_is_compiled_again(triton: Triton, tmp_path: Path) -> None:
    first = triton.run("a")
    (blob,) = [path for path in (tmp_path / "c" / "blobs").rglob("*") if path.is_file()]
    content = blob.read_bytes()
    blob.write_bytes(content[:-100] + bytes(100))
    second = triton.run("b")
    assert second["once"]["damaged"] == 1 and second["once"]["builds"] == 1 and second["binary"] == first["binary"]
    assert triton.run("d")["once"]["hits"] == 1 and triton.assembled == 2


@pytest.mark.slow
def test_without_a_cache_triton_compiles_as_ever(triton: Triton, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for setting in ({"FXPOOL_CACHE_DIR": str(tmp_path / "file" / "c")}, {"FXPOOL_CACHE_MAX_BYTES": "nonsense"}):
        result = triton.start(f"d{len(setting)}{triton.assembled}", **setting)
        output, errors = result.communicate(timeout=100)
        if "nonsense" in setting.values():
            assert "fxpool: Triton compiles without fxpool's store" in errors
            assert "ConfigurationError" in errors  # of the child's own `fxpool.stats()`
        else:
            assert result.returncode == 0 and errors.count("fxpool: ") == 1, errors
            assert json.loads(output)["binary"]
    assert triton.assembled == 2


@pytest.mark.slow
def test_machines_share_kernels(triton: Triton, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    key = tmp_path / "key"
    key.write_text(new_key())
    key.chmod(0o600)
    with redis_server(tmp_path_factory.mktemp("redis")) as address:
        remote = {"FXPOOL_REMOTE_CACHE": address, "FXPOOL_REMOTE_KEY_FILE": str(key), "FXPOOL_REMOTE_TIMEOUT": "10"}
        one, two = ({**remote, "FXPOOL_CACHE_DIR": str(tmp_path / name)} for name in ("one", "two"))
        processes = [triton.start("a", PTXAS_SECONDS="2", **one), triton.start("b", PTXAS_SECONDS="2", **two)]
        reports = [report(process) for process in processes]
    assert triton.assembled == 1
    assert sorted(report["once"]["remote_hits"] for report in reports) == [0, 1]


def test_the_import_is_cheap_and_imports_neither_triton_nor_torch() -> None:
    code = "import sys, fxpool.triton; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not modules & {"triton", "torch", "numpy", "msgspec", "fxpool.config", "fxpool.jits"}


def test_within_fxpool_s_compiles_the_manager_only_keeps_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/fxpool-tmp-scratch-abc/triton")
    assert cache_manager._in_scratch()
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/inductor/triton")
    assert not cache_manager._in_scratch()


HELPER = """
import json, os
import fxpool
from triton.runtime.build import compile_module_from_src
source = '''
#include <Python.h>
static PyObject* answer(PyObject* self, PyObject* args) { return PyLong_FromLong(42); }
static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "helper", NULL, -1, methods};
PyMODINIT_FUNC PyInit_helper(void) { return PyModule_Create(&definition); }
'''
module = compile_module_from_src(source, "helper")
print(json.dumps([module.answer(), fxpool.stats()["once"]["builds"], fxpool.stats()["once"]["hits"]]))
"""


@pytest.mark.slow
def test_helpers_that_triton_builds_are_entries(triton: Triton) -> None:
    """Triton builds its driver and launchers with the C compiler, and asks for them by file, not as a kernel."""
    script = triton.root / "cc"
    log = triton.root / "built"
    script.write_text(f'#!/bin/sh\necho built >> {log}\nexec gcc "$@"\n')
    script.chmod(0o755)
    results: list[Any] = []
    for directory in ("a", "b", "b"):
        environment = {**triton.environment, "CC": str(script), "TRITON_CACHE_DIR": str(triton.root / directory)}
        process = subprocess.Popen(
            [sys.executable, "-c", HELPER], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        results.append(report(process))
    assert results == [[42, 1, 0], [42, 0, 1], [42, 0, 0]]
    assert log.read_text().count("built") == 1


@pytest.mark.slow
def test_inductor_s_kernels_are_compiled_and_bundled_as_without_the_manager(triton: Triton) -> None:
    """By `compile_for_triton`, which has Inductor's bundler collect the files that Triton has written."""
    child = Path(__file__).parents[2] / "torch_compat" / "triton_kernels" / "compat_triton_child.py"
    lowering = Path(__file__).parents[2] / "lowering"
    reports = []
    for name, manager in (("stock", None), ("first", MANAGER), ("second", MANAGER)):
        changed = {
            **triton.environment,
            "PYTHONPATH": os.pathsep.join((triton.environment["PYTHONPATH"], str(lowering))),
            "TRITON_CACHE_DIR": str(triton.root / name),
            "TRITON_CACHE_MANAGER": manager,
            "TORCHINDUCTOR_CACHE_DIR": str(triton.root / f"inductor-{name}"),
            "CUDA_VISIBLE_DEVICES": "",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCH_WARM_POOL": "0",
        }
        environment = {name: value for name, value in changed.items() if value is not None}
        process = subprocess.Popen(
            [sys.executable, str(child), "[]"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        reports.append((report(process)["compiled"], triton.assembled))
    (stock, assembled), (first, after_first), (second, after_second) = reports
    sizes = [compiled.pop("files") for compiled in (stock, first, second)]
    assert min(sizes) > 1000 and max(sizes) - min(sizes) < 1000, "paths in them have different lengths"
    assert stock == first == second and assembled > 0
    assert after_first == 2 * assembled and after_second == after_first, "the second loads all from the store"
