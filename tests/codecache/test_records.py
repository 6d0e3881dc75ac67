"""Small records: faster entries of demoted stages, entries by their lowered graphs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fxpool.codecache.store import layout, small_records
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.errors import StoreError

ONE, OTHER = "1" * 64, "2" * 64
GRAPH, KEY = "1" * 64, "2" * 64


@pytest.fixture
def root(tmp_path: Path) -> str:
    return LocalStore(str(tmp_path / "store")).root


def test_it_is_remembered_until_the_store_is_cleared(root: str) -> None:
    assert small_records.demoted.find(root, ONE) is None
    small_records.demoted.add(root, ONE, OTHER)
    assert small_records.demoted.find(root, ONE) == OTHER
    assert small_records.demoted.find(root, OTHER) is None
    small_records.demoted.add(root, ONE, "3" * 64)
    assert small_records.demoted.find(root, ONE) == "3" * 64
    LocalStore(root).clear()
    assert small_records.demoted.find(root, ONE) is None


@pytest.mark.parametrize("content", [b"", b"2" * 63, b"\xff" * 64, b"../../etc/passwd", b"2" * 65])
def test_what_is_no_key_is_nothing(root: str, content: bytes) -> None:
    small_records.demoted.add(root, ONE, OTHER)
    path = Path(root, "slower", ONE)
    path.write_bytes(content)
    assert small_records.demoted.find(root, ONE) is None


def test_somebody_else_s_word_is_not_taken(root: str) -> None:
    small_records.demoted.add(root, ONE, OTHER)
    os.chmod(Path(root, "slower", ONE), 0o666)
    assert small_records.demoted.find(root, ONE) is None


def test_what_can_not_be_remembered_says_so(root: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        small_records.demoted.add(root, "../x", OTHER)
    Path(root).mkdir(mode=0o700, exist_ok=True)
    Path(root, "slower").write_text("in the way")
    with pytest.raises(StoreError):
        small_records.demoted.add(root, ONE, OTHER)


# ---------------------------------------------------------------- lowered graphs


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "store"))


def record(store: LocalStore, entry: Entry) -> None:
    small_records.lowered.add(store.root, GRAPH, (entry.key, entry.name))


def entry_of(store: LocalStore, graph: str) -> Entry | None:
    address = small_records.lowered.find(store.root, graph)
    return store.entry(*address) if address is not None else None


def published(store: LocalStore, guards: list[object] | None = None) -> Entry:
    return store.publish(Entry(key=KEY, guards=guards or []), {"result": b"code"})


def test_an_entry_is_known_until_it_is_removed(store: LocalStore) -> None:
    assert entry_of(store, GRAPH) is None
    first, second = published(store), published(store, [["LessThan", 1, 2]])
    record(store, first)
    assert entry_of(store, GRAPH) == first
    record(store, second)
    assert entry_of(store, GRAPH) == second
    assert entry_of(store, KEY) is None
    store.remove(KEY, second.name)
    assert entry_of(store, GRAPH) is None
    record(store, first)
    store.clear()
    assert not Path(store.root, "lowered").exists()


def test_an_entry_without_its_code_is_not_returned(store: LocalStore) -> None:
    entry = published(store)
    record(store, entry)
    path = layout.blob_path(store.root, entry.blobs["result"])
    assert path is not None
    os.unlink(path)
    assert entry_of(store, GRAPH) is None


@pytest.mark.parametrize("content", [b"", b"x", b"\xff" * 64, b"../../etc/passwd name", KEY.encode(), b" "])
def test_damaged_records_say_nothing(store: LocalStore, content: bytes) -> None:
    record(store, published(store))
    Path(store.root, "lowered", GRAPH).write_bytes(content)
    assert entry_of(store, GRAPH) is None


def test_a_record_that_others_can_write_is_not_used(store: LocalStore) -> None:
    record(store, published(store))
    os.chmod(Path(store.root, "lowered", GRAPH), 0o666)
    assert entry_of(store, GRAPH) is None


def test_errors_of_writing(store: LocalStore) -> None:
    entry = published(store)
    with pytest.raises(ValueError, match="is not a key"):
        small_records.lowered.add(store.root, "../x", (entry.key, entry.name))
    Path(store.root, "lowered").write_text("in the way")
    with pytest.raises(StoreError):
        record(store, entry)
