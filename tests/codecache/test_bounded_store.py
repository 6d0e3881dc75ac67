"""Real processes on one bounded directory: they write, read, evict, clear and die."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fxpool.codecache.store import catalogue, collector, layout
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore

_WORKER = """
import hashlib, os, random, shutil, sys, time
from fxpool.codecache.store import collector
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore

os.fsync = lambda fd: None  # none of this has to survive a power cut
root, number, seconds, role, cap = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], int(sys.argv[5])
store = LocalStore(root, Bounds(max_files=cap, grace=0))
random.seed(number)
keys = [hashlib.sha256(b"key %d" % n).hexdigest() for n in range(60)]
end = time.monotonic() + seconds
hits = 0


def content(n):
    return b"%d" % n * (1 + 20000 * (n % 3))


while time.monotonic() < end:
    n = random.randrange(60)
    if random.random() < 0.5:
        blobs = {"so": content(n), "shared": b"one of three: %d" % (n % 3)}
        store.publish(Entry(key=keys[n], guards=[n], content=n), blobs)
    for entry in store.entries(keys[n]):
        assert entry.content == n and entry.guards == [n]
        if store.complete(entry):
            store.mark_used(entry)
        found = store.read_blob(entry.blobs["so"])
        if found is not None:
            assert found == content(n)
            hits += 1
    if role == "evicts" and random.random() < 0.1:
        collector.collect(root, Bounds(max_files=cap // 2, grace=0))
    if role == "clears" and random.random() < 0.05:
        store.clear()
    if role == "breaks the index" and random.random() < 0.1:
        shutil.rmtree(os.path.join(root, "index"), ignore_errors=True)
    if role == "removes everything" and random.random() < 0.02:
        shutil.rmtree(root, ignore_errors=True)
counters = store.counters()
for name in ("corrupt", "unsafe", "unreadable", "write_failed"):
    assert not counters[name], counters
assert hits, "nothing was ever read"
"""

CAP = 90


def files(root: str) -> int:
    return sum(share.files for kind, share in catalogue.measure(root).items() if kind != layout.FOREIGN)


@pytest.mark.slow
@pytest.mark.parametrize(
    "roles",
    [
        pytest.param(["evicts", "clears"], id="evict and clear"),
        pytest.param(["evicts", "breaks the index", "removes everything"], id="all else"),
    ],
)
def test_eight_processes_read_whole_entries_or_none(tmp_path: Path, roles: list[str]) -> None:
    root = str(tmp_path / "cache")
    everyone = [*roles, *["writes"] * (8 - len(roles))]
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, root, str(n), "1.2", role, str(CAP)])
        for n, role in enumerate(everyone)
    ]
    assert [worker.wait(timeout=90) for worker in workers] == [0] * 8
    store = LocalStore(root, Bounds(max_files=CAP, grace=0))
    store.publish(Entry(key="ab" * 32), {"so": b"the last one"})
    assert files(root) <= CAP + 1, "the index is one file, and may be new"
    left = [name for _, _, names in os.walk(root) for name in names if name.startswith(".tmp-")]
    assert not left
    for found in store.scan():
        assert found.entry is not None


@pytest.mark.slow
def test_writers_alone_stay_within_the_bounds(tmp_path: Path) -> None:
    """Nobody clears: it is eviction after publications that keeps the number down, and not by emptying it."""
    root = str(tmp_path / "cache")
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, root, str(n), "1.2", "writes", str(CAP)]) for n in range(8)
    ]
    highest = 0
    while any(worker.poll() is None for worker in workers):
        highest = max(highest, files(root))
        time.sleep(0.02)
    assert [worker.wait() for worker in workers] == [0] * 8
    LocalStore(root, Bounds(max_files=CAP, grace=0)).publish(Entry(key="ab" * 32), {"so": b"the last one"})
    assert CAP // 2 < files(root) <= CAP
    assert highest < CAP * 2, "while one evicts the others go on, but not for long"
    evicted = collector.evicted(root)
    assert evicted is not None and evicted.files > 0


_EVICTOR = """
import sys, time
from fxpool.codecache.store import collector
from fxpool.codecache.store.cache_limits import Bounds

real, removed = collector._Removal._remove, []

def remove(*arguments):
    removed.append(real(*arguments))
    if len(removed) == 5:
        print("some are gone", flush=True)
        time.sleep(60)  # until it is killed
    return removed[-1]

collector._Removal._remove = remove
collector.collect(sys.argv[1], Bounds(max_files=0, grace=0))
"""


def test_an_evictor_that_is_killed_leaves_misses_and_is_followed_by_another(tmp_path: Path) -> None:
    root = str(tmp_path / "cache")
    store = LocalStore(root)
    keys = [hashlib.sha256(b"%d" % n).hexdigest() for n in range(40)]
    for key in keys:
        store.publish(Entry(key=key), {"so": key.encode(), "shared": b"the same for all"})
    with subprocess.Popen([sys.executable, "-c", _EVICTOR, root], stdout=subprocess.PIPE) as evictor:
        assert evictor.stdout is not None and evictor.stdout.readline() == b"some are gone\n"
        evictor.send_signal(signal.SIGKILL)
        evictor.stdout.read()
    assert evictor.returncode == -signal.SIGKILL
    entries = [entry for key in keys for entry in store.entries(key)]
    assert 0 < len(entries) < 40 and all(map(store.complete, entries))
    bounded = LocalStore(root, Bounds(max_files=10, grace=0))
    bounded.publish(Entry(key="ab" * 32), {"so": b"x"})
    assert files(root) > 10, "the killed one's claim is respected"
    claim = os.path.join(root, layout.CLAIM)
    os.utime(claim, (time.time() - 3600,) * 2)
    bounded.publish(Entry(key="cd" * 32), {"so": b"y"})
    assert files(root) <= 10 and not os.path.exists(claim)
    assert bounded.counters()["evicted"] and not bounded.counters()["corrupt"]


def test_a_directory_removed_under_a_bounded_store(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "cache"), Bounds(max_files=CAP))
    for _ in range(3):
        entry = store.publish(Entry(key="ab" * 32), {"so": b"x"})
        assert store.entries("ab" * 32) == [entry] and store.complete(entry)
        shutil.rmtree(store.root)
    assert store.counters()["eviction_failed"] == 0
