"""What is listed of a store by who looks again and again: only what is new is read, and uses are seen."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from fxpool.codecache.store import catalogue
from fxpool.codecache.store.catalogue import load
from fxpool.codecache.store.entry import Component, Entry, Metadata, Origin, decode_entry
from fxpool.codecache.store.listing import Listing, Row, why_made
from fxpool.codecache.store.store import LocalStore


def publish(store: LocalStore, number: int, **facts: Any) -> Entry:
    origin = Origin(function="step", file="train.py", line=3, inputs=["float32[8]"], parameters=2)
    components = [Component("graph", hashlib.sha256(str(number).encode()).hexdigest(), "text " * 100)]
    entry = Entry(
        key=hashlib.sha256(b"key %d" % number).hexdigest(),
        components=components,
        metadata=Metadata(f"graph {number}", 1e9 + number, 2.0, "2.13.0", origin=facts.pop("origin", origin)),
    )
    return store.publish(entry, {"module": b"x" * 100})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "c"))


def test_what_is_new_or_gone_is_told_once(store: LocalStore) -> None:
    seen = Listing(store.root)
    assert not seen.look() and seen.since(0) == ([], [])
    first = publish(store, 1)
    assert seen.look() and not seen.look()
    ((row,), removed) = seen.since(0)
    meta = row.metadata
    assert (meta.label, meta.source.described, meta.compile_seconds) == ("graph 1", "step, train.py:3", 2.0)
    assert row.bytes > 100 and meta.source.inputs == ["float32[8]"] and removed == []
    latest = seen.latest
    publish(store, 2)
    store.remove(first.key)
    assert seen.look()
    ((row,), removed) = seen.since(latest)
    assert row.metadata.label == "graph 2" and removed == [(first.key, first.name)]


def test_a_use_is_seen_without_reading(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = publish(store, 1)
    seen = Listing(store.root)
    seen.look()
    (path,) = Path(store.root).rglob("*.entry")
    reads: list[bytes] = []

    def read(data: bytes) -> Entry:
        reads.append(data)
        return decode_entry(data)

    monkeypatch.setattr(catalogue, "decode_entry", read)
    os.utime(path, (path.stat().st_atime, path.stat().st_mtime + 5))
    assert seen.look()
    ((row,), _) = seen.since(0)
    assert row.uses == 1 and not reads
    publish(store, 1)
    assert seen.look() and reads, "the same entry, written again, is read again"
    assert load(store.root, entry.key, entry.name) == entry


def test_what_can_t_be_read_is_listed_as_such(store: LocalStore) -> None:
    publish(store, 1)
    entry = publish(store, 2)
    (path,) = Path(store.root).rglob(f"{entry.key}/*.entry")
    path.write_bytes(b"rubbish")
    (path.parent / "notes.txt").write_text("not an entry")
    seen = Listing(store.root)
    seen.look()
    assert sorted(row.readable for row in seen.since(0)[0]) == [False, True]
    assert load(store.root, entry.key, entry.name) is None
    with pytest.raises(ValueError):
        load(store.root, "../../etc/passwd", entry.name)


def row(number: int, function: str = "step", **digests: str) -> Row:
    metadata = Metadata("g", created=float(number), origin=Origin(function=function))
    return Row(key=str(number), name="n", metadata=metadata, digests=digests)


def test_why_an_entry_was_made() -> None:
    first, second, third = row(1, graph="a", inputs="a"), row(2, graph="b", inputs="b"), row(3, graph="a", inputs="b")
    assert why_made(first, [first, second, third]) is None, "the first of its function"
    assert why_made(second, [first, third]) == (first, ["graph", "inputs"])
    assert why_made(third, [first, second]) == (second, ["graph"]), "of two as near, the later one"
    assert why_made(row(4, graph="a", inputs="a"), [first]) == (first, ["guards"])
    other = row(0, "another", graph="a", inputs="a")
    assert why_made(first, [other]) is None
