"""The way of a graph end to end under changed circumstances: what must be compiled again, and what must not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from circumstances import attention, import_operator, setting, states

import fxpool

Q = torch.linspace(-1, 1, 256).view(1, 2, 8, 16)


def counts_of(function: Callable[[torch.Tensor], torch.Tensor], mode: str = "subprocess") -> tuple[int, int]:
    """(hits, misses) of one call, whose numbers must be eager's."""
    torch._dynamo.reset()
    before = fxpool.stats()
    found, expected = torch.compile(function, backend="fxpool", options={"mode": mode})(Q), function(Q)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)  # half precision among them
    assert found.dtype == expected.dtype
    after = fxpool.stats()
    assert after["fallbacks"] == {}
    here = after["compiles"]["in_process"] - before["compiles"]["in_process"]
    assert here == (0 if mode == "subprocess" else after["misses"] - before["misses"])
    return after["hits"] - before["hits"], after["misses"] - before["misses"]


def test_a_changed_state_is_compiled_again(shared_pool: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts_of(attention) == (0, 1)
    monkeypatch.setenv("A_VARIABLE_THAT_DOES_NOT_MATTER", "1")
    assert counts_of(attention) == (1, 0)
    for name in ("inductor option", "SDPA backend"):
        with states()[name]():
            assert (name, counts_of(attention)) == (name, (0, 1))
            assert (name, counts_of(attention)) == (name, (1, 0))
    assert counts_of(attention) == (1, 0)


def in_low_precision(q: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu"):
        return q @ q.transpose(-1, -2)


@pytest.mark.slow
def test_the_dtype_that_a_function_will_take_is_compiled(shared_pool: Path, cache: Path) -> None:
    assert counts_of(in_low_precision) == (0, 1)
    with setting(lambda dtype: torch.set_autocast_dtype("cpu", dtype), torch.float16, torch.get_autocast_dtype("cpu")):
        assert counts_of(in_low_precision) == (0, 1)
        assert counts_of(in_low_precision) == (1, 0)
    assert counts_of(in_low_precision) == (1, 0)


@pytest.mark.parametrize(("first", "second"), [("normal", "subprocess"), ("subprocess", "serialize")])
def test_modes_share_one_cache(first: str, second: str, shared_pool: Path, cache: Path) -> None:
    assert counts_of(attention, first) == (0, 1)
    assert counts_of(attention, second) == (1, 0)


def one_more(operator: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: operator(x) + 1


@pytest.mark.slow
def test_a_changed_operator_is_compiled_again(
    shared_pool: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for factor, counts in ((2, (0, 1)), (2, (1, 0)), (3, (0, 1)), (2, (1, 0))):
        assert (factor, counts_of(one_more(import_operator(tmp_path, "scaled_and_compiled", factor)))) == (
            factor,
            counts,
        )
