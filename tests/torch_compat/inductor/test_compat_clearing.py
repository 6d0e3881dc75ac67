"""`hooks` hears of the calls by which a program clears torch's caches: fxpool's entries go with them."""

from __future__ import annotations

from typing import Any

import pytest
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor.codecache import FxGraphCache

from fxpool.torch_compat.inductor import cache_artifacts


@pytest.fixture
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the classes whose caches were cleared, by torch's own functions first."""
    for owner in (FxGraphCache, AOTAutogradCache):
        monkeypatch.setattr(owner, "clear", vars(owner)["clear"])
    monkeypatch.setattr(cache_artifacts, "_watching", {})
    seen: list[str] = []
    cache_artifacts.watch_clearing(seen.append)
    return seen


def test_caches_that_are_cleared_are_named(cleared: list[str]) -> None:
    FxGraphCache.clear()
    AOTAutogradCache.clear()
    FxGraphCache().clear()  # by an instance
    assert cleared == ["FxGraphCache", "AOTAutogradCache", "FxGraphCache"]


def test_it_is_heard_once_however_often_it_is_watched(cleared: list[str]) -> None:
    cache_artifacts.watch_clearing(cleared.append)
    FxGraphCache.clear()
    assert cleared == ["FxGraphCache"]


def test_a_class_that_was_imported_before_is_heard(cleared: list[str]) -> None:
    from torch._inductor import codecache

    by_name: Any = codecache.FxGraphCache
    by_name.clear()
    assert cleared == ["FxGraphCache"]


@pytest.mark.parametrize("owner", [FxGraphCache, AOTAutogradCache])
def test_torch_s_method_takes_no_arguments(owner: Any) -> None:
    """So does what takes its place."""
    import inspect

    assert isinstance(vars(owner)["clear"], staticmethod)
    assert list(inspect.signature(owner.clear).parameters) == []
