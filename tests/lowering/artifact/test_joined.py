"""Results that were made for somebody else: taken if they fit this call, copied if they lie in another store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

import fxpool
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact import lookup, side_effects
from fxpool.lowering.artifact.entry_parts import Reference
from fxpool.lowering.compiling import remote
from fxpool.lowering.compiling.graph_compile import GraphCompile
from fxpool.lowering.core.runtime import runtime
from fxpool.pool import Job, JobSpec


def total(x: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * x.shape[0]).sum(0)


def run(size: int = 6, **more: Any) -> None:
    torch._dynamo.reset()
    x = torch.randn(size, 8)
    found = torch.compile(total, backend="fxpool", **more)(x)
    torch.testing.assert_close(found, total(x))


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks into the store comes a moment too early."""
    monkeypatch.setattr(lookup.Search, "candidates", lambda search: iter(()))


def counts() -> tuple[int, int, int]:
    stats = fxpool.stats()
    return stats["compiles"]["worker"], stats["joined"], stats["compiles"]["in_process"]


@pytest.mark.slow
def test_what_was_written_since_we_looked_is_not_compiled_again(shared_pool: Path, cache: Path, late: None) -> None:
    run()
    assert counts() == (1, 0, 0)
    run()
    assert counts() == (1, 1, 0)
    assert [graph["outcome"] for graph in fxpool.stats()["graphs"]] == ["worker", "joined"]
    assert fxpool.stats()["entries_written"] == 1


@pytest.mark.slow
def test_guards_of_what_was_written_are_looked_at(shared_pool: Path, cache: Path, late: None) -> None:
    run(6, dynamic=False)
    run(7, dynamic=False)
    assert counts() == (2, 0, 0)


@pytest.mark.slow
def test_what_could_not_be_loaded_is_not_taken_again(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run()
    load, refused = GraphCompile._load_entry, list[str]()

    def once(graph: GraphCompile, entry: Entry, store: LocalStore) -> Any:
        if not refused:
            refused.append(entry.name)
            return None
        return load(graph, entry, store)

    monkeypatch.setattr(GraphCompile, "_load_entry", once)
    run()
    assert len(refused) == 1
    assert counts() == (2, 0, 0)


@pytest.mark.slow
def test_a_shared_result_that_does_not_fit_is_made_for_this_call(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the job had been begun for other sizes: the guards of what it made do not hold here."""
    flights: list[str] = []
    submit = remote.submit

    def joined(request: Any, attempt: Any, flight: str, on_ask: Any) -> tuple[bytes, Any]:
        flights.append(flight)
        data, _ = submit(request, attempt, flight, on_ask)
        return data, SimpleNamespace(joined=len(flights) == 1, machine="")

    def hold(guards: Any, values: Any) -> bool:
        return len(flights) != 1

    monkeypatch.setattr(remote, "submit", joined)
    monkeypatch.setattr(side_effects, "guards_hold", hold)
    run()
    key = fxpool.stats()["graphs"][0]["key"]
    assert flights[0] == key
    assert flights[1].startswith(f"{key} ")
    assert fxpool.stats()["graphs"][0]["outcome"] == "joined"  # the worker found the entry, which fits after all


@pytest.mark.slow
def test_a_result_that_is_sent_itself_is_kept_here(
    shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody clears the cache whenever a worker has written to it."""
    published = lookup.published

    def cleared_before(reference: Reference, store: LocalStore) -> Entry | None:
        store.clear()
        return published(reference, store)

    monkeypatch.setattr(lookup, "published", cleared_before)
    run()
    key = fxpool.stats()["graphs"][0]["key"]
    assert key is not None
    (entry,) = LocalStore(str(cache)).entries(key)
    assert LocalStore(str(cache)).complete(entry)
    monkeypatch.setattr(lookup, "published", published)
    run()
    assert fxpool.stats()["hits"] == 1


@pytest.mark.slow
def test_jobs_are_named_by_the_graphs_key(shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named: list[str] = []
    submit = runtime.pool().submit

    def seen(function: str, payload: bytes, spec: JobSpec, **more: Any) -> Job:
        named.append(spec.dedup_key)
        return submit(function, payload, spec, **more)

    monkeypatch.setattr(runtime.pool(), "submit", seen)
    run()
    assert named[0] == fxpool.stats()["graphs"][0]["key"]


@pytest.fixture
def stores(tmp_path: Path) -> tuple[LocalStore, LocalStore]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir(mode=0o700)
    return LocalStore(str(tmp_path / "one")), LocalStore(str(tmp_path / "two"))


def test_an_entry_of_another_store_is_copied(stores: tuple[LocalStore, LocalStore]) -> None:
    theirs, mine = stores
    entry = theirs.publish(Entry(key="ab" * 32, content={"level": "aot"}), {"result": b"code", "kernels": b"library"})
    reference = Reference(store=theirs.root, key=entry.key, name=entry.name)
    copied = lookup.published(reference, mine)
    assert copied is not None and mine.complete(copied)
    assert {role: mine.read_blob(ref) for role, ref in copied.blobs.items()} == {
        "result": b"code",
        "kernels": b"library",
    }
    assert mine.entries(entry.key) == [copied] == [entry]
    assert lookup.published(msgspec.structs.replace(reference, key="cd" * 32), mine) is None
    assert lookup.published(msgspec.structs.replace(reference, store=theirs.root + "/none"), mine) is None
    theirs.remove_blob(entry.blobs["result"])
    mine.clear()
    assert lookup.published(reference, mine) is None
