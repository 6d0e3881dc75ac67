"""The pytest plugin: real runs of pytest, with and without several processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from tiers import first_tier

from fxpool.bench import pytest_plugin
from fxpool.pool.host import processes

_COMPILES = """
import pytest, torch

def test_compiles():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 3 + 1, backend="fxpool")
    assert compiled(torch.ones(4))[0] == 4

def test_is_served():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x * 3 + 1, backend="fxpool")
    assert compiled(torch.ones(4))[0] == 4
"""
# One test measures and looks at whether the others count; they count in other processes.
_MEASURES = """
import pathlib, time, pytest

COUNT = pathlib.Path(__file__).with_name("count")

@pytest.mark.parametrize("number", range(3))
def test_counts(number):
    end = time.monotonic() + 8
    while time.monotonic() < end and not COUNT.with_name("done").exists():
        with open(COUNT, "a") as file:
            file.write("x")
        time.sleep(0.005)

@pytest.fixture
def others(request):
    end = time.monotonic() + 20
    while not COUNT.exists() and time.monotonic() < end and hasattr(request.config, "workerinput"):
        time.sleep(0.01)

@pytest.mark.fxpool_measure
def test_alone(others):
    time.sleep(0.2)
    before = COUNT.stat().st_size if COUNT.exists() else 0
    time.sleep(1.0)
    after = COUNT.stat().st_size if COUNT.exists() else 0
    COUNT.with_name("done").touch()
    assert after == before

def test_later():
    deadline = time.monotonic() + 20
    while not COUNT.with_name("done").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
"""
_STAYS = """
import pathlib, time, pytest

@pytest.mark.fxpool_measure
def test_alone():
    pathlib.Path(__file__).with_name("begun").touch()
    time.sleep(60)

def test_other():
    time.sleep(60)
"""

# An environment that was installed before there was the entry point.
_PLUGIN = [] if metadata.entry_points(group="pytest11", name="fxpool") else ["-p", "fxpool.bench.pytest_plugin"]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "tests").mkdir()
    yield tmp_path
    end = time.monotonic() + 20
    while (left := _left(tmp_path)) and time.monotonic() < end:
        time.sleep(0.1)
    for process in left:
        process.kill()
    assert not left


def _left(project: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FXPOOL_RUNTIME_DIR") == str(project / "run"):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def begin(project: Path, content: str, *arguments: str) -> subprocess.Popen[str]:
    (project / "tests" / "test_it.py").write_text(content)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "FXPOOL_"))}
    environment |= {"FXPOOL_RUNTIME_DIR": str(project / "run"), "FXPOOL_IDLE_TIMEOUT": "1", "FXPOOL_CONFIG": os.devnull}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *_PLUGIN, *arguments, "tests"]
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def run(project: Path, content: str, *arguments: str) -> str:
    process = begin(project, content, *arguments)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    return output


@pytest.mark.slow
@pytest.mark.parametrize("processes", first_tier(["0", "2"], "0"))
def test_a_line_says_what_was_done(project: Path, processes: str) -> None:
    output = run(project, _COMPILES, "-n", processes, "--fxpool-cache", str(project / "cache"))
    found = re.search(r"fxpool: (\d+) graph compiled, (\d+) joined, (\d+) served from the cache, ([\d.]+) s", output)
    assert found is not None, output
    compiled, joined, served = map(int, found.groups()[:3])
    assert compiled == 1 and joined + served == 1
    assert (project / "cache").is_dir()


def test_nothing_is_said_where_nothing_was_done(project: Path) -> None:
    output = run(project, "def test_nothing():\n    pass\n")
    assert "fxpool" not in output


def test_nothing_is_imported_for_tests_that_do_not_measure(project: Path) -> None:
    (project / "tests" / "conftest.py").write_text(
        "import sys\ndef pytest_sessionfinish(session):\n    assert 'fxpool.pool' not in sys.modules\n"
    )
    assert "1 passed" in run(project, "def test_nothing():\n    pass\n", "-n", "2")


def test_the_variable_of_marks_is_that_of_the_pool() -> None:
    assert pytest_plugin._MARK == processes.MARK


@pytest.mark.slow
def test_one_that_measures_runs_alone(project: Path) -> None:
    output = run(project, _MEASURES, "-n", "4", "--dist", "load")
    assert "5 passed" in output


@pytest.mark.slow
def test_without_several_processes_it_just_runs(project: Path) -> None:
    output = run(project, _MEASURES, "-k", "alone")
    assert "1 passed" in output


@pytest.mark.slow
def test_a_controller_that_is_killed_leaves_nothing_stopped(project: Path) -> None:
    process = begin(project, _STAYS, "-n", "2")
    begun = project / "tests" / "begun"
    end = time.monotonic() + 60
    while not begun.exists() and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(0.5)
    assert psutil.STATUS_STOPPED in {one.status() for one in _left(project)}
    process.send_signal(signal.SIGKILL)
    process.communicate()
    end = time.monotonic() + 20
    while _left(project) and time.monotonic() < end:
        time.sleep(0.1)
    assert not _left(project)


def test_it_imports_nothing_before_it_is_needed(project: Path) -> None:
    output = run(
        project,
        """
import sys

def test_modules():
    packages = ("fxpool", "torch", "click", "msgspec", "psutil", "rich")
    names = sorted(name for name in sys.modules if name.partition(".")[0] in packages)
    assert names == ["fxpool", "fxpool.bench", "fxpool.bench.pytest_plugin"]
""",
    )
    assert "1 passed" in output


def test_the_marker_is_known(project: Path) -> None:
    process = begin(project, "", "--markers")
    output, _ = process.communicate(timeout=60)
    assert "@pytest.mark.fxpool_measure(device=None)" in output
