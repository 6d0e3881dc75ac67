"""Which entry has the code of a graph that AOTAutograd made: until the entry or the record is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fxpool.codecache.store import layout, lowered_graphs
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

GRAPH, KEY = "1" * 64, "2" * 64


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"))


def published(store: LocalStore, guards: list[object] | None = None) -> Entry:
    return store.publish(Entry(key=KEY, guards=guards or []), {"result": b"code"})


def test_an_entry_is_known_until_it_is_removed(store: LocalStore) -> None:
    assert lowered_graphs.find(store, GRAPH) is None
    first, second = published(store), published(store, [["LessThan", 1, 2]])
    lowered_graphs.add(store, GRAPH, first)
    assert lowered_graphs.find(store, GRAPH) == first
    lowered_graphs.add(store, GRAPH, second)
    assert lowered_graphs.find(store, GRAPH) == second
    assert lowered_graphs.find(store, KEY) is None
    store.remove(KEY, second.name)
    assert lowered_graphs.find(store, GRAPH) is None
    lowered_graphs.add(store, GRAPH, first)
    store.clear()
    assert not Path(store.root, "lowered").exists()


def test_an_entry_without_its_code_is_not_returned(store: LocalStore) -> None:
    entry = published(store)
    lowered_graphs.add(store, GRAPH, entry)
    path = layout.blob_path(store.root, entry.blobs["result"])
    assert path is not None
    os.unlink(path)
    assert lowered_graphs.find(store, GRAPH) is None


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 64, b"../../etc/passwd name", KEY.encode(), b" "])
def test_damaged_records_say_nothing(store: LocalStore, content: bytes) -> None:
    lowered_graphs.add(store, GRAPH, published(store))
    Path(store.root, "lowered", GRAPH).write_bytes(content)
    assert lowered_graphs.find(store, GRAPH) is None


def test_a_record_that_others_can_write_is_not_used(store: LocalStore) -> None:
    lowered_graphs.add(store, GRAPH, published(store))
    os.chmod(Path(store.root, "lowered", GRAPH), 0o666)
    assert lowered_graphs.find(store, GRAPH) is None


def test_errors_of_writing(store: LocalStore) -> None:
    entry = published(store)
    with pytest.raises(ValueError, match="not a lower-case"):
        lowered_graphs.add(store, "../x", entry)
    Path(store.root, "lowered").write_text("in the way")
    with pytest.raises(StoreError):
        lowered_graphs.add(store, GRAPH, entry)
