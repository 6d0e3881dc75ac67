"""A miss is explained by exactly the item that differs: by keys alone, and after real compiles by `fxpool.explain`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from capturing import captured
from click.testing import CliRunner
from compiling import compiled, compiled_total

import fxpool
from fxpool import errors
from fxpool.codecache.explain import comparison
from fxpool.codecache.explain.comparison import Described, Difference
from fxpool.commands.main import main

X = torch.ones(4, 8)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).sin()


def scaled_more(x: torch.Tensor) -> torch.Tensor:
    return (x * 3).sin()


def described(function: Callable[..., Any], *inputs: Any, dynamic: bool | None = None) -> Described:
    (only,) = captured(function, *inputs, dynamic=dynamic)
    only.explain_key()
    assert only.key is not None, only.bypass
    return Described.of(only.key.components, only.key.detail)


def difference(a: Described, b: Described) -> Difference:
    (only,) = comparison.differences(a, b)
    return only


def test_a_constant_in_the_graph() -> None:
    one = difference(described(scaled, X), described(scaled_more, X))
    assert (one.component, one.item, one.position) == ("graph", "node mul", 1)
    assert one.before == "operator.mul(l_x_, 2)" and one.after == "operator.mul(l_x_, 3)"


@pytest.mark.parametrize(
    ("other", "before", "after"),
    [
        (X.double(), "dtype float32", "dtype float64"),
        (torch.ones(4, 16), "sizes [4, 8], strides [8, 1]", "sizes [4, 16], strides [16, 1]"),
        (torch.empty_strided((4, 8), (1, 4)).fill_(1), "strides [8, 1]", "strides [1, 4]"),
        (torch.ones(4, 8, requires_grad=True), "requires_grad False", "requires_grad True"),
    ],
)
def test_an_input(other: torch.Tensor, before: str, after: str) -> None:
    one = difference(described(scaled, X), described(scaled, other))
    assert (one.component, one.item, one.before, one.after) == ("inputs", "input l_x_", before, after)


def test_an_option() -> None:
    plain = described(scaled, X)
    with torch._inductor.config.patch(max_fusion_size=17):
        one = difference(plain, described(scaled, X))
    assert (one.component, one.item, one.after) == ("configuration", "inductor.max_fusion_size", "17")


def test_a_variable_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = described(scaled, X)
    monkeypatch.setenv("TORCHINDUCTOR_SOMETHING", "a secret")
    one = difference(plain, described(scaled, X))
    assert (one.component, one.item) == ("ambient", "environment variable TORCHINDUCTOR_SOMETHING")
    assert one.before is None and one.after is not None and "secret" not in one.after


@pytest.fixture
def _precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.usefixtures("_precision")
def test_a_switch() -> None:
    torch.set_float32_matmul_precision("highest")
    plain = described(scaled, X)
    torch.set_float32_matmul_precision("high")
    one = difference(plain, described(scaled, X))
    assert (one.component, one.item) == ("ambient", "float32_matmul_precision")


def test_a_size_that_becomes_symbolic() -> None:
    items = {one.item for one in comparison.differences(described(scaled, X), described(scaled, X, dynamic=True))}
    assert "input l_x_" in items and any(item.startswith("s") for item in items)


OPERATOR = """
import torch

RATE = {rate}

def helper(x):
    return x {sign} RATE

@torch.library.custom_op("explained::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return helper(x)

@op.register_fake
def _(x):
    return helper(torch.empty_like(x))
"""


@pytest.mark.slow
def test_a_custom_operator_s_source(tmp_path: Path) -> None:
    def of(rate: int = 2, sign: str = "*") -> Described:
        return operator_described(tmp_path, OPERATOR.format(rate=rate, sign=sign))

    plain = of()
    one = difference(plain, of(sign="+"))
    assert one.component == "code" and one.item.startswith("function ") and ".helper (" in one.item
    one = difference(plain, of(rate=3))
    assert one.item.endswith("helper (explained_op.py): RATE") and (one.before, one.after) == ("2", "3")


def operator_described(directory: Path, text: str) -> Described:
    """The key of a graph that calls the operator of a module with this text, imported anew."""
    import importlib
    import sys

    path = directory / "explained_op.py"
    path.write_text(text)
    sys.path.insert(0, str(directory))
    try:
        sys.modules.pop("explained_op", None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        module = importlib.import_module("explained_op")
        sys.dont_write_bytecode = before
        return described(lambda x: module.op(x).sin(), X)
    finally:
        sys.path.remove(str(directory))
        module.op._lib._destroy()
        sys.modules.pop("explained_op", None)


# ---------------------------------------------------------------- after real compiles


@pytest.mark.slow
def test_misses_of_a_process_and_its_reasons(shared_pool: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fxpool.lowering.artifact.miss_records")
    assert str(fxpool.explain()).startswith("no graph: ")
    compiled(scaled, X)
    compiled(scaled_more, X)
    compiled_total(columns=100)
    compiled_total(columns=5000)
    compiled(scaled, X, cache=False)
    explanation = fxpool.explain()
    first, second, _, fourth = explanation.misses
    assert "held no other graph" in first.why and "scaled, " in first.graph_is
    assert second.nearest is not None and second.nearest.a == first.key
    rows = [line.split()[:3] for line in str(second).splitlines()[1:3]]
    assert rows == [["nearest", "entry", first.key[:12]], ["this", "graph", second.key[:12]]]
    assert [str(one) for one in second.nearest.differences] == [
        "graph: node mul: operator.mul(l_x_, 2) -> operator.mul(l_x_, 3)"
    ]
    assert fourth.kind == "guard_miss" and fourth.nearest is None
    (guard,) = fourth.failed_guards
    assert list(guard.values.values()) == [5000] and "<= 4096" in str(guard)
    (reason,) = explanation.reasons
    assert (reason.counter, reason.reason, reason.count) == ("bypasses", "cache_off", 1)
    assert "graph" in reason.example and "scaled" in reason.example and reason.advice
    assert "operator.mul(l_x_, 2) -> operator.mul(l_x_, 3)" in caplog.text, "each miss is logged for those who ask"
    assert "cache=False" in str(explanation) and "<= 4096" in str(explanation)
    of_commands(first.key, second.key)


def of_commands(first: str, second: str) -> None:
    """The same from the directory alone, in another process's words."""
    run = CliRunner()
    text = run.invoke(main, ["cache", "explain", first[:12], second[:12]]).output
    assert "node mul: operator.mul(l_x_, 2) -> operator.mul(l_x_, 3)" in text
    data = json.loads(run.invoke(main, ["cache", "explain", second, "--json"]).output)
    assert data["a"] == first and [one["item"] for one in data["differences"]] == ["node mul"]
    (record, *_) = [one for one in fxpool.stats()["graphs"] if one["key"] == second]
    assert fxpool.explain(first, record).differences == fxpool.explain(second).differences
    with pytest.raises(errors.NoEntryError, match="no entry has a key that starts like this"):
        fxpool.explain("ff" * 32)
    assert run.invoke(main, ["cache", "explain", "zz"]).exit_code == 2
