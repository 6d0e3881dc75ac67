"""Modules of fxpool in other processes: found wherever fxpool is, and nothing of the working directory is run."""

from __future__ import annotations

import os
import site
import subprocess
import sys
from pathlib import Path

import pytest
from harness.places import with_tests

import fxpool
from fxpool import child_python
from fxpool.bench.guard import Guard

NAMES = ("json", "typing", "runpy", "torch", "msgspec", "psutil", "asyncio", "subprocess", "tempfile", "random")


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named like modules; each leaves a mark if it is run."""
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write({name!r})\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", with_tests(os.environ.get("PYTHONPATH")))
    return tmp_path / "ran"


def _run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=200, check=False
    )


def test_the_working_directory_is_dangerous(hostile: Path) -> None:
    _run([sys.executable, "-m", "fxpool.dashboard.generated_code", "nowhere", "ab" * 32, "cd" * 32])
    assert hostile.exists()


def test_modules_of_ours_do_not_look_there(hostile: Path) -> None:
    done = _run(
        child_python.command("fxpool.dashboard.generated_code", "nowhere", "ab" * 32, "cd" * 32),
        **child_python.environment(os.environ),
    )
    assert "the entry was removed" in done.stderr and not hostile.exists()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="this Python has no -P")
def test_neither_does_the_way_for_older_pythons(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10))
    command = child_python.command("fxpool.dashboard.generated_code", "nowhere", "ab" * 32, "cd" * 32)
    assert "-P" not in command
    done = _run(command, **child_python.environment(os.environ))
    assert "the entry was removed" in done.stderr and not hostile.exists()


@pytest.mark.slow
def test_nor_do_the_guard_and_the_doctor(hostile: Path) -> None:
    guard = Guard("no process has this mark")
    guard.dismiss()
    program = (
        "import sys; sys.path.remove(''); sys.argv[1:] = ['doctor']; from fxpool.commands.main import main; main()"
    )
    assert "compile" in _run([sys.executable, "-c", program], **child_python.environment(os.environ)).stdout
    assert not hostile.exists()


def test_a_checkout_is_found_without_an_install(monkeypatch: pytest.MonkeyPatch) -> None:
    place = os.path.dirname(os.path.dirname(str(fxpool.__file__)))
    assert child_python.environment({"PYTHONPATH": "/one"})["PYTHONPATH"] == f"/one{os.pathsep}{place}"
    monkeypatch.setattr(site, "getsitepackages", lambda: [place])
    assert child_python.environment({"A": "b"}) == {"A": "b"}
