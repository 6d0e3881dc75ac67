"""A cache within bounds, as a program sees it: fast compiles are not kept, workers evict, what is loaded stays."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import fxpool
from fxpool.codecache.store import collector, layout
from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.catalogue import Size
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.core.runtime import runtime


def function(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * 3).sum(0)


def run() -> torch.Tensor:
    torch._dynamo.reset()
    x = torch.arange(48.0).reshape(6, 8)
    found: torch.Tensor = torch.compile(function, backend="fxpool")(x)
    torch.testing.assert_close(found, function(x))
    return found


def publish_old(store: LocalStore, numbers: Iterable[int]) -> None:
    """Publish entries that were used long ago."""
    long_ago = time.time() - 10_000
    for n in numbers:
        entry = store.publish(Entry(key=hashlib.sha256(b"%d" % n).hexdigest()), {"so": b"%d" % n})
        for path in (
            layout.entry_path(store.root, entry.key, entry.name),
            layout.blob_path(store.root, entry.blobs["so"]),
        ):
            os.utime(path, (long_ago, long_ago))


def wait_for_eviction(root: str) -> None:
    end = time.monotonic() + 60
    while not (collector.evicted(root) or Size()).files:
        assert time.monotonic() < end, "nothing was evicted"
        time.sleep(0.05)


def test_a_publisher_leaves_eviction_to_the_pool(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fxpool.configure(cache_max_files=50)
    store = runtime.store()
    assert store is not None
    runtime.pool()
    with monkeypatch.context() as patch:
        patch.setattr(collector, "evict", lambda *_: pytest.fail("evicted in the program's process"))
        publish_old(store, range(30))
        wait_for_eviction(store.root)
    assert 0 < store.sizes()["entries"] < 30

    runtime.close()  # without a pool, in this process
    before = collector.evicted(store.root)
    publish_old(store, range(30, 60))
    assert before is not None and (collector.evicted(store.root) or Size()).files > before.files


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["subprocess", "serialize"])
def test_a_graph_that_was_compiled_fast_is_not_kept(
    shared_pool: Path, cache: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fxpool.configure(cache_min_seconds="1h", mode=mode)
    run()
    stats = fxpool.stats()
    assert stats["bypasses"] == {"compiled_fast": 1} and stats["entries_written"] == 0
    assert stats["graphs"][0]["reasons"] == ["bypass:compiled_fast"]
    assert not (cache / "entries").exists() and not (cache / "blobs").exists()
    fxpool.configure(cache_min_seconds="1ms")
    run()
    run()
    assert fxpool.stats()["entries_written"] == 1 and fxpool.stats()["hits"] == 1


@pytest.mark.slow
def test_a_worker_evicts_for_its_asker(shared_pool: Path, cache: Path) -> None:
    """The bounds are those of who asks, not of the server's environment."""
    publish_old(LocalStore(str(cache)), range(30))
    fxpool.configure(cache_max_files=50)
    run()
    stats = fxpool.stats()
    assert stats["compiles"]["worker"] == 1 and stats["entries_written"] == 1
    wait_for_eviction(str(cache))
    stats = fxpool.stats()
    assert stats["store"] is not None
    assert 0 < stats["store"]["entries"] < 30 and stats["store"]["evicted"] == 31 - stats["store"]["entries"]
    run()
    assert fxpool.stats()["hits"] == 1, "what was just compiled stays"


@pytest.mark.slow
def test_what_is_loaded_outlives_its_eviction(shared_pool: Path, cache: Path) -> None:
    run()
    torch._dynamo.reset()
    x = torch.arange(48.0).reshape(6, 8)
    compiled = torch.compile(function, backend="fxpool")
    compiled(x)
    assert fxpool.stats()["hits"] == 1
    assert collector.collect(str(cache), Bounds(max_files=0, grace=0)).entries == 1
    torch.testing.assert_close(compiled(x), function(x))
    run()
    stats = fxpool.stats()
    assert stats["misses"] == 2 and stats["compiles"]["worker"] == 2 and stats["corrupt_entries"] == 0
    assert stats["fallbacks"] == {} and stats["bypasses"] == {}
