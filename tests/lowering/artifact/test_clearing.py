"""A program that clears torch's caches on disk is not served by fxpool what it had before."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import compiled
from processes import run_python
from torch._inductor import config as inductor_config
from torch._inductor.codecache import FxGraphCache
from torch._inductor.utils import fresh_cache

import fxpool
from fxpool.codecache.store.store import LocalStore

X = torch.ones(4)

pytestmark = pytest.mark.usefixtures("shared_pool", "nothing_lowered_here")


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 7 + 1


def after_autograd(x: torch.Tensor) -> torch.Tensor:
    return x.cos() * 7 + 1


def hits(function: Callable[..., Any]) -> int:
    """How many hits compiling it gives as in a new process; for `after_autograd`, of a graph after AOTAutograd."""
    before = fxpool.counters.snapshot()["hits"]
    with torch.no_grad(), inductor_config.patch(freezing=function is after_autograd):
        compiled(function, X)
    return int(fxpool.counters.snapshot()["hits"]) - before


def test_clearing_inductor_s_cache_leaves_no_entry(cache: Path) -> None:
    assert [hits(whole), hits(after_autograd), hits(whole), hits(after_autograd)] == [0, 0, 1, 1]
    FxGraphCache.clear()
    assert LocalStore(str(cache)).sizes()["entries"] == 0
    assert (cache / "toolchain").exists()
    assert [hits(whole), hits(after_autograd), hits(whole)] == [0, 0, 1]


@pytest.mark.slow
def test_clearing_autograd_s_cache_leaves_graphs_after_it(cache: Path) -> None:
    assert [hits(whole), hits(after_autograd)] == [0, 0]
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache

    AOTAutogradCache.clear()
    assert [hits(whole), hits(after_autograd), hits(whole)] == [0, 1, 1]


@pytest.mark.slow
def test_inside_a_fresh_cache_only_that_is_cleared(cache: Path) -> None:
    assert hits(whole) == 0
    with fresh_cache():
        assert [hits(whole), hits(whole)] == [0, 1]
        FxGraphCache.clear()
        assert hits(whole) == 0
    assert hits(whole) == 1


@pytest.mark.slow
def test_a_base_is_left_alone_and_serves_nothing_more(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hits(whole) == 0
    shutil.copytree(cache / "entries", tmp_path / "base" / "entries")
    shutil.copytree(cache / "blobs", tmp_path / "base" / "blobs")
    (tmp_path / "base").chmod(0o700)
    LocalStore(str(cache)).clear()
    monkeypatch.setenv("FXPOOL_CACHE_BASE", str(tmp_path / "base"))
    assert hits(whole) == 1
    FxGraphCache.clear()
    assert hits(whole) == 0
    assert list((tmp_path / "base").glob("entries/*/*/*.entry"))


PROGRAM = """
import json, torch, fxpool
torch.compile(lambda x: x * 11 + 1, backend="fxpool")(torch.ones(3))
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache  # nobody has imported it here before
AOTAutogradCache.clear()
import inspect
assert "rmtree" in inspect.getsource(inspect.unwrap(AOTAutogradCache.clear))
print(json.dumps([fxpool.stats()["hits"], fxpool.stats()["store"]["entries"]]))
"""


@pytest.mark.slow
def test_a_class_that_is_imported_later(cache: Path) -> None:
    assert json.loads(run_python(["-c", PROGRAM]).splitlines()[-1]) == [0, 0]
