"""`cache_artifacts` puts fxpool's entries among those of ``torch.compiler.save_cache_artifacts()``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.compiler import _cache

from fxpool.torch_compat.inductor import cache_artifacts
from fxpool.torch_compat.inductor.cache_artifacts import TYPE


class Store:
    """What stands for the entries of a cache directory."""

    def __init__(self) -> None:
        self.entries = {"one": b"1", "two": b"22"}
        self.read: list[Any] = []
        self.restored: list[tuple[str, bytes]] = []

    def bytes_of(self, reference: Any) -> bytes:
        self.read.append(reference)
        return self.entries[reference]

    def restore(self, key: str, content: bytes) -> None:
        self.restored.append((key, content))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store whose type torch knows, and no artifacts of others."""
    factory = _cache.CacheArtifactFactory
    types = {name: kind for name, kind in factory._artifact_types.items() if name != TYPE}
    monkeypatch.setattr(factory, "_artifact_types", types)
    made = Store()
    with _cache.CacheArtifactManager.with_fresh_cache():
        assert cache_artifacts.register(made.bytes_of, made.restore)
        yield made


def saved() -> bytes:
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    data: bytes = artifacts[0]
    return data


def test_recorded_entries_are_read_when_the_program_saves_and_restored_when_it_loads(store: Store) -> None:
    assert cache_artifacts.record("key 1", "one") and cache_artifacts.record("key 2", "two")
    assert cache_artifacts.record("key 1", "one")  # it is there once
    assert store.read == []
    data = saved()
    assert sorted(set(store.read)) == ["one", "two"]
    with _cache.CacheArtifactManager.with_fresh_cache():
        info = torch.compiler.load_cache_artifacts(data)
        assert info is not None and sorted(info.artifacts[TYPE]) == ["key 1", "key 2"]
    assert sorted(store.restored) == [("key 1", b"1"), ("key 2", b"22")]


def test_a_second_save_has_what_the_first_had_and_what_is_new(store: Store) -> None:
    """torch loads only the last list of a type in a file."""
    cache_artifacts.record("key 1", "one")
    saved()
    cache_artifacts.record("key 2", "two")
    data = saved()
    with _cache.CacheArtifactManager.with_fresh_cache():
        torch.compiler.load_cache_artifacts(data)
    assert sorted(store.restored) == [("key 1", b"1"), ("key 2", b"22")]


def test_a_type_is_registered_once(store: Store) -> None:
    kind = _cache.CacheArtifactFactory._artifact_types[TYPE]
    assert cache_artifacts.register(store.bytes_of, store.restore)
    assert _cache.CacheArtifactFactory._artifact_types[TYPE] is kind
    assert kind.type() == TYPE and issubclass(kind, _cache.CacheArtifact)


def test_a_torch_that_is_built_otherwise_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(_cache.CacheArtifactFactory, "_artifact_types")
    assert cache_artifacts.register(lambda reference: b"", lambda key, content: None) is False
    assert cache_artifacts.record("key", "one") is False


def test_equal_references_are_equal_artifacts(store: Store) -> None:
    kind = _cache.CacheArtifactFactory._artifact_types[TYPE]
    assert kind("k", "one") == kind("k", "one") != kind("k", "two")
    assert hash(kind("k", "one")) == hash(kind("k", "one"))
    assert kind("k", "one").content == b"1" and kind("k", b"loaded").content == b"loaded"
