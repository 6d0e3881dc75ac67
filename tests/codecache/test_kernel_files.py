"""Compiled kernels by content: found again under equal conditions, never damaged, bounded and removed like the rest."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import zstandard

from fxpool.codecache.key.components import ORDER
from fxpool.codecache.key.key import GraphKey
from fxpool.codecache.store import catalogue, collector, removal
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Component, Entry
from fxpool.codecache.store.kernel_files import KernelFiles
from fxpool.codecache.store.store import FRESH, LocalStore


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"))


@pytest.fixture
def files(store: LocalStore) -> KernelFiles:
    return KernelFiles(store, "conditions")


def paths(store: LocalStore) -> list[Path]:
    return sorted(Path(store.root, "kernels").iterdir())


def test_what_was_stored_is_found_under_its_name_only(store: LocalStore, files: KernelFiles) -> None:
    assert files.find("kernel", "1") is None and not Path(store.root).exists()
    files.keep(b"one", "kernel", "1")
    files.keep(b"", "kernel", "2")
    assert (files.find("kernel", "1"), files.find("kernel", "2")) == (b"one", b"")
    assert files.find("kernel1", "") is None and files.find("kernel") is None
    assert KernelFiles(store, "others").find("kernel", "1") is None
    assert KernelFiles(LocalStore(store.root), "conditions").find("kernel", "1") == b"one"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in paths(store))


@pytest.mark.parametrize("name", ORDER)
def test_all_but_what_a_graph_computes_is_a_condition(name: str) -> None:
    def conditions(changed: str = "", but: Sequence[str] = ()) -> str:
        components = tuple(Component(one, "2" * 64 if one == changed else "1" * 64) for one in ORDER)
        return GraphKey("", components).kernel_conditions(but=but)

    assert (conditions(name) == conditions()) == (name in ("graph", "inputs", "shapes"))
    assert conditions("code", but=("code",)) == conditions(but=("code",))


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped", "appended", "another size"])
def test_damaged_files_are_moved_aside(store: LocalStore, files: KernelFiles, damage: str) -> None:
    files.keep(b"code" * 100, "kernel", "1")
    (path,) = paths(store)
    data = bytearray(path.read_bytes())
    if damage == "another size":  # of a frame that says that it has more than any kernel
        frame = zstandard.ZstdCompressor().compress(b"")
        data = bytearray(frame[:4] + b"\xe0" + (1 << 40).to_bytes(8, "little") + frame[6:])
        data[:0] = hashlib.sha256(data).digest()
    elif damage == "flipped":
        data[-3] ^= 1
    elif damage == "appended":
        data += b"x"
    else:
        del data[0 if damage == "empty" else -1 :]
    path.write_bytes(data)
    assert files.find("kernel", "1") is None and store.counters()["corrupt"] == 1
    assert not path.exists() and len(list(Path(store.root, "aside").iterdir())) == 1
    files.keep(b"new", "kernel", "1")
    assert files.find("kernel", "1") == b"new"


def test_files_and_directories_that_others_can_write_are_not_used(store: LocalStore, files: KernelFiles) -> None:
    files.keep(b"code", "kernel", "1")
    (path,) = paths(store)
    path.chmod(0o666)
    assert files.find("kernel", "1") is None and store.counters()["unsafe"] == 1
    path.chmod(0o600)
    path.parent.chmod(0o777)
    other = KernelFiles(LocalStore(str(Path(store.root, "else"))), "conditions")
    assert other.find("kernel", "1") is None
    with pytest.raises(Exception, match="writable by"):
        LocalStore(store.root)


def test_a_store_that_cannot_be_written_to_costs_one_try(store: LocalStore, files: KernelFiles) -> None:
    Path(store.root).mkdir()
    Path(store.root, "kernels").write_text("in the way")
    files.keep(b"code", "kernel", "1")
    assert files.find("kernel", "1") is None
    Path(store.root, "kernels").unlink()
    files.keep(b"code", "kernel", "1")
    assert files.find("kernel", "1") is None, "nothing is tried again for this graph"


def test_a_scratch_directory_that_was_removed_stays_removed(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir(mode=0o700)
    files = KernelFiles(LocalStore(str(scratch / FRESH)), "conditions")
    files.keep(b"code", "kernel", "1")
    assert files.find("kernel", "1") == b"code"
    shutil.rmtree(scratch)
    files.keep(b"code", "kernel", "2")
    assert not scratch.exists() and files.find("kernel", "1") is None


def test_they_are_measured_and_cleared(store: LocalStore, files: KernelFiles) -> None:
    files.keep(os.urandom(100_000), "kernel", "1")
    share = catalogue.measure(store.root)["kernels"]
    assert share.files == 1 and share.bytes > 100_000
    store.clear()
    assert files.find("kernel", "1") is None and not Path(store.root, "kernels").exists()
    files.keep(b"code", "kernel", "1")
    assert removal.clear(store.root).removed["kernels"].files == 1 and files.find("kernel", "1") is None


def test_those_unused_for_longest_are_evicted_first(store: LocalStore, files: KernelFiles) -> None:
    for number in range(8):
        files.keep(os.urandom(50_000), "kernel", str(number))
        for path in paths(store):
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 100))
    assert files.find("kernel", "0") is not None  # now the one that was used last
    size = catalogue.measure(store.root)["kernels"].bytes
    collected = collector.collect(store.root, Bounds(max_bytes=size // 2, max_files=None, grace=0))
    assert 3 <= collected.others <= 6
    assert files.find("kernel", "0") is not None and files.find("kernel", "7") is not None
    assert files.find("kernel", "1") is None and files.find("kernel", "2") is None


def test_a_publication_keeps_them_within_the_limits(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "store"), Bounds(max_bytes=400_000, max_files=None, grace=0))
    files = KernelFiles(store, "conditions")
    for number in range(20):
        files.keep(os.urandom(50_000), "kernel", str(number))
        store.publish(Entry(key=f"{number:064x}"), {"result": b"x"})
        assert sum(path.stat().st_size for path in paths(store)) < 500_000
    assert files.find("kernel", "19") is not None
