"""Directories of `fxpool.once`: their files, how long they stay, and those that the caller names."""

from __future__ import annotations

import os
import socket
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from once_processes import eventually, lines, start

import fxpool
from fxpool import errors, notices
from fxpool.codecache.store import collector, held_directories, removal
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.jits import tree_content
from fxpool.jits.tree_content import PIECE


@pytest.fixture(autouse=True)
def _nothing_held_nor_said() -> Iterator[None]:
    notices.forget()
    yield
    held_directories.let_go()
    notices.forget()


class Files:
    """Fills a directory, and counts that."""

    def __init__(self, text: str = "text") -> None:
        self.text, self.count, self.into = text, 0, ""

    def __call__(self, directory: str) -> None:
        self.count, self.into = self.count + 1, directory
        assert os.listdir(directory) in ([], [tree_content.STAMP])
        root = Path(directory)
        (root / "empty").mkdir()
        (root / "bin").mkdir(mode=0o777)
        (root / "bin" / "run").write_text(self.text)
        (root / "bin" / "run").chmod(0o6777)
        (root / "lib.so").symlink_to("bin/run")
        (root / "bin" / "up").symlink_to("../lib.so")
        (root / "name with é").write_bytes(b"")
        os.utime(root / "bin" / "run", ns=(10**18 + 7, 10**18 + 7))


def _is_right(path: str | Path, text: str = "text") -> bool:
    root = Path(path)
    assert sorted(set(os.listdir(root)) - {tree_content.STAMP}) == ["bin", "empty", "lib.so", "name with é"]
    assert (root / "lib.so").read_text() == (root / "bin" / "up").read_text() == text
    status = (root / "bin" / "run").stat()
    assert stat.S_IMODE(status.st_mode) & 0o1022 == 0 and status.st_mode & 0o100 and status.st_uid == os.geteuid()
    assert status.st_mtime_ns == 10**18 + 7
    assert os.readlink(root / "lib.so") == "bin/run"
    return True


def _forget_copies(tmp_path: Path) -> None:
    held_directories.let_go()
    for name in held_directories.names(str(tmp_path / "c")):
        assert held_directories.remove(str(tmp_path / "c"), name)


def test_a_directory_comes_back_with_modes_times_and_links(tmp_path: Path) -> None:
    build = Files()
    path = fxpool.once("k", build)
    first = os.stat(path).st_ino
    assert fxpool.once("k", build) == path and os.stat(path).st_ino == first
    _forget_copies(tmp_path)
    assert not os.path.exists(path)
    assert fxpool.once("k", build) == path and _is_right(path) and build.count == 1
    assert stat.S_IMODE(os.stat(path, follow_symlinks=False).st_mode) == 0o700
    assert not Path(path, "bin", "run").stat().st_mode & stat.S_ISUID


def test_equal_directories_have_equal_blobs(tmp_path: Path) -> None:
    fxpool.once(1, Files())
    before = sorted((tmp_path / "c" / "blobs").rglob("*-*"))
    fxpool.once(2, Files())
    assert sorted((tmp_path / "c" / "blobs").rglob("*-*")) == before


def test_large_files_come_back_from_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert PIECE == 64 << 20
    monkeypatch.setattr(tree_content, "PIECE", 1000)
    contents = {f"{number:03}": os.urandom(size) for number, size in enumerate([0, 1, 999, 1000, 1001, 5000, 0, 3])}

    def build(directory: str) -> None:
        for name, content in contents.items():
            Path(directory, name).write_bytes(content)

    fxpool.once("k", build)
    (entry,) = LocalStore(str(tmp_path / "c")).entries(next((tmp_path / "c" / "entries").glob("*/*")).name)
    assert len(entry.blobs) == 9
    _forget_copies(tmp_path)
    path = fxpool.once("k", build)
    assert {name: Path(path, name).read_bytes() for name in contents} == contents
    assert fxpool.stats()["once"]["builds"] == 1


# ---------------------------------------------------------------- files that are neither stored nor written


def _link(target: str) -> Callable[[str], object]:
    return lambda directory: os.symlink(target, os.path.join(directory, "link"))


def _socket(directory: str) -> None:
    here = os.getcwd()
    os.chdir(directory)  # a socket's path is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("s")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    "build",
    [_link("/etc/passwd"), _link("../outside"), _link("a/../../b"), _link("a/../b"), _socket,
     lambda directory: os.mkfifo(os.path.join(directory, "pipe"))],
)  # fmt: skip
def test_other_files_are_returned_and_not_stored(build: Callable[[str], object], tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        paths = [fxpool.once("k", build) for _ in range(2)]
    assert paths[0] != paths[1] and all(len(os.listdir(path)) == 1 for path in paths)
    assert len(caught) == 1 and "cannot store k" in str(caught[0].message)
    once = fxpool.stats()["once"]
    assert (once["builds"], once["not_stored"], once["hits"]) == (2, 2, 0)


def _run(path: str) -> dict[str, Any]:
    return {"files": [[path, 0o755, 0, 4]], "directories": [], "links": []}


@pytest.mark.parametrize(
    "tree",
    [
        _run("../out"), _run("/tmp/out"), _run("a/../../out"), _run("./a"), _run(""), _run("a//b"), _run("a\0b"),
        _run(tree_content.STAMP), _run("missing/a"),
        {"files": [["link/a", 0o755, 0, 4]], "directories": [], "links": [["link", "/tmp"]]},
        {"files": [["link/a", 0o755, 0, 4]], "directories": [["link", 0o755]], "links": [["link", "."]]},
        {"files": [["a", 0o755, 0, 4]], "directories": [], "links": [["link", "/etc"]]},
        {"files": [["a", 0o755, 0, 4]], "directories": [], "links": [["link", "../a"]]},
        {"files": [["a", 0o755, 0, 4]], "directories": [], "links": [["l", "."], ["link", "l/../a"]]},
        {"files": [["a", 0o755, 0, 5]], "directories": [], "links": []},
        {"files": [["a", 0o755, 0, 3]], "directories": [], "links": []},
        {"files": [["a", 0o755, 0, -1], ["b", 0o755, 0, 5]], "directories": [], "links": []},
        {"files": [["a", 0o755, 0, 2], ["a", 0o755, 0, 2]], "directories": [], "links": []},
        {"files": "no list"}, None,
    ],
)  # fmt: skip
def test_a_forged_list_of_files_writes_nothing_outside(tmp_path: Path, tree: Any) -> None:
    """The entry itself is intact: it was written by a program that wanted this."""
    build = Files()
    target = tmp_path / "deep" / "target"
    fxpool.once("k", build, directory=target)
    store = LocalStore(str(tmp_path / "c"))
    (entry,) = [one.entry for one in store.scan()]
    assert entry is not None
    content = {"level": "once", "tree": tree}
    forged = msgspec.structs.replace(entry, content=content, blobs={"files-00000": BlobRef.of(b"evil")})
    store.put_blob(b"evil")
    store.publish(forged, {})
    before = _everything(tmp_path)
    assert _is_right(fxpool.once("k", build))
    _is_right(fxpool.once("k", build, directory=tmp_path / "deep" / "second"))
    assert build.count == 2 and fxpool.stats()["once"]["damaged"] >= 1
    assert not any(path.read_bytes() == b"evil" for path in _everything(tmp_path) - before if path.is_file())


def _everything(root: Path) -> set[Path]:
    return {path for path in root.rglob("*") if "blobs" not in path.parts}


def test_a_tampered_piece_is_built_again(tmp_path: Path) -> None:
    build = Files()
    fxpool.once("k", build)
    _forget_copies(tmp_path)
    (blob,) = (tmp_path / "c" / "blobs").rglob("*-4")
    blob.write_bytes(b"tEXT")
    assert _is_right(fxpool.once("k", build)) and build.count == 2
    assert fxpool.stats()["once"]["damaged"] == 1


@pytest.mark.parametrize("in_use", [False, True])
def test_a_damaged_copy_is_replaced(tmp_path: Path, in_use: bool) -> None:
    build = Files()
    path = fxpool.once("k", build)
    Path(path, "bin", "run").write_text("text")  # the same size, another time
    if not in_use:
        held_directories.let_go()
    user = start(tmp_path / "log", key="other", stays=True) if in_use else None
    other = fxpool.once("k", build)
    assert _is_right(other) and build.count == 1
    if user is not None:
        user.kill()


# ---------------------------------------------------------------- eviction


def _collect(tmp_path: Path) -> collector.Collected:
    return collector.collect(str(tmp_path / "c"), Bounds(max_bytes=0, grace=-1.0))


def test_a_directory_stays_while_its_process_lives(tmp_path: Path) -> None:
    process = start(tmp_path / "log", stays=True)
    path = process.first_line()["path"]
    collected = _collect(tmp_path)
    assert collected.entries == 1 and os.path.isdir(path), "its entry goes, its files stay"
    cleared = removal.clear(str(tmp_path / "c"))
    assert cleared.in_use == [path] and Path(path, "sub", "file").exists()
    process.kill()
    assert _collect(tmp_path).others >= 1
    assert not os.path.exists(path)
    assert start(tmp_path / "log").report()["right"] and len(lines(tmp_path / "log")) == 2


def test_a_child_of_a_fork_keeps_its_parent_s_directory(tmp_path: Path) -> None:
    path = fxpool.once("k", Files())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    assert held_directories.let_go() == 1
    _collect(tmp_path)
    assert os.path.isdir(path)
    os.close(writing)
    os.waitpid(child, 0)
    _collect(tmp_path)
    assert not os.path.exists(path)


def test_a_process_before_a_checkpoint_holds_no_directory(tmp_path: Path) -> None:
    path = fxpool.once("k", Files())
    quiesced = fxpool.quiesce()
    assert quiesced["remaining"]["descriptors"] == []  # earlier tests of this process may have left other things
    assert fxpool.once("k", Files()) == path
    _collect(tmp_path)
    assert os.path.isdir(path), "it is held again"


def test_an_evicted_directory_is_filled_again_from_its_entry(tmp_path: Path) -> None:
    build = Files()
    path = fxpool.once("k", build)
    held_directories.let_go()
    os.utime(path, (1, 1))
    size = fxpool.stats()["cache_disk_bytes"]
    collected = collector.collect(str(tmp_path / "c"), Bounds(max_bytes=size - 1))
    assert (collected.entries, collected.others) == (0, 4) and not os.path.exists(path)
    assert _is_right(fxpool.once("k", build)) and build.count == 1
    _collect(tmp_path)
    assert os.path.exists(path)


# ---------------------------------------------------------------- directories that the caller names


def test_a_named_directory_is_filled_and_then_the_program_s(tmp_path: Path) -> None:
    build, target = Files(), tmp_path / "a" / "target"
    assert fxpool.once("k", build, directory=target) == str(target) and _is_right(target)
    assert build.into != str(target)
    (target / "more").write_text("of the program's")
    (target / "bin" / "run").write_text("changed")
    assert fxpool.once("k", build, directory=str(target)) == str(target)
    assert (target / "more").exists() and (target / "bin" / "run").read_text() == "changed"
    assert _is_right(fxpool.once("k", build, directory=tmp_path / "b")), "filled from the entry"
    assert build.count == 1
    other = Files("other")
    fxpool.once("other", other, directory=target)
    assert _is_right(target, "other") and not (target / "more").exists()
    assert sorted(os.listdir(tmp_path / "a")) == ["target"]


def test_an_empty_directory_is_filled_and_others_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert _is_right(fxpool.once("k", Files(), directory=tmp_path / "empty"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        with pytest.raises(errors.TargetDirectoryError, match="does not replace the directory"):
            fxpool.once("k", Files(), directory=tmp_path / name)
        with pytest.raises(errors.TargetDirectoryError):
            fxpool.once("k", Files(), directory=tmp_path / name, in_place=True)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_a_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    for target in (tmp_path / "open", tmp_path / "open" / "below"):
        with pytest.raises(errors.UnsafeDirectoryError, match="other users could change"):
            fxpool.once("k", Files(), directory=target)
    assert os.listdir(tmp_path / "open") == []


def test_a_tool_that_writes_its_path_builds_in_place(tmp_path: Path) -> None:
    build, target = Files(), tmp_path / "target"
    for _ in range(2):
        assert _is_right(fxpool.once("k", build, directory=target, in_place=True))
    assert build.into == str(target) and build.count == 1

    def fails(directory: str) -> None:
        Path(directory, "half").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fxpool.once("other", fails, directory=target, in_place=True)
    assert os.listdir(target) == [tree_content.STAMP], "no half of a directory is left"
    assert _is_right(fxpool.once("k", build, directory=target, in_place=True)) and build.count == 1
    other = start(tmp_path / "log", key="dead", directory=str(target), in_place=True, seconds=1000)
    eventually(lambda: (target / "half").exists())
    other.kill()
    report = start(tmp_path / "log", key="dead", directory=str(target), in_place=True).report()
    assert report["right"] and report["names"] == [tree_content.STAMP, "half", "sub"]


def test_the_threads_of_a_process_may_name_different_directories(tmp_path: Path) -> None:
    import threading
    import time

    build = Files()

    def slow(directory: str) -> None:
        time.sleep(0.3)
        build(directory)

    results: list[str] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(fxpool.once("k", slow, directory=tmp_path / f"t{n % 2}")))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results) == [str(tmp_path / "t0")] * 3 + [str(tmp_path / "t1")] * 3
    assert build.count == 1 and _is_right(tmp_path / "t0") and _is_right(tmp_path / "t1")


def test_an_entry_without_a_level_is_no_product(tmp_path: Path) -> None:
    fxpool.once("k", lambda: b"x")
    store = LocalStore(str(tmp_path / "c"))
    (stored,) = [one.entry for one in store.scan()]
    assert stored is not None
    store.publish(Entry(key=stored.key, content={"level": "aot"}, blobs=stored.blobs), {})
    assert fxpool.once("k", lambda: b"y") == b"y"
