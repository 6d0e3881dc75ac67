"""Full collections leave out the program's objects while Dynamo compiles, and only then."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo import callback, utils

from fxpool.torch_compat.dynamo import frozen_objects

pytestmark = pytest.mark.skipif(hasattr(utils, "deferred_full_gc"), reason="this torch does it")


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    handler = callback.callback_handler
    monkeypatch.setattr(frozen_objects, "_freezing", None)
    monkeypatch.setattr(handler, "start_callbacks", list(handler.start_callbacks))
    monkeypatch.setattr(handler, "end_callbacks", list(handler.end_callbacks))
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    torch._dynamo.reset()


def compiled(during: Callable[[], None] = lambda: None) -> list[bool]:
    """Compile a function of two graphs; return for each compile whether objects were frozen in it."""
    seen = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        seen.append(gc.get_freeze_count() > 1000)
        during()
        return gm.forward

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        torch._dynamo.graph_break()
        return y * 2

    torch.compile(function, backend=backend)(torch.ones(2))
    return seen


def test_objects_are_frozen_while_it_compiles() -> None:
    frozen_objects.freeze_while_compiling(lambda: True)
    frozen_objects.freeze_while_compiling(lambda: True)
    assert compiled() == [True] * 2
    assert not gc.get_freeze_count()


def test_an_error_ends_it_too() -> None:
    frozen_objects.freeze_while_compiling(lambda: True)

    def fail() -> None:
        raise ValueError("no backend")

    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed):
        compiled(fail)
    assert not gc.get_freeze_count()


def test_code_that_is_traced_finds_its_thresholds() -> None:
    """A program may compute with them, and its code runs while AOTAutograd traces it in the program's process."""
    frozen_objects.freeze_while_compiling(lambda: True)
    gc.set_threshold(700, 10, 7)
    found = []
    compiled(lambda: found.append(gc.get_threshold()))
    assert found == [(700, 10, 7)] * 2
    compiled(lambda: gc.set_threshold(500, 5, 5))
    assert gc.get_threshold() == (500, 5, 5)


def test_what_the_program_froze_stays_frozen() -> None:
    frozen_objects.freeze_while_compiling(lambda: True)
    gc.freeze()
    frozen = gc.get_freeze_count()
    compiled()
    assert frozen - 1000 < gc.get_freeze_count() <= frozen


@pytest.mark.parametrize(("wanted", "third"), [(False, 7), (True, 0)])
def test_nothing_is_frozen_if_that_is_off_or_there_are_no_full_collections(wanted: bool, third: int) -> None:
    frozen_objects.freeze_while_compiling(lambda: wanted)
    gc.set_threshold(700, 10, third)
    assert compiled() == [False] * 2


def test_nothing_is_frozen_for_a_program_that_collects_by_itself() -> None:
    frozen_objects.freeze_while_compiling(lambda: True)
    gc.disable()
    try:
        assert compiled() == [False] * 2
    finally:
        gc.enable()


def test_the_compile_of_the_first_call_is_covered() -> None:
    frozen = []

    def begin() -> None:
        frozen_objects.freeze_while_compiling(lambda: True)
        frozen.append(gc.get_freeze_count() > 1000)

    assert compiled(begin) == [False, True]
    assert frozen == [True, True]
    assert not gc.get_freeze_count()


def test_nothing_changes_outside_of_compiles() -> None:
    frozen_objects.freeze_while_compiling(lambda: True)
    assert not gc.get_freeze_count()
