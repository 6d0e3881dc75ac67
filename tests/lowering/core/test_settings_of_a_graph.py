"""A graph is compiled under the settings that are in force when its compile starts: a later change is for the next."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import fxpool
from fxpool.codecache.store.store import LocalStore
from fxpool.lowering.artifact import lookup
from fxpool.lowering.artifact.entry_parts import REQUEST


def compiled(function: torch.nn.Module) -> None:
    torch._dynamo.reset()
    x = torch.randn(6, 8)
    with torch.no_grad():
        torch.testing.assert_close(torch.compile(function, backend="fxpool")(x), function(x))


@pytest.mark.slow
def test_a_setting_that_changes_after_the_lookup_is_for_the_next_graph(
    shared_pool: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count_miss, other = lookup.Search.count_miss, tmp_path / "other"

    def change(search: lookup.Search) -> None:
        count_miss(search)
        fxpool.configure(cache_dir=other, keep_requests=True, capture=tmp_path / "captures", cache_min_seconds=1e6)

    monkeypatch.setattr(lookup.Search, "count_miss", change)
    compiled(torch.nn.Softplus())
    (stored,) = LocalStore(str(cache)).scan()
    assert stored.entry is not None and REQUEST not in stored.entry.blobs
    assert not other.exists() and not (tmp_path / "captures").exists()
    assert fxpool.stats()["graphs"][-1]["outcome"] == "worker"
    fxpool.configure(capture=None, cache_min_seconds=0.0)
    compiled(torch.nn.Softplus())
    (stored,) = LocalStore(str(other)).scan()
    assert stored.entry is not None and REQUEST in stored.entry.blobs
