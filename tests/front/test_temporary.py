"""Temporary directories: gone with their process, however it ends, and never taken from one that runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fxpool import temporary

_HOLDER = """
import sys
from fxpool import temporary
with temporary.directory("unit", sys.argv[1]) as path:
    open(path + "/a.cpp", "w").close()
    print(path, flush=True)
    sys.stdin.read()
"""


def _holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def _end(process: subprocess.Popen[str], number: signal.Signals | None = None) -> None:
    if number is not None:
        process.send_signal(number)
    process.communicate()


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    made = tmp_path / "p"
    made.mkdir()
    return made


def test_a_directory_is_removed_at_the_end(parent: Path) -> None:
    with temporary.directory("unit", str(parent)) as path:
        assert Path(path).parent == parent
        assert Path(path).name.startswith(f"{temporary.PREFIX}unit-")
        (Path(path) / "below").mkdir()
    assert os.listdir(parent) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_the_next_process_removes_that_of_a_killed_one(parent: Path, number: signal.Signals) -> None:
    process, left = _holder(parent)
    _end(process, number)
    assert (left / "a.cpp").exists()
    other, own = _holder(parent)
    try:
        assert os.listdir(parent) == [own.name]
    finally:
        _end(other)
    assert os.listdir(parent) == []


def test_that_of_a_running_process_stays(parent: Path) -> None:
    process, path = _holder(parent)
    try:
        temporary.sweep(str(parent))
        assert (path / "a.cpp").exists()
    finally:
        _end(process)


def test_other_files_stay(parent: Path) -> None:
    target = parent / "target"
    target.mkdir()
    (parent / f"{temporary.PREFIX}link").symlink_to(target)
    (parent / f"{temporary.PREFIX}file").touch()
    (parent / "fxpool-mine").mkdir()
    before = sorted(os.listdir(parent))
    temporary.sweep(str(parent))
    assert sorted(os.listdir(parent)) == before


def test_one_that_is_swept_before_it_is_locked_is_made_again(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = temporary._lock
    swept: list[str] = []

    def late(descriptor: int) -> bool:
        if not swept:
            swept.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            os.rmdir(swept[0])
        return lock(descriptor)

    monkeypatch.setattr(temporary, "_lock", late)
    with temporary.directory("unit", str(parent)) as path:
        assert os.path.isdir(path)
        assert path != swept[0]


def test_nothing_is_removed_where_locks_do_not_exclude(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process, left = _holder(parent)
    _end(process, signal.SIGKILL)
    monkeypatch.setattr(temporary, "_lock", lambda descriptor: True)
    with temporary.directory("unit", str(parent)):
        assert left.exists()
    assert left.exists()


def test_a_parent_that_is_missing_is_an_error(parent: Path) -> None:
    temporary.sweep(str(parent / "missing"))
    with (
        pytest.raises(FileNotFoundError, match="missing"),
        temporary.directory("unit", str(parent / "missing")),
    ):
        raise AssertionError("entered")
