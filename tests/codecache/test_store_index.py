"""The index: whatever becomes of its file, it is begun anew, and nothing that is needed is removed for its sake."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fxpool.codecache.store import catalogue, collector, index, layout
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.catalogue import Part, Size
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.index import Index, IndexUnusableError
from fxpool.codecache.store.store import LocalStore

KEYS = [f"{n:064x}" for n in range(12)]


@pytest.fixture(autouse=True)
def fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(str(tmp_path / "cache"), Bounds(max_files=1000))
    for key in KEYS:
        publish(store, key)
    return store


def publish(store: LocalStore, key: str) -> Entry:
    return store.publish(Entry(key=key, guards=[key]), {"so": key.encode() * 50, "shared": b"the same for all"})


@pytest.fixture(autouse=True)
def no_temporaries_left(tmp_path: Path) -> Iterator[None]:
    yield
    assert not [name for _, folders, names in os.walk(tmp_path) for name in (*names, *folders) if name[:5] == ".tmp-"]


def file_of(store: LocalStore) -> Path:
    return Path(store.root) / "index" / "index.sqlite"


def known(store: LocalStore) -> Size:
    return Index(store.root).look().size


def whole(store: LocalStore) -> int:
    return sum(store.complete(entry) for key in KEYS for entry in store.entries(key))


def is_used_and_right(store: LocalStore) -> None:
    """A publication brings the index back, and what is evicted then is what should be."""
    publish(store, KEYS[0])
    done = collector.collect(store.root, Bounds())
    assert known(store) == done.before - done.freed
    assert whole(store) == len(KEYS)


# ---------------------------------------------------------------- what it holds


def test_there_and_back(tmp_path: Path) -> None:
    memory = Index(str(tmp_path))
    assert not memory.exists()
    summary = memory.update([Part("entries/ab", Size(3, 4096)), Part("blobs/ab", Size(1, 512))], evicted=Size(2, 10))
    assert memory.exists() and summary.size == Size(4, 4608)
    memory.update([], evicted=Size(1, 5))
    look = Index(str(tmp_path)).look()
    assert look.size == Size(4, 4608) and look.evicted == Size(3, 15)
    assert memory.update([Part("entries/ab", Size(1, 1))]).size == Size(2, 513)
    assert memory.update([], gone=["entries/ab"]).size == memory.look().size == Size(1, 512)


def test_it_is_ours_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        Index(str(tmp_path)).update([Part("rest", Size(1, 1))])
        connection = sqlite3.connect(tmp_path / "index" / "index.sqlite")  # its other files are there while it is open
        connection.execute("SELECT * FROM parts").fetchall()
        for path in [tmp_path / "index", *(tmp_path / "index").iterdir()]:
            assert path.stat().st_mode & 0o077 == 0, path
        connection.close()
    finally:
        os.umask(old)


def test_it_makes_no_cache_directory(tmp_path: Path) -> None:
    with pytest.raises(IndexUnusableError):
        Index(str(tmp_path / "gone")).update([])
    assert not (tmp_path / "gone").exists()


# ---------------------------------------------------------------- what happens to it


def remove_file(store: LocalStore) -> None:
    file_of(store).unlink()


def remove_directory(store: LocalStore) -> None:
    shutil.rmtree(file_of(store).parent)


def empty(store: LocalStore) -> None:
    os.truncate(file_of(store), 0)


def cut(store: LocalStore) -> None:
    os.truncate(file_of(store), os.path.getsize(file_of(store)) // 2)


def no_database(store: LocalStore) -> None:
    file_of(store).write_bytes(b"this is no database" * 1000)


def another_version(store: LocalStore) -> None:
    with sqlite3.connect(file_of(store)) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def without_a_table(store: LocalStore) -> None:
    with sqlite3.connect(file_of(store)) as connection:
        connection.execute("DROP TABLE parts")
    connection.close()


def nonsense_in_a_row(store: LocalStore) -> None:
    with sqlite3.connect(file_of(store)) as connection:
        connection.execute("UPDATE parts SET bytes = 'many', files = -4")
    connection.close()


def file_is_a_directory(store: LocalStore) -> None:
    file_of(store).unlink()
    file_of(store).mkdir()


def directory_is_a_file(store: LocalStore) -> None:
    shutil.rmtree(file_of(store).parent)
    file_of(store).parent.write_text("in the way")


def file_is_a_link(store: LocalStore) -> None:
    file_of(store).unlink()
    file_of(store).symlink_to("/dev/null")


HARMS = [
    remove_file,
    remove_directory,
    empty,
    cut,
    no_database,
    another_version,
    without_a_table,
    nonsense_in_a_row,
    file_is_a_directory,
    directory_is_a_file,
    file_is_a_link,
]


@pytest.mark.parametrize("harm", HARMS)
def test_it_is_begun_anew(store: LocalStore, harm: Callable[[LocalStore], None]) -> None:
    harm(store)
    is_used_and_right(store)
    assert store.counters()["eviction_failed"] == 0 and not Path("/dev/null").is_file()


def test_damaged_bytes_do_no_harm(store: LocalStore) -> None:
    """Wherever they are: neither is a blob removed that an entry names, nor does anything raise."""
    sound = file_of(store).read_bytes()
    rng = random.Random(7)
    for _ in range(60):
        shutil.rmtree(file_of(store).parent, ignore_errors=True)
        file_of(store).parent.mkdir(mode=0o700)
        damaged = bytearray(sound)
        for _ in range(rng.choice((1, 20, 400))):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        file_of(store).write_bytes(damaged)
        publish(store, KEYS[0])
        _age_all(store)
        assert collector.collect(store.root, Bounds()).blobs == 0
        assert whole(store) == len(KEYS)


def _age_all(store: LocalStore) -> None:
    """So that only what the entries name protects the blobs."""
    when = time.time() - 10_000
    for blob in catalogue.blobs(store.root):
        os.utime(os.path.join(store.root, blob.path), (when, when))


def test_an_entry_that_was_replaced_is_read_again(store: LocalStore) -> None:
    other = LocalStore(store.root)  # which tells no index
    entry = other.publish(Entry(key=KEYS[3], guards=[KEYS[3]]), {"so": b"another"})
    _age_all(store)
    collector.collect(store.root, Bounds())
    assert other.complete(entry)


_HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
connection.execute("DELETE FROM parts")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_one_that_another_process_holds_is_left_to_it(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    monkeypatch.setattr(index, "_PATIENCE", 0.2)
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(file_of(store))], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        if stopped:
            holder.send_signal(signal.SIGSTOP)
        is_used_and_right(store)
        if stopped:
            holder.send_signal(signal.SIGCONT)
        holder.communicate()
    is_used_and_right(store)


def test_without_any_index_the_directory_is_looked_at_now_and_then(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*args: Any, **keywords: Any) -> Any:
        raise IndexUnusableError("no SQLite here")

    for name in ("look", "update"):
        monkeypatch.setattr(Index, name, unusable)
    looked: list[str] = []
    real = collector._scan

    def scan(root: str) -> Any:
        looked.append(root)
        return real(root)

    monkeypatch.setattr(collector, "_scan", scan)
    store.bounds = Bounds(max_files=12, grace=0)
    for n in range(3):
        store.publish(Entry(key=KEYS[n], guards=[n]), {})
    assert len(looked) == 1 and store.counters()["evicted"] >= 6
    os.utime(Path(store.root) / layout.CLAIM, (time.time() - 700,) * 2)
    store.publish(Entry(key=KEYS[4], guards=[4]), {})
    assert len(looked) == 2 and store.counters()["eviction_failed"] == 0


# ---------------------------------------------------------------- file systems


def test_locks_that_do_nothing_and_listings_that_are_late(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on some network file systems: rename is atomic, locks are not, and others' files appear late."""
    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, lambda *args: None)
    real = os.listdir
    late: dict[str, tuple[float, list[str]]] = {}

    def listdir(path: Any = ".") -> list[str]:
        """What was there half a second ago."""
        now = time.monotonic()
        seen = late.get(os.fspath(path))
        if seen is None or now - seen[0] > 0.5:
            late[os.fspath(path)] = (now, real(path))
            return real(path) if seen is None else seen[1]
        return seen[1]

    monkeypatch.setattr(os, "listdir", listdir)
    monkeypatch.setattr(collector, "_CLAIMED_FOR", 0.2)
    writers = [LocalStore(store.root, Bounds(max_files=40, grace=0.6)) for _ in range(3)]
    reader = LocalStore(store.root)
    rng = random.Random(3)
    end, n, hits = time.monotonic() + 3, 0, 0
    while time.monotonic() < end:
        n += 1
        writer = writers[n % 3]
        keys = [hashlib.sha256(b"%d" % rng.randrange(200)).hexdigest() for _ in range(2)]
        assert writer.complete(publish(writer, keys[0])), "lost right after it was published"
        for entry in reader.entries(keys[1]):
            found = reader.read_blob(entry.blobs["so"])
            assert found is None or found == entry.key.encode() * 50
            hits += found is not None
    assert hits and sum(writer.counters()["evicted"] for writer in writers)
    for one in (*writers, reader):
        counters = one.counters()
        assert not counters["corrupt"] and not counters["unsafe"] and not counters["write_failed"]
    monkeypatch.undo()
    collector.collect(store.root, Bounds(max_files=40, grace=0))
    for key in {entry.key for entry in store.scan()}:
        assert all(store.complete(entry) for entry in store.entries(key))


def test_a_later_look_at_a_part_stays(tmp_path: Path) -> None:
    """Who evicts has looked before those who published meanwhile; a look from the future is of another clock."""
    memory, now = Index(str(tmp_path)), time.time()
    memory.update([Part("blobs/ab", Size(5, 50), seen=now - 10)])
    assert memory.update([Part("blobs/ab", Size(4, 40), seen=now - 20)]).size == Size(5, 50)
    assert memory.update([Part("blobs/ab", Size(6, 60), seen=now - 5)]).size == Size(6, 60)
    memory.update([Part("blobs/ab", Size(7, 70), seen=now + 3600)])
    assert memory.update([Part("blobs/ab", Size(8, 80), seen=now)]).size == Size(8, 80)
