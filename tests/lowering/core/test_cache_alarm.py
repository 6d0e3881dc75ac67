"""A process whose graphs were compiled without any use of the cache says so at its end, and why."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from processes import run_python, run_with_errors

from fxpool import counters
from fxpool.lowering.core import cache_alarm

COMPILED = {"compiles": {"worker": 2, "in_process": 1}}
USED: list[dict[str, Any]] = [
    {"hits": 1}, {"joined": 1}, {"entries_written": 1}, {"remote": {"hits": 1}}, {"remote": {"writes": 1}},
    {"frames": {"served": 1}}, {"captures": {"recorded": 1}},
]  # fmt: skip
PROGRAM = """
import sys, torch, fxpool
backend, install = sys.argv[1:]
if install == "install":
    fxpool.install()
def function(x):
    return x.sin() + 1
torch.compile(function, backend=backend)(torch.ones(4))
"""


def sounded(caplog: pytest.LogCaptureFixture, **counted: Any) -> str:
    """Return the alarm of a process with these counts, or an empty text; the reason is counted with it."""
    counters.reset()
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fxpool"):
        cache_alarm.sound({**counters.snapshot(graphs=False), **counted})
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == sum(counters.snapshot()["uncached"].values()) <= 1
    return "".join(lines)


def test_the_line_has_the_main_reason(caplog: pytest.LogCaptureFixture) -> None:
    bypasses = {"dispatch_mode": 1, "compiler_unknown": 2}
    line = sounded(caplog, **COMPILED, bypasses=bypasses, fallbacks={"pool_unavailable": 9})
    assert line.startswith("fxpool: the cache was of no use (3 graphs compiled, none loaded, none stored): ")
    assert "(compiler_unknown)" in line and "\n" not in line
    assert counters.snapshot()["uncached"] == {"compiler_unknown": 1}
    line = sounded(caplog, **COMPILED, bypasses=bypasses, switched_off={"cache_directory_refused": 1})
    assert "(cache_directory_refused)" in line
    assert "please report it" in sounded(caplog, **COMPILED)


@pytest.mark.parametrize("used", USED, ids=str)
def test_a_cache_that_is_used_is_silent(caplog: pytest.LogCaptureFixture, used: dict[str, Any]) -> None:
    tables = {name: {**counters.snapshot()[name], **value} for name, value in used.items() if isinstance(value, dict)}
    assert not sounded(caplog, **COMPILED, **{**used, **tables})


def test_so_is_a_process_without_graphs_and_one_whose_setting_leaves_them_out(caplog: pytest.LogCaptureFixture) -> None:
    assert not sounded(caplog)
    assert not sounded(caplog, **COMPILED, bypasses={"compiled_fast": 3})


def test_a_refused_directory_is_named_at_the_end(tmp_path: Path) -> None:
    cache = tmp_path / "open"
    cache.mkdir()
    cache.chmod(0o777)
    _, errors = run_with_errors(
        ["-c", PROGRAM, "fxpool", "no"], FXPOOL_CACHE_DIR=str(cache), FXPOOL_POOL="off", PYTHONWARNINGS="ignore"
    )
    (line,) = [line for line in errors.splitlines() if "of no use" in line]
    assert "1 graph compiled" in line and "(cache_directory_refused)" in line


@pytest.mark.slow
def test_graphs_that_inductor_kept_to_itself_are_noticed_and_counted(tmp_path: Path) -> None:
    cache = {"FXPOOL_CACHE_DIR": str(tmp_path / "c"), "FXPOOL_POOL": "off"}
    (tmp_path / "c").mkdir(0o700)
    _, errors = run_with_errors(["-c", PROGRAM, "inductor", "install"], **cache)
    (line,) = [line for line in errors.splitlines() if "of no use" in line]
    assert "Dynamo made 1 graph, but gave none to fxpool" in line
    totals = json.loads(run_python(["-m", "fxpool", "stats", "--json"], **cache))["host"]["total"]
    assert totals["uncached"] == {"no_graph_came": 1}
    for _ in range(2):  # compiled and stored, then served
        _, errors = run_with_errors(["-c", PROGRAM, "fxpool", "no"], **{**cache, "FXPOOL_POOL": "embedded"})
        assert "of no use" not in errors
