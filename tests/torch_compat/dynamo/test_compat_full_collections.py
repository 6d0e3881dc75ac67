"""Full collections wait while Dynamo compiles, and only then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import callback, utils

from fxpool.torch_compat.dynamo import full_collections

pytestmark = pytest.mark.skipif(hasattr(utils, "deferred_full_gc"), reason="this torch does it")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler = callback.callback_handler
    monkeypatch.setattr(full_collections, "_deferral", None)
    monkeypatch.setattr(handler, "start_callbacks", list(handler.start_callbacks))
    monkeypatch.setattr(handler, "end_callbacks", list(handler.end_callbacks))
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    torch._dynamo.reset()


def compiled(during: Callable[[], None] = lambda: None) -> list[int]:
    """Compile a function of two graphs; return the third threshold during each compile."""
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append(gc.get_threshold()[2])
        during()
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    torch.compile(function, backend=backend)(torch.ones(2))
    return seen


def test_they_are_deferred_while_it_compiles() -> None:
    full_collections.defer(lambda: True)
    full_collections.defer(lambda: True)
    gc.set_threshold(700, 10, 7)
    assert compiled() == [full_collections._NEVER] * 2
    assert gc.get_threshold() == (700, 10, 7)


def test_an_error_ends_it_too() -> None:
    full_collections.defer(lambda: True)
    gc.set_threshold(700, 10, 7)

    def fail() -> None:
        raise ValueError("no backend")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compiled(fail)
    assert gc.get_threshold() == (700, 10, 7)


def test_thresholds_that_the_program_sets_stay() -> None:
    full_collections.defer(lambda: True)
    gc.set_threshold(700, 10, 7)
    compiled(lambda: gc.set_threshold(500, 5, 5))
    assert gc.get_threshold() == (500, 5, 5)


@pytest.mark.parametrize(("wanted", "third"), [(False, 7), (True, 0)])
def test_nothing_is_deferred_if_that_is_off_or_there_are_none(wanted: bool, third: int) -> None:
    full_collections.defer(lambda: wanted)
    gc.set_threshold(700, 10, third)
    assert compiled() == [third] * 2
    assert gc.get_threshold() == (700, 10, third)


def test_the_compile_of_the_first_call_is_covered() -> None:
    gc.set_threshold(700, 10, 7)
    seen = compiled(lambda: full_collections.defer(lambda: True))
    assert seen == [7, full_collections._NEVER]
    assert gc.get_threshold() == (700, 10, 7)


def test_nothing_changes_outside_of_compiles() -> None:
    gc.set_threshold(700, 10, 7)
    full_collections.defer(lambda: True)
    assert gc.get_threshold() == (700, 10, 7)
