"""Uses of fxpool, checked by mypy and not run: each `type: ignore` must hide an error.

`test_types.py` checks this file with `warn_unused_ignores`.
"""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import fxpool
from fxpool.bench.measurement.result import Measurement
from fxpool.codecache.explain.nearest import Comparison
from fxpool.config import Settings
from fxpool.explanation.process import ProcessExplanation
from fxpool.results.data import BackgroundGraph, Stats


def right() -> None:
    assert_type(fxpool.__version__, str)
    assert_type(fxpool.configure(cache_dir=Path("/data"), workers=4, strict=True, cache_max_bytes="10G"), Settings)
    fxpool.configure(stages=("default", {"max_autotune": True}), progress=Path("p"), job_timeout="2m", workers=None)
    stats = fxpool.stats()
    assert_type(stats, Stats)
    assert_type(stats["hits"], int)
    assert_type(stats["compiles"]["worker"], int)
    assert_type(stats["fallbacks"].get("code_unknown", 0), int)
    assert_type(stats["host"]["processes"], int)
    assert_type(stats["graphs"][-1]["seconds"]["total"], float)
    assert_type(stats["graphs"][-1].get("function"), str | None)
    if stats["store"] is not None:
        assert_type(stats["store"]["bytes"], int)
    assert_type(fxpool.once(["k", 1], lambda: b"", version="2"), bytes)
    assert_type(fxpool.once("k", lambda directory: None, timeout=9.0), str)
    assert_type(fxpool.once("k", print, directory=Path("d"), in_place=True), str)
    assert_type(stats["once"]["hits"], int)
    assert_type(fxpool.wait(1.0), list[BackgroundGraph])
    assert_type(fxpool.wait()[0]["stage"], int | None)
    assert_type(fxpool.explain(), ProcessExplanation)
    assert_type(fxpool.explain("2a74"), Comparison)
    assert_type(fxpool.explain(stats["graphs"][0], "2a74").equal, tuple[str, ...])
    assert_type(fxpool.measure(len, "x").median, float)
    assert_type(fxpool.do_bench(lambda: None), Measurement)
    assert_type(fxpool.errors.PoolError("x").remedy, str)
    with fxpool.progress("path"), fxpool.measuring() as turn:
        assert_type(turn.remarks, list[str])


def wrong() -> None:
    fxpool.stat()  # type: ignore[attr-defined]
    fxpool.configure(nonsense=1)  # type: ignore[arg-type]
    fxpool.configure(cache_dir=4)  # type: ignore[arg-type]
    fxpool.configure(workers=[4])  # type: ignore[arg-type]
    fxpool.configure("/data")  # type: ignore[call-arg]
    fxpool.stats()["hit"]  # type: ignore[typeddict-item]
    fxpool.stats()["compiles"]["workers"]  # type: ignore[typeddict-item]
    fxpool.stats()["hits"].upper()  # type: ignore[attr-defined]
    fxpool.wait()[0]["states"]  # type: ignore[typeddict-item]
    fxpool.wait("1")  # type: ignore[arg-type]
    fxpool.explain(None, "2a74", "more")  # type: ignore[call-overload]
    fxpool.explain().nearest  # type: ignore[attr-defined]  # noqa: B018
    fxpool.measure()  # type: ignore[call-arg]
    fxpool.errors.PoolErrors  # type: ignore[attr-defined]  # noqa: B018
