"""The private directory: safe or refused."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest
from pool_place import Place

from fxpool import directories
from fxpool.errors import PoolUnavailableError
from fxpool.pool.host import measurement_lock, runtime_dir


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
    with pytest.raises(PoolUnavailableError, match="is not a directory"):
        runtime_dir.runtime_root(str(place.files / "mark-file"))
    target.chmod(0o770)
    with pytest.raises(PoolUnavailableError, match=r"is open to its group \(mode 0770\)") as caught:
        runtime_dir.runtime_root(str(target))
    assert "FXPOOL_RUNTIME_DIR" in caught.value.remedy


def test_directories_of_others_are_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: place.runtime.stat().st_uid + 1)
    with pytest.raises(PoolUnavailableError, match=r"belongs to .*, not to "):
        runtime_dir.runtime_root(str(place.runtime))


def test_private_directories_are_fresh_and_short(place: Place) -> None:
    first, second = (runtime_dir.make_private(place.runtime) for _ in range(2))
    assert first != second
    assert mode(first) == 0o700
    for path in (first, second):
        runtime_dir.remove(path)
        assert not path.exists()
    deep = place.files / ("mark" + "x" * 100)
    with pytest.raises(PoolUnavailableError, match=r"path of \d+ bytes"):
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


def test_the_root_goes_with_the_last_of_its_users(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    running, dead = (runtime_dir.make_private(root) for _ in range(2))
    (running / runtime_dir.SOCKET).touch()
    lock = runtime_dir.hold(running)
    for directory in (running, dead):
        (root / f"host-{directory.name}.socket").symlink_to(f"{directory.name}/{runtime_dir.SOCKET}")
    (root / runtime_dir.HOST_LOCK).touch()
    turn = measurement_lock.Turn(root, "cpu")
    in_use = [runtime_dir.HOST_LOCK, f"host-{running.name}.socket", "measuring", running.name]
    assert runtime_dir.remove_root(root) == sorted(in_use)
    assert measurement_lock.listed(root) == [("cpu", os.getpid())]
    turn.end()
    os.close(lock)
    (root / "measuring").mkdir()
    (root / "measuring" / "000000000001-cpu").touch()  # left by a killed process
    assert runtime_dir.remove_root(root) == []
    assert not root.exists()


def test_the_root_stays_while_a_process_starts_a_server(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    with open(root / runtime_dir.HOST_LOCK, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert runtime_dir.remove_root(root) == [runtime_dir.HOST_LOCK]
    assert runtime_dir.remove_root(root) == []


def test_sweep_spares_who_may_still_start(place: Place) -> None:
    slow, late = (runtime_dir.make_private(place.runtime) for _ in range(2))
    for path, seconds in ((slow, 300.0), (late, 100.0)):
        (path / "config.json").write_text(json.dumps({"start_timeout": seconds, "of another version": 1}))
        os.utime(path, (time.time() - 200.0,) * 2)
    assert runtime_dir.sweep(place.runtime) == [late]
    os.utime(slow, (time.time() - 301.0,) * 2)
    assert runtime_dir.sweep(place.runtime) == [slow]


@pytest.mark.parametrize("opened", ["directory", "file"])
@pytest.mark.parametrize("mode", [0o722, 0o777, 0o720])
def test_a_configuration_that_others_could_have_written_is_refused(place: Place, opened: str, mode: int) -> None:
    directory = runtime_dir.make_private(place.runtime)
    runtime_dir.write_config(directory, b"{}")
    assert stat.S_IMODE((directory / "config.json").stat().st_mode) == 0o600
    assert runtime_dir.read_config(directory) == b"{}"
    (directory if opened == "directory" else directory / "config.json").chmod(mode)
    with pytest.raises(PoolUnavailableError, match="other users could have written"):
        runtime_dir.read_config(directory)
    directory.chmod(0o700)
    (directory / "config.json").rename(directory / "other.json")
    (directory / "config.json").symlink_to("other.json")
    with pytest.raises(OSError, match="symbolic"):
        runtime_dir.read_config(directory)
    runtime_dir.remove(directory)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_in_which_others_can_rename_is_refused_unless_sticky(
    place: Place, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    above = place.files / "mark-above"
    above.mkdir()
    os.chown(above, -1, 12345) if os.getuid() == 0 else None
    above.chmod(mode)
    monkeypatch.setattr(directories, "_is_private_group", lambda gid: False)
    for name in (str(above / "runtime"), str(above / "deep" / "er")):
        with pytest.raises(PoolUnavailableError, match="other users could replace") as caught:
            runtime_dir.runtime_root(name)
        assert "FXPOOL_RUNTIME_DIR" in caught.value.remedy and str(above) in str(caught.value)
    above.chmod(mode | stat.S_ISVTX)
    assert runtime_dir.runtime_root(str(above / "runtime")) == above / "runtime"


def test_a_link_of_somebody_else_s_on_the_way_is_refused(place: Place) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can make a link somebody else's")
    target, link = place.files / "mark-target", place.files / "mark-link"
    target.mkdir(0o700)
    link.symlink_to(target)
    assert runtime_dir.runtime_root(str(link / "runtime"))
    os.lchown(link, 12345, 12345)
    with pytest.raises(PoolUnavailableError, match="is a symbolic link owned by"):
        runtime_dir.runtime_root(str(link / "runtime"))


@pytest.fixture
def short(place: Place, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two places with short names."""
    places = place.files / "mark1", place.files / "mark2"
    for one in places:
        one.mkdir(0o700)
        one.chmod(0o1777)
    monkeypatch.setattr(runtime_dir, "_SHORT", tuple(map(str, places)))
    return places


@pytest.mark.parametrize("name", ["x" * 120, os.fsdecode(b"a\xff")])
def test_a_name_that_holds_no_socket_has_a_stand_in(place: Place, short: tuple[Path, Path], name: str) -> None:
    root = place.files / name
    found = runtime_dir.runtime_root(str(root))
    assert found.parent == short[0] and mode(found) == 0o700
    assert runtime_dir.runtime_root(f"{root}/../{name}") == found
    assert runtime_dir.runtime_root(f"{root}y") != found
    assert not root.exists()
    assert runtime_dir.make_private(found)


def test_every_process_comes_to_the_same_stand_in(
    place: Place, short: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = str(place.files / ("x" * 120))
    found = runtime_dir.runtime_root(root)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short[1]))
    monkeypatch.setattr(tempfile, "tempdir", str(place.runtime))
    monkeypatch.setenv("TMPDIR", str(place.runtime))
    assert runtime_dir.runtime_root(root) == found


def test_a_default_with_a_long_name_has_one_too(
    place: Place, short: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(place.files / ("x" * 120)))
    assert runtime_dir.runtime_root().parent == short[0]


@pytest.mark.parametrize("taken", ["open", "link", "file", "somebody else's"])
def test_a_stand_in_that_somebody_made_is_not_used(place: Place, short: tuple[Path, Path], taken: str) -> None:
    root = str(place.files / ("x" * 120))
    found = runtime_dir.runtime_root(root)
    found.rmdir()
    if taken == "open":
        found.mkdir()
        found.chmod(0o755)
    elif taken == "link":
        found.symlink_to(place.runtime)
    elif taken == "file":
        found.touch()
    elif os.getuid() == 0:
        found.mkdir(0o700)
        os.chown(found, 12345, 12345)
    else:
        pytest.skip("only root can make a directory somebody else's")
    assert runtime_dir.runtime_root(root) == short[1] / found.name
    (short[1] / found.name).rmdir()
    (short[1] / found.name).touch()
    with pytest.raises(PoolUnavailableError, match="can be used instead") as caught:
        runtime_dir.runtime_root(root)
    assert "FXPOOL_RUNTIME_DIR" in caught.value.remedy


def test_a_log_is_bounded_while_it_is_written_to(tmp_path: Path) -> None:
    directory = runtime_dir.make_private(tmp_path)
    with open(directory / "server.log", "ab", buffering=0) as log:
        log.write(b"first " * 10)
        runtime_dir.rotate_log(directory, most=100)
        assert (directory / "server.log").read_bytes() == b"first " * 10
        log.write(b"more " * 10)
        runtime_dir.rotate_log(directory, most=100)
        log.write(b"last")
    assert (directory / "server.log").read_bytes() == b"last"
    assert (directory / "server.log.1").read_bytes() == b"first " * 10 + b"more " * 10
    runtime_dir.remove(directory)
