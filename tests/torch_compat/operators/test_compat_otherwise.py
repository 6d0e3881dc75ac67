"""`operator_overrides` ends a compile that meets an operator for which the program registered something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxpool.torch_compat.operators.operator_overrides import (
    MetError,
    OperatorOverride,
    forget_what_was_gathered,
    watched,
)
from fxpool.torch_compat.operators.operator_tables import DECOMPOSED, LOWERED

aten = torch.ops.aten


def test_a_lowering_that_is_watched_ends_the_compile() -> None:
    from torch._inductor.lowering import lowerings

    before = lowerings[aten.sin.default], lowerings[aten.cos.default]
    with watched([OperatorOverride(LOWERED, "aten.sin.default", "mine")]) as first_met:
        assert first_met() == ""
        assert lowerings[aten.cos.default] is before[1]
        with pytest.raises(MetError, match="mine"):
            lowerings[aten.sin.default](3)
        assert first_met() == "mine"
    assert (lowerings[aten.sin.default], lowerings[aten.cos.default]) == before


def test_inductor_lowers_by_the_watched_table() -> None:
    """The whole compile of a tiny graph up to its lowering: the error comes out of torch, and is known as the cause."""
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    gm = make_fx(lambda x: torch.sin(x) * 2, tracing_mode="fake")(torch.ones(8))
    (placeholder,) = gm.graph.find_nodes(op="placeholder")
    fake = placeholder.meta["val"]
    for name, expected in (("aten.sin.default", "mine"), ("aten.cos.default", "")):
        lowering = GraphLowering(gm, example_inputs=[fake], shape_env=fake.fake_mode.shape_env)
        with watched([OperatorOverride(LOWERED, name, "mine")]) as first_met:
            with V.set_graph_handler(lowering), V.set_fake_mode(fake.fake_mode):
                if expected:
                    with pytest.raises(Exception, match="mine"):
                        lowering.run(fake)
                else:
                    lowering.run(fake)
            assert first_met() == expected


def test_a_decomposition_is_watched_in_all_tables() -> None:
    from torch._inductor import decomposition

    with watched([OperatorOverride(DECOMPOSED, "aten.addmm.default", "mine")]) as first_met:
        with pytest.raises(MetError):
            decomposition.select_decomp_table()[aten.addmm.default]()
        assert first_met() == "mine"
    with decomposition.config.patch(fallback_random=False):
        for name in map(str, decomposition.extra_random_decomps):
            with watched([OperatorOverride(DECOMPOSED, name, "random")]) as first_met:
                table = decomposition.select_decomp_table()
                (key,) = [key for key in decomposition.extra_random_decomps if str(key) == name]
                with pytest.raises(MetError):
                    table[key]()
                assert first_met() == "random"


def test_an_operator_without_an_entry_gets_one_for_a_while() -> None:
    from torch._inductor.lowering import lowerings

    library = torch.library.Library("compat_otherwise", "FRAGMENT")
    try:
        library.define("mine(Tensor x) -> Tensor")
        mine = torch.ops.compat_otherwise.mine.default
        with watched([OperatorOverride(LOWERED, "compat_otherwise.mine.default", "registered")]) as first_met:
            with pytest.raises(MetError):
                lowerings[mine]()
            assert first_met() == "registered"
        assert mine not in lowerings
    finally:
        library._destroy()


def test_an_operator_that_is_made_meanwhile_was_met() -> None:
    with watched([OperatorOverride(LOWERED, "compat_otherwise.late.default", "late")]) as first_met:
        assert first_met() == ""
        library = torch.library.Library("compat_otherwise", "FRAGMENT")
        try:
            library.define("late(Tensor x) -> Tensor")
            assert first_met() == "late"
        finally:
            library._destroy()


def test_what_was_gathered_from_tables_is_gathered_again() -> None:
    from torch._inductor import decomposition
    from torch._subclasses.fake_tensor import FakeTensorMode

    first = decomposition.fast_random_decomps()
    assert decomposition.fast_random_decomps() is first
    with FakeTensorMode() as mode:
        x: Any = torch.ones(3)
        torch.sin(x)
        torch.sin(x)
    assert mode.cache_info().size > 0
    forget_what_was_gathered()
    assert decomposition.fast_random_decomps() is not first
    assert mode.cache_info().size == 0
