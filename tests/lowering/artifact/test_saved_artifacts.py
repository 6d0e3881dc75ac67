"""`torch.compiler.save_cache_artifacts()` takes entries along, and `load_cache_artifacts()` brings them back."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import artifacts_child
import pytest
import torch
from compiling import compiled
from processes import run_python
from torch.compiler._cache import CacheArtifactManager

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.core.runtime import runtime
from fxpool.torch_compat.inductor import cache_artifacts

SCRIPT = artifacts_child.__file__


@pytest.fixture(autouse=True)
def _no_other_artifacts() -> Iterator[None]:
    with CacheArtifactManager.with_fresh_cache():
        yield


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """The cache directory of another machine: nothing in it."""
    return str(tmp_path / "elsewhere")


def child(what: str, path: Path, cache_dir: str, **environment: str) -> dict[str, Any]:
    # No pool: what is not in the cache would compile in the child, and be counted.
    said = run_python([SCRIPT, what, str(path)], FXPOOL_CACHE_DIR=cache_dir, FXPOOL_POOL="off", **environment)
    return json.loads(said.strip().splitlines()[-1])


def saved() -> tuple[bytes, Any]:
    made = torch.compiler.save_cache_artifacts()
    assert made is not None
    return made


def load_into(directory: str, data: bytes, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("FXPOOL_CACHE_DIR", directory)
    runtime.forget_stores()
    return torch.compiler.load_cache_artifacts(data)


def sines(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(-1)


def cosines(x: torch.Tensor) -> torch.Tensor:
    return x.cos().sum(-1)


def test_an_unmodified_script_hits_on_another_machine(cache: Path, tmp_path: Path, elsewhere: str) -> None:
    """Two processes, two cache directories, and one file between them."""
    path = tmp_path / "artifacts"
    first = json.loads(run_python([SCRIPT, "save", str(path)]).strip().splitlines()[-1])
    assert first["stats"]["compiles"] == {"worker": 1, "in_process": 0}
    keys = first["info"]["fxpool"]
    assert len(keys) == 1
    cache.rename(tmp_path / "gone")  # the server may still write to it
    second = child("load", path, elsewhere)
    assert second["info"]["fxpool"] == keys
    assert second["stats"]["hits"] == 1 and second["stats"]["misses"] == 0
    assert second["stats"]["compiles"] == {"worker": 0, "in_process": 0}
    assert second["stats"]["bypasses"] == {} and second["stats"]["fallbacks"] == {}

    # Torch was told to call nobody when it is imported: then looking the backend up is enough.
    late = child("late", path, f"{elsewhere}-late", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert late["stats"]["hits"] == 1 and late["info"]["fxpool"] == keys


@pytest.mark.slow
def test_artifacts_of_inductors_own_go_along(
    shared_pool: Path, cache: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 8)
    compiled(sines, x)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(cosines)(x), cosines(x))  # stock
    data, info = saved()
    assert len(info.fxpool_artifacts) == 1 and len(info.inductor_artifacts) == 1
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", elsewhere + "-i2")
    loaded = load_into(elsewhere, data, monkeypatch)
    assert loaded.fxpool_artifacts == info.fxpool_artifacts
    assert loaded.inductor_artifacts == info.inductor_artifacts
    assert os.listdir(elsewhere + "-i2/fxgraph")
    assert LocalStore(elsewhere).sizes()["entries"] == 1


@pytest.mark.slow
def test_a_second_save_has_what_the_first_had(
    shared_pool: Path, cache: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 8)
    compiled(sines, x)
    _, first = saved()
    compiled(sines, x)  # a hit: the same entry, recorded once
    assert saved()[1].fxpool_artifacts == first.fxpool_artifacts
    compiled(cosines, x)
    data, second = saved()
    assert fxpool.stats()["hits"] == 1 and fxpool.stats()["entries_written"] == 2
    assert len(second.fxpool_artifacts) == 2 and second.fxpool_artifacts[:1] == first.fxpool_artifacts
    loaded = load_into(elsewhere, data, monkeypatch)
    assert loaded.fxpool_artifacts == second.fxpool_artifacts
    store = LocalStore(elsewhere)
    assert sorted(one.key for one in store.scan()) == sorted(second.fxpool_artifacts)
    assert all(one.entry is not None and store.complete(one.entry) for one in store.scan())


@pytest.mark.slow
def test_a_served_entry_is_saved_and_one_that_is_gone_is_not(
    shared_pool: Path, cache: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(4, 8)
    compiled(sines, x)
    compiled(cosines, x)
    CacheArtifactManager.clear()
    compiled(sines, x)
    compiled(cosines, x)
    store = runtime.store()
    assert store is not None and fxpool.stats()["hits"] == 2
    gone = next(iter(store.scan()))
    store.remove(gone.key)
    data, info = saved()
    assert fxpool.stats()["bypasses"] == {"artifact_not_saved": 1}
    assert gone.key in info.fxpool_artifacts, "torch asks for names first"
    load_into(elsewhere, data, monkeypatch)
    left = [one.key for one in LocalStore(elsewhere).scan()]
    assert len(left) == 1 and gone.key not in left


@pytest.mark.slow
def test_damaged_bytes_bring_nothing(
    shared_pool: Path, cache: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(sines, torch.randn(4, 8))
    data, _ = saved()
    for end in (len(data) - 1, len(data) // 2, 3, 0):
        assert load_into(elsewhere, data[:end], monkeypatch) is None
    # Torch's checksum holds, ours does not.
    entry = next(iter(LocalStore(str(cache)).scan()))
    artifact = next(iter(CacheArtifactManager._seen_artifacts))
    whole = artifact.content
    for number, content in enumerate((whole[:-1], whole[: len(whole) // 2], b"\0" + whole[1:], b"nothing"), 1):
        CacheArtifactManager.clear()
        CacheArtifactManager.record_artifact(cache_artifacts.TYPE, entry.key, content)
        with pytest.warns(RuntimeWarning, match="could not add a graph to the cache"):
            load_into(elsewhere, saved()[0], monkeypatch)
        assert fxpool.stats()["bypasses"] == {"artifact_not_loaded": number}
    assert not os.path.exists(elsewhere)


@pytest.mark.slow
def test_a_directory_that_can_not_be_written(
    shared_pool: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(sines, torch.randn(4, 8))
    data, _ = saved()
    (tmp_path / "file").write_bytes(b"")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        info = load_into(str(tmp_path / "file" / "below"), data, monkeypatch)
    assert info is not None and any("fxpool: " in str(one.message) for one in said)
