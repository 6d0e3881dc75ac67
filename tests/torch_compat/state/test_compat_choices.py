"""`inductor_choices` captures how a program has Inductor tile, fuse and tune kernels, and applies it in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor import choices as torchs
from torch._inductor.virtualized import V

from fxpool.torch_compat import versions
from fxpool.torch_compat.state import inductor_choices

SINCE_2_15 = pytest.mark.skipif(
    versions.parse(torch.__version__) < (2, 15), reason="choices are registered by name since torch 2.15"
)


class Mine(torchs.InductorChoices):
    def uuid(self) -> str:
        return "mine"


class Other(Mine):
    def uuid(self) -> str:
        return "other"


@pytest.fixture(autouse=True)
def _no_handler_before() -> Iterator[None]:
    with V.set_choices_handler(None):
        yield


def test_an_ordinary_program_sets_nothing() -> None:
    assert inductor_choices.captured() == {}
    with V.set_choices_handler(torchs.InductorChoices()):  # as torch makes one where a compile needs it
        assert inductor_choices.captured() == {}


def test_a_handler_that_the_program_set_is_captured() -> None:
    mine = Mine()
    with V.set_choices_handler(mine):
        assert inductor_choices.captured() == {inductor_choices.HANDLER: mine}


def test_a_handler_that_the_configured_factory_makes_is_not() -> None:
    """A thread that has compiled has one, another does not yet."""
    with inductor_config.patch(inductor_choices_class=Mine):
        with V.set_choices_handler(Mine()):
            assert inductor_choices.captured() == {}
        with V.set_choices_handler(Other()):
            assert list(inductor_choices.captured()) == [inductor_choices.HANDLER]


def test_choices_are_entered_and_left() -> None:
    mine = Mine()
    with inductor_choices.entered({inductor_choices.HANDLER: mine}):
        assert V.choices is mine
    assert inductor_choices.captured() == {}
    with inductor_choices.entered({"inductor.inductor_choices_class": Other}):
        assert type(V.choices) is Other
    with V.set_choices_handler(mine):
        with inductor_choices.entered({}):  # a thread that compiled before has kept others
            assert type(V.choices) is torchs.InductorChoices
        assert V.choices is mine


@SINCE_2_15
def test_registered_factories_are_captured_and_entered() -> None:
    with inductor_choices.entered({inductor_choices.REGISTERED: [["compat", Mine]]}):
        assert inductor_choices.captured() == {inductor_choices.REGISTERED: [["compat", Mine]]}
        assert inductor_choices._described(V.choices)[0][0] is Mine
    assert inductor_choices.captured() == {}


@SINCE_2_15
def test_a_composed_handler_is_its_parts() -> None:
    parts = [Mine(), Other()]
    with inductor_choices.entered({inductor_choices.HANDLER: parts}):
        assert inductor_choices.captured() == {inductor_choices.HANDLER: parts}


def test_only_newer_releases_register_factories() -> None:
    newer = versions.parse(torch.__version__) >= (2, 15)
    names = ("_registered_inductor_choices", "_ComposedInductorChoices", "_create_inductor_choices")
    assert [hasattr(torchs, name) for name in names] == [newer] * 3


def test_a_thread_s_handler_is_read_where_torch_keeps_it() -> None:
    from torch._inductor import virtualized

    mine: Any = Mine()
    with V.set_choices_handler(mine):
        assert getattr(virtualized.threadlocal, virtualized._choices._key) is mine
