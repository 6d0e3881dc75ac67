"""A cache directory keeps within its bounds, and whoever reads it meanwhile has all of an entry or a miss."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fxpool.codecache.store import blobs, catalogue, collector, layout, quarantine, small_records
from fxpool.codecache.store.blobs import BlobRef, StoreWriteError
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Entry, Metadata
from fxpool.codecache.store.index import Index
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import UnsafeDirectoryError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which only root can")
LONG_AGO = 10_000.0


def key(n: int) -> str:
    return hashlib.sha256(b"graph %d" % n).hexdigest()


def publish(store: LocalStore, n: int, *, age: float = LONG_AGO, **blobs: bytes) -> Entry:
    """An entry that was published and last used `age` seconds ago."""
    entry = Entry(key=key(n), metadata=Metadata(label=f"graph {n}", compile_seconds=1.0))
    entry = store.publish(entry, blobs or {"so": b"%d" % n * 2000})
    if age:
        used(store, entry, age)
    return entry


def used(store: LocalStore, entry: Entry, age: float) -> None:
    when = time.time() - age
    paths = [layout.entry_path(store.root, entry.key, entry.name)]
    for path in [*paths, *(layout.blob_path(store.root, ref) for ref in entry.blobs.values())]:
        if os.path.exists(path):
            os.utime(path, (when, when))


def files(root: str) -> int:
    """As `fxpool stats` counts them."""
    return sum(share.files for kind, share in catalogue.measure(root).items() if kind != layout.FOREIGN)


def size(root: str) -> int:
    return sum(share.bytes for kind, share in catalogue.measure(root).items() if kind != layout.FOREIGN)


def kept(store: LocalStore) -> list[int]:
    """The numbers of the entries that are whole."""
    found = {one.key: one.entry for one in store.scan()}
    return [n for n in range(300) if (entry := found.get(key(n))) is not None and store.complete(entry)]


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of entries are written here, and none has to survive a power cut."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(autouse=True)
def no_temporaries_left(tmp_path: Path) -> Iterator[None]:
    yield
    left = [name for _, folders, names in os.walk(tmp_path) for name in (*names, *folders) if name.startswith(".tmp-")]
    assert not left


# ---------------------------------------------------------------- after a publication


def test_publishing_evicts_the_least_recently_used(store: LocalStore) -> None:
    entries = [publish(store, n, age=LONG_AGO - n) for n in range(20)]
    store.mark_used(entries[3])
    store.bounds = Bounds(max_files=40)
    publish(store, 20, age=0)  # 42 files, with that of the index
    assert files(store.root) <= 36
    assert 3 in kept(store) and 20 in kept(store) and not {0, 1, 2} & set(kept(store))
    assert store.counters()["evicted"] == 20 + 1 - len(kept(store))
    for entry in entries[:3]:
        assert store.entries(entry.key) == []
        assert not os.path.exists(layout.key_directory(store.root, entry.key))


@pytest.mark.parametrize("limited", ["files", "bytes"])
def test_the_size_after_each_publication_is_within_the_bounds(tmp_path: Path, limited: str) -> None:
    measure = files if limited == "files" else size
    bounds = Bounds(max_files=60, grace=0) if limited == "files" else Bounds(max_bytes=500_000, grace=0)
    limit = bounds.max_files or bounds.max_bytes or 0
    store = LocalStore(str(tmp_path / "cache"), bounds)
    largest = 0
    for n in range(90):
        publish(store, n, age=0)
        largest = max(largest, measure(store.root))
        # The index is written after it was measured.
        assert measure(store.root) <= limit + (16_384 if limited == "bytes" else 0)
    assert largest > limit * 0.9, "it was full"
    assert max(kept(store)) == 89


def test_the_index_knows_what_measuring_says(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "cache"), Bounds(max_files=10_000))
    for n in range(30):
        publish(store, n, age=0)
    store.remove(key(0))
    quarantine.add(store.root, key(1), label="g", error="it died", log=None)
    done = collector.collect(store.root, Bounds())
    known = Index(store.root).look().size
    assert known == done.before - done.freed
    # The claim was there when the directory was looked at, and the index grew.
    assert abs(known.files - files(store.root)) <= 2 and abs(known.bytes - size(store.root)) < 200_000


def test_what_others_wrote_is_noticed_part_by_part(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "cache"), Bounds(max_files=1000))
    publish(store, 0)
    other = LocalStore(store.root)  # without an index
    for n in range(1, 60):
        publish(other, n)
    for _ in range(130):
        publish(store, 0)
    known = Index(store.root).look().size
    assert abs(known.files - files(store.root)) <= 2


def test_a_large_directory_without_an_index_is_looked_at_in_pieces(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(40):
        publish(store, n)
    monkeypatch.setattr(collector, "_PATIENCE", 0.0)
    store.bounds = Bounds(max_files=20)
    publish(store, 40)
    assert len(kept(store)) == 41, "not all is known yet"
    monkeypatch.setattr(collector, "_PATIENCE", 60.0)
    publish(store, 41, age=0)
    assert files(store.root) <= 20 and 41 in kept(store)


def test_without_bounds_there_is_no_index(store: LocalStore, tmp_path: Path) -> None:
    publish(store, 0)
    publish(LocalStore(store.root, Bounds()), 1)
    assert not os.path.exists(os.path.join(store.root, "index"))


def test_a_hit_opens_no_index(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "cache"), Bounds(max_files=1000))
    entry = publish(store, 0)
    program = (
        "import sys\nfrom fxpool.codecache.store.store import LocalStore\n"
        "from fxpool.codecache.store.cache_limits import Bounds\n"
        "store = LocalStore(sys.argv[1], Bounds(1 << 30, 10))\n(entry,) = store.entries(sys.argv[2])\n"
        "assert store.complete(entry) and store.read_blob(entry.blobs['so'])\nstore.mark_used(entry)\n"
        "assert 'sqlite3' not in sys.modules and 'fxpool.codecache.store.collector' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, store.root, entry.key], check=True, timeout=60)


# ---------------------------------------------------------------- in use


def test_what_was_used_lately_stays(store: LocalStore) -> None:
    for n in range(10):
        publish(store, n, age=0)
    done = collector.collect(store.root, Bounds(max_files=5))
    assert done.over and done.entries == 0 and len(kept(store)) == 10
    assert not collector.collect(store.root, Bounds(max_files=5, grace=0)).over


def test_a_directory_that_stays_over_its_bounds_is_not_searched_each_time(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    real = collector._scan

    def scan(root: str) -> Any:
        looked.append(root)
        return real(root)

    monkeypatch.setattr(collector, "_scan", scan)
    store.bounds = Bounds(max_files=5)
    for n in range(8):
        publish(store, n, age=0)
    assert len(looked) == 1
    claim = os.path.join(store.root, layout.CLAIM)
    os.utime(claim, (time.time() - 100,) * 2)
    publish(store, 8, age=0)
    assert len(looked) == 2


def test_one_that_was_used_since_the_decision_stays_with_its_blobs(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [publish(store, n) for n in range(4)]
    real = collector._plan

    def plan(*args: Any) -> Any:
        planned = real(*args)
        store.mark_used(entries[1])
        return planned

    monkeypatch.setattr(collector, "_plan", plan)
    collector.collect(store.root, Bounds(max_files=0))
    assert kept(store) == [1]


def test_a_blob_that_was_published_again_since_the_decision_stays(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 0, so=b"shared" * 100)
    real = collector._plan

    def plan(*args: Any) -> Any:
        planned = real(*args)
        publish(store, 1, age=0, so=b"shared" * 100)
        return planned

    monkeypatch.setattr(collector, "_plan", plan)
    collector.collect(store.root, Bounds(max_files=0))
    assert kept(store) == [1]


def test_a_blob_that_is_evicted_while_it_is_published_is_written_again(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the blob, which was there already, and the entry that names it."""
    first = publish(store, 0, so=b"shared" * 100)
    real = blobs.write_private

    def write(path: str, data: bytes) -> None:
        if path.endswith(layout.ENTRY_SUFFIX):
            os.unlink(layout.blob_path(store.root, first.blobs["so"]))
        real(path, data)

    monkeypatch.setattr("fxpool.codecache.store.store.write_private", write)
    second = publish(store, 1, age=0, so=b"shared" * 100)
    assert store.complete(second)


def test_an_entry_evicted_between_finding_and_loading_is_a_miss(store: LocalStore) -> None:
    publish(store, 0)
    (entry,) = store.entries(key(0))
    program = (
        "import sys\nfrom fxpool.codecache.store import collector\n"
        "from fxpool.codecache.store.cache_limits import Bounds\n"
        "assert collector.collect(sys.argv[1], Bounds(max_files=0)).entries == 1"
    )
    subprocess.run([sys.executable, "-c", program, store.root], check=True, timeout=60)
    ref = entry.blobs["so"]
    assert not store.has_blob(ref) and store.read_blob(ref) is None and not store.complete(entry)
    store.mark_used(entry)
    assert store.entries(key(0)) == []
    counters = store.counters()
    assert not counters["corrupt"] and not counters["unreadable"] and not counters["unsafe"]


def test_an_open_file_outlives_its_eviction(store: LocalStore) -> None:
    entry = publish(store, 0)
    path = layout.blob_path(store.root, entry.blobs["so"])
    with open(path, "rb") as file:
        assert collector.collect(store.root, Bounds(max_files=0)).blobs == 1
        assert BlobRef.of(file.read()) == entry.blobs["so"]


# ---------------------------------------------------------------- what else lies there


def test_other_files_age_beside_entries(store: LocalStore) -> None:
    publish(store, 0, age=500)
    small_records.failed.add(store.root, key(1), "compile_error:E")
    small_records.demoted.add(store.root, key(2), key(3))
    quarantine.add(store.root, key(4), label="g", error="it died", log=None)
    aside = os.path.join(store.root, "aside", "damaged")
    os.makedirs(os.path.dirname(aside), mode=0o700)
    Path(aside).write_bytes(b"x")
    (Path(store.root) / "mine.txt").write_text("not fxpool's")
    for name, age in (("failed", 900.0), ("slower", 400.0)):
        (path,) = (Path(store.root) / name).iterdir()
        os.utime(path, (time.time() - age,) * 2)
    # In all 7 files: entry, blob, failed, slower, quarantined, set aside; and the index.
    steps: list[set[str]] = []
    for limit in (8, 7, 6):
        collector.collect(store.root, Bounds(max_files=limit))
        steps.append({name for name in ("aside", "failed", "slower", "quarantine") if _has_files(store.root, name)})
    assert not _has_files(store.root, "aside")
    collector.collect(store.root, Bounds(max_files=0))
    assert not _has_files(store.root, "failed") and not _has_files(store.root, "slower") and kept(store) == []
    assert _has_files(store.root, "quarantine") and (Path(store.root) / "mine.txt").exists()
    assert steps == sorted(steps, key=len, reverse=True)


def _has_files(root: str, name: str) -> bool:
    return any(path.is_file() for path in (Path(root) / name).rglob("*"))


def test_a_header_in_use_stays(store: LocalStore) -> None:
    publish(store, 0)
    headers = Path(store.root) / "toolchain" / "headers"
    headers.mkdir(parents=True, mode=0o700)
    for stem in ("aaaa", "bbbb"):
        (headers / f"{stem}.h").write_text("#include <x.h>\n")
        (headers / f"{stem}.h.gch").write_bytes(b"h" * 300_000)
        (headers / f"{stem}.json").write_text("{}")
        (headers / f"{stem}.lock").touch()
        os.utime(headers / f"{stem}.json", (time.time() - LONG_AGO * 2,) * 2)
    program = "import sys, time\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "-include", str(headers / "bbbb.h")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as compiler:
        assert compiler.stdout is not None and compiler.stdout.readline()
        done = collector.collect(store.root, Bounds(max_bytes=400_000))
        compiler.communicate()
    assert done.others == 2 and done.freed.bytes > 300_000
    assert not (headers / "aaaa.h.gch").exists() and (headers / "bbbb.h.gch").exists()


def test_entries_of_another_version_keep_their_blobs(store: LocalStore) -> None:
    theirs = publish(store, 0, age=LONG_AGO, so=b"of another version" * 100)
    path = layout.entry_path(store.root, theirs.key, theirs.name)
    magic = b"fxpool-entry 3\n"
    rest = b"whatever they write"
    Path(path).write_bytes(magic + hashlib.sha256(magic + rest).digest() + rest)
    publish(store, 1)
    collector.collect(store.root, Bounds())
    assert store.has_blob(theirs.blobs["so"])
    os.utime(path, (time.time() - LONG_AGO * 3,) * 2)
    collector.collect(store.root, Bounds(max_files=0))
    assert not os.path.exists(path) and not store.has_blob(theirs.blobs["so"])


def test_a_dry_run_says_what_would_go_and_changes_nothing(store: LocalStore) -> None:
    for n in range(6):
        publish(store, n, age=LONG_AGO - n)
    before = sorted(path for path in Path(store.root).rglob("*"))
    planned = collector.collect(store.root, Bounds(max_files=8), dry_run=True)
    assert sorted(path for path in Path(store.root).rglob("*")) == before
    done = collector.collect(store.root, Bounds(max_files=8))
    assert planned.entries >= 2 and done.entries - planned.entries in (0, 1)  # claim and index count meanwhile


# ---------------------------------------------------------------- directories that are in the way


def test_no_directory_is_nothing(tmp_path: Path) -> None:
    assert collector.collect(str(tmp_path / "none"), Bounds(max_files=0)) == collector.Collected()
    assert not (tmp_path / "none").exists() and collector.evicted(str(tmp_path / "none")) is None


def test_a_directory_open_to_others_is_refused(store: LocalStore) -> None:
    publish(store, 0)
    os.chmod(store.root, 0o777)
    with pytest.raises(UnsafeDirectoryError):
        collector.collect(store.root, Bounds(max_files=0))
    os.chmod(store.root, 0o700)
    assert kept(store) == [0]


def test_a_directory_that_vanishes_meanwhile(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.bounds = Bounds(max_files=1, grace=0)
    for part in ("_refresh", "_plan"):
        real: Callable[..., Any] = getattr(collector, part)

        def vanish(*args: Any, real: Callable[..., Any] = real) -> Any:
            shutil.rmtree(store.root)
            return real(*args)

        monkeypatch.setattr(collector, part, vanish)
        assert publish(store, 0, age=0).blobs  # published, whatever becomes of it then
        assert not os.path.exists(store.root), "it was made again by who evicts"
        monkeypatch.setattr(collector, part, real)
    assert publish(store, 1, age=0).blobs and not store.counters()["write_failed"]


@AS_ROOT
def test_a_full_disk_and_a_read_only_one(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "fxpool-test", disk]).returncode:
        pytest.skip("can't mount here")
    try:
        store = LocalStore(str(disk / "cache"))
        for n in range(8):
            publish(store, n, so=os.urandom(80_000))
        with contextlib.suppress(OSError), open(disk / "filler", "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        store.bounds = Bounds(max_bytes=400_000)
        with pytest.raises(StoreWriteError, match="ENOSPC"):
            publish(store, 8, so=os.urandom(80_000))
        done = collector.collect(store.root, store.bounds)  # without room for an index, or a claim
        assert done.entries >= 4 and not done.over and size(store.root) <= 400_000
        assert publish(store, 9, so=os.urandom(20_000)) and 9 in kept(store)
        before = kept(store)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        with pytest.raises(StoreWriteError, match="EROFS"):
            collector.collect(store.root, Bounds(max_files=0))
        planned = collector.collect(store.root, Bounds(max_files=0), dry_run=True)
        assert planned.entries == len(before) and kept(store) == before
    finally:
        subprocess.run(["umount", disk], check=True)
