"""`compile_times` puts torch's record of a compile in a worker among that of the process it was compiled for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from torch._dynamo import utils
from torch._subclasses.fake_tensor import FakeTensorMode

from fxpool.torch_compat.dynamo import compile_times, tracing
from fxpool.torch_compat.dynamo.compile_times import CompileTimes


@pytest.fixture(autouse=True)
def _own_record(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tables of torch's that are written to here are as before afterwards."""
    tables: list[Any] = [utils.compilation_time_metrics, utils.cumulative_time_spent_ns, utils.counters]
    before = [pickle.loads(pickle.dumps(dict(table))) for table in tables]
    yield
    for table, values in zip(tables, before, strict=True):
        table.clear()
        table.update(values)


@pytest.fixture
def metrics(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    written: dict[str, Any] = {}
    context = utils.get_metrics_context()
    monkeypatch.setattr(context, "_on_exit", lambda began, ended, values, *error: written.update(values))
    return written


def compiled() -> None:
    """What a compile does to torch's record, by torch's own functions."""
    timed = utils.dynamo_timed("compat_phase", phase_name="compat", dynamo_compile_column_us="compat_cumulative_us")
    with tracing.worker_context(FakeTensorMode(), [None, 0, 0, 0]), timed:  # metrics are those of a compile
        utils.counters["inductor"]["compat_pass"] += 2
        time.sleep(0.002)
    utils.counters["inductor"]["fxgraph_cache_miss"] += 1  # of the cache, which is counted where it is looked into
    utils.counters["aot_autograd"]["total"] += 1


def test_a_compile_is_recorded(metrics: dict[str, Any]) -> None:
    utils.counters["inductor"]["compat_pass"] += 5  # before it
    times = CompileTimes()
    with compile_times.recorded(times):
        compiled()
    assert list(times.seconds) == ["compat_phase"] and times.seconds["compat_phase"][0] > 0
    assert times.spent == {"compat": pytest.approx(times.seconds["compat_phase"][0] * 1e9, rel=0.01)}
    # In torch's unit, microseconds; what the asking process times itself is not taken.
    assert list(times.metrics) == ["compat_cumulative_us"]
    assert times.metrics["compat_cumulative_us"] == pytest.approx(times.spent["compat"] / 1e3, rel=0.1, abs=50)
    assert times.counters == {"inductor": {"compat_pass": 2}}
    assert metrics == {}  # torch's own log of compiles is not written
    assert msgspec.json.decode(msgspec.json.encode(times), type=CompileTimes) == times


def test_metrics_of_a_compile_under_way_stay_where_they_are(metrics: dict[str, Any]) -> None:
    times = CompileTimes()
    with utils.get_metrics_context(), compile_times.recorded(times):
        compiled()
    assert times.metrics == {} and list(times.seconds) == ["compat_phase"]
    assert metrics["compat_cumulative_us"] > 0


def test_a_record_is_told_to_the_process_that_asked(metrics: dict[str, Any]) -> None:
    times = CompileTimes(
        seconds={"compat_phase": [0.5, 0.25]},
        spent={"compat": 750_000_000},
        metrics={"compat_us": 12},
        counters={"inductor": {"compat_pass": 3, "compat_other": 1}},
    )
    utils.compilation_time_metrics["compat_phase"] = [1.0]
    with utils.get_metrics_context(), compile_times.merged(times):
        utils.counters["inductor"]["compat_pass"] += 2  # the loading counts a part of it
    assert utils.compilation_time_metrics["compat_phase"] == [1.0, 0.5, 0.25]
    assert utils.cumulative_time_spent_ns["compat"] == 750_000_000
    assert metrics == {"compat_us": 12}
    assert {name: utils.counters["inductor"][f"compat_{name}"] for name in ("pass", "other")} == {"pass": 3, "other": 1}
    assert utils.compile_times(repr="csv")[0].count("compat_phase") == 1


def test_seconds_of_phases_are_what_torch_reports() -> None:
    with compile_times.merged(CompileTimes(spent={"compat": 1_500_000_000})):
        pass
    assert utils.calculate_time_spent()["compat"] == 1.5


def test_loading_what_was_compiled_here_counts_nothing_again() -> None:
    utils.counters["inductor"]["compat_pass"] = 4
    with compile_times.compiled_here():
        utils.counters["inductor"]["compat_pass"] += 4
        utils.counters["inductor"]["fxgraph_cache_hit"] += 1
    assert utils.counters["inductor"]["compat_pass"] == 4
    assert utils.counters["inductor"]["fxgraph_cache_hit"] >= 1
