"""Dynamic shapes: which calls an entry serves, in other processes too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from compiling import compiled_total, total

import fxpool
from fxpool.codecache.guards import guards
from fxpool.codecache.store.store import LocalStore

Child = Callable[..., dict[str, Any]]


@pytest.mark.slow
def test_batches_inside_the_guards_hit_and_outside_miss(
    child: Child, inductor: Any, tmp_path: Path, cache: Path
) -> None:
    """GPT-2 with a dynamic batch, each call in a fresh process: cold at 4, served at 6, beyond a guard at 450.

    The loss is a graph of its own; Inductor guards on the length of its reduction (10 * batch <= 4096).
    """
    asked: dict[str, Any] = {"what": ["infer"], "dynamic_batch": True}
    inductor.begin("gpt2", batch=6, **asked)
    cold = child("gpt2", batch=4, **asked)
    graphs = cold["stats"]["misses"]
    assert graphs == cold["stats"]["entries_written"] == cold["stats"]["compiles"]["worker"] == 2
    inside = child("gpt2", batch=6, save=str(tmp_path / "6.pt"), **asked)
    assert (inside["stats"]["hits"], inside["stats"]["misses"], inside["stats"]["guard_misses"]) == (graphs, 0, 0)
    assert inside["stats"]["compiles"] == {"worker": 0, "in_process": 0}
    assert (inside["lowerings"], inside["children"]) == (0, [])
    expected = inductor("gpt2", batch=6, **asked)
    torch.testing.assert_close(torch.load(tmp_path / "6.pt"), expected, rtol=1e-4, atol=1e-5)
    outside = child("gpt2", batch=450, save=str(tmp_path / "450.pt"), **asked)
    assert (outside["stats"]["hits"], outside["stats"]["guard_misses"]) == (graphs - 1, 1)
    assert outside["stats"]["compiles"] == {"worker": 1, "in_process": 0}
    assert len(list(cache.glob("entries/*/*/*.entry"))) == graphs + 1


def test_a_guard_of_lowering_makes_a_second_entry_under_one_key(shared_pool: Path, cache: Path) -> None:
    """Inductor guards on the length of a reduction (4096): the same graph beyond it is another entry."""
    compiled_total(4, 100)
    compiled_total(6, 200)
    stats = fxpool.stats()
    assert (stats["misses"], stats["hits"], stats["guard_misses"]) == (1, 1, 0)
    compiled_total(4, 5000)
    stats = fxpool.stats()
    assert (stats["misses"], stats["hits"], stats["guard_misses"]) == (1, 1, 1)
    compiled_total(5, 6000)
    compiled_total(7, 300)
    stats = fxpool.stats()
    assert (stats["hits"], stats["guard_misses"], stats["entries_written"]) == (3, 1, 2)
    entries = [stored.entry for stored in LocalStore(str(cache)).scan() if stored.entry is not None]
    assert len({entry.key for entry in entries}) == 1
    assert len(entries) == 2
    assert all(entry.guards for entry in entries)


def test_guards_of_a_hit_are_added_to_the_callers_shapes(shared_pool: Path, cache: Path) -> None:
    """Served code must not be run beyond its guards: Dynamo has to know them, as after a compile."""
    compiled_total(4, 100)
    torch._dynamo.reset()
    function = torch.compile(total, backend="fxpool", dynamic=True)
    for columns in (120, 5000, 140):
        x = torch.randn(3, columns)
        torch.testing.assert_close(function(x), total(x), rtol=1e-4, atol=1e-4)
    stats = fxpool.stats()
    assert stats["hits"] == 1
    assert stats["misses"] + stats["guard_misses"] == 2, "5000 columns went through Dynamo again"


def _weighted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Without a reduction in its forward; the weight's gradient is a sum of rows."""
    return (x * weight).sin()


def _stepped(call: Callable[..., torch.Tensor], rows: int) -> None:
    x, weight = torch.randn(rows, 16), torch.ones(16, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    (got,) = torch.autograd.grad(call(x, weight).sum(), weight)
    (expected,) = torch.autograd.grad(_weighted(x, weight).sum(), weight)
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_guard_of_the_backward_is_the_entrys(shared_pool: Path, cache: Path, nothing_lowered_here: None) -> None:
    """Both parts are one entry: a forward that would fit is not served where its backward does not."""
    for rows, expected in ((8, (1, 0, 0)), (40, (1, 1, 0)), (5000, (1, 1, 1)), (6000, (1, 2, 1))):
        torch._dynamo.reset()
        call = torch.compile(_weighted, backend="fxpool")
        _stepped(call, rows)
        stats = fxpool.stats()
        assert (stats["misses"], stats["hits"], stats["guard_misses"]) == expected
    _stepped(call, 9)  # outside of its guards, which Dynamo knows of: another compile, another hit
    stats = fxpool.stats()
    assert (stats["misses"], stats["hits"], stats["guard_misses"]) == (1, 3, 1)
    assert stats["compiles"] == {"worker": 2, "in_process": 0}


@pytest.mark.slow
def test_guards_are_kept_as_expressions(shared_pool: Path, cache: Path) -> None:
    compiled_total(4, 100)
    (stored,) = LocalStore(str(cache)).scan()
    assert stored.entry is not None
    assert all("4096" in guards.render(guard) or guards.free_symbol_names(guard) for guard in stored.entry.guards)
