"""Errors and traces of compiled code that came from the cache name its lines, and those of the program behind them."""

from __future__ import annotations

import importlib
import linecache
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from beside_stock import BesideStock
from compiling import compiled_total

import fxpool
from fxpool import counters


def factored(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(x @ x.t() - 5).sin()


def _forget_texts() -> None:
    for name in [name for name in linecache.cache if name.startswith("<fxpool")]:
        del linecache.cache[name]


@pytest.mark.usefixtures("shared_pool", "cache", "nothing_lowered_here")
def test_an_error_in_code_of_a_hit_shows_the_line_that_raised_it() -> None:
    for hits in (0, 1):
        torch._dynamo.reset()
        _forget_texts()
        with pytest.raises(torch.linalg.LinAlgError) as raised:
            torch.compile(factored, backend="fxpool")(torch.ones(3, 3))
        assert counters.snapshot()["hits"] == hits
        (frame,) = [one for one in traceback.extract_tb(raised.tb) if one.filename.startswith("<fxpool ")]
        assert frame.line is not None and "_linalg_check_errors" in frame.line


@pytest.mark.slow
@pytest.mark.usefixtures("shared_pool", "cache", "nothing_lowered_here")
def test_entries_of_one_key_have_texts_of_their_own() -> None:
    _forget_texts()
    for columns in (100, 5000):
        compiled_total(columns=columns)
    (key,) = {str(record["key"]) for record in fxpool.stats()["graphs"]}
    names = [name for name in linecache.cache if name.startswith(f"<fxpool {key[:16]} ")]
    assert len(names) == 2
    one, other = ("".join(linecache.getlines(name)) for name in names)
    assert one != other


PROGRAM = """
import torch
from torch._C._profiler import gather_traceback, symbolize_tracebacks

frames = []

@torch.library.custom_op("fxpool_test::where_it_is", mutates_args=())
def where_it_is(x: torch.Tensor) -> torch.Tensor:
    (found,) = symbolize_tracebacks([gather_traceback(python=True, script=False, cpp=False)])
    frames.append(found)
    return x.clone()

@where_it_is.register_fake
def _(x):
    return torch.empty_like(x)

def function(x):
    y = x.sin() + 1
    return where_it_is(y).cos()
"""


@pytest.mark.slow
def test_torchs_traces_name_the_programs_lines_behind_the_code(
    beside_stock: BesideStock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As stock Inductor's code cache has them: a memory snapshot tells which line of a model allocated."""
    (tmp_path / "places_of_a_test.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))
    places: Any = importlib.import_module("places_of_a_test")

    def step(call: Any) -> Any:
        places.frames.clear()
        call(torch.ones(3))
        (frames,) = places.frames
        files = [frame["filename"] for frame in frames]
        called = next(at for at, frame in enumerate(frames) if frame["name"] == "call")
        assert files[called].startswith("<fxpool ") or files[called].endswith(".py")
        behind = frames[called + 1]
        return behind["filename"], behind["line"], behind["name"]

    def compile_(backend: str) -> Any:
        return torch.compile(places.function, backend=backend)

    try:
        stock = beside_stock.stock(compile_, step).value
        assert stock == (str(tmp_path / "places_of_a_test.py"), 19, "function")
        for hits in (0, 1):
            found = beside_stock.fxpool(compile_, step)
            assert (found.value, found.counts["hits"]) == (stock, hits)
    finally:
        del sys.modules["places_of_a_test"]
