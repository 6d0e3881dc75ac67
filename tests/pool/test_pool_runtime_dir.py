"""The private directory: safe or refused."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest
from pool_place import Place

from fxpool.errors import PoolUnavailableError
from fxpool.pool import runtime_dir


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_default_is_in_the_user_s_runtime_directory(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    base = place.files / "mark-xdg"
    base.mkdir(0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    root = runtime_dir.runtime_root()
    assert root == base / "fxpool"
    assert mode(root) == 0o700
    assert runtime_dir.runtime_root() == root


@pytest.mark.parametrize("base", ["", "relative", "/nowhere/at/all", "writable"])
def test_default_without_a_good_runtime_directory(place: Place, monkeypatch: pytest.MonkeyPatch, base: str) -> None:
    if base == "writable":
        path = place.files / "mark-open"
        path.mkdir()
        path.chmod(0o777)
        base = str(path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", base)
    monkeypatch.setattr(tempfile, "tempdir", str(place.runtime))
    root = runtime_dir.runtime_root()
    assert root == place.runtime / f"fxpool-{os.getuid()}"
    assert mode(root) == 0o700
    root.rmdir()


def test_links_files_and_open_directories_are_refused(place: Place) -> None:
    target = place.files / "mark-target"
    target.mkdir(0o700)
    link = place.files / "mark-link"
    link.symlink_to(target)
    with pytest.raises(PoolUnavailableError, match="links are refused"):
        runtime_dir.runtime_root(str(link))
    (place.files / "mark-file").touch()
    with pytest.raises(PoolUnavailableError, match="no directory"):
        runtime_dir.runtime_root(str(place.files / "mark-file"))
    target.chmod(0o770)
    with pytest.raises(PoolUnavailableError, match="others have access") as caught:
        runtime_dir.runtime_root(str(target))
    assert "FXPOOL_RUNTIME_DIR" in caught.value.remedy


def test_directories_of_others_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: place.runtime.stat().st_uid + 1)
    with pytest.raises(PoolUnavailableError, match="belongs to user"):
        runtime_dir.runtime_root(str(place.runtime))


def test_private_directories_are_fresh_and_short(place: Place) -> None:
    first, second = (runtime_dir.make_private(place.runtime) for _ in range(2))
    assert first != second
    assert mode(first) == 0o700
    for path in (first, second):
        runtime_dir.remove(path)
        assert not path.exists()
    deep = place.files / ("mark" + "x" * 100)
    with pytest.raises(PoolUnavailableError, match="bytes long"):
        runtime_dir.make_private(deep)


def test_sweep_takes_what_nobody_holds(place: Place) -> None:
    held, left, young = (runtime_dir.make_private(place.runtime) for _ in range(3))
    (place.runtime / "other").mkdir()
    lock = runtime_dir.hold(held)
    for path in (held, left):
        os.utime(path, (1, 1))
    assert runtime_dir.sweep(place.runtime) == [left]
    assert held.exists()
    assert young.exists()
    os.close(lock)
    assert sorted(runtime_dir.sweep(place.runtime, older_than=0)) == sorted([held, young])
    (place.runtime / "other").rmdir()
