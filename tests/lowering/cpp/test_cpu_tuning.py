"""Products on the CPU that are chosen by time: whose times are kept, for whom, and that nothing else runs meanwhile."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from processes import HERE, run_python

import fxpool
from fxpool.codecache.key import system_facts
from fxpool.lowering.cpp import cpu_tuning
from fxpool.torch_compat.cpp import timed_choices
from fxpool.torch_compat.cpp.timed_choices import Selection

ASKED = Selection("linear", "64x256 256x256", None, "highest", ["template", "library"])
TIMES = {"template": 0.5, "library": 0.25}


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "tools").mkdir(mode=0o700)
    fxpool.configure(runtime_dir=str(tmp_path / "run"))
    yield str(tmp_path / "tools")
    fxpool.configure(runtime_dir=None)


def times(tools: str | None, surroundings: Any = "ours") -> cpu_tuning.CpuTimes:
    return cpu_tuning.CpuTimes(tools, lambda: surroundings)


def test_what_was_timed_is_known_to_the_next(tools: str) -> None:
    first = times(tools)
    assert first.find(ASKED) is None
    first.keep(ASKED, TIMES)
    second = times(tools)
    assert second.find(ASKED) == TIMES
    assert first.record == second.record == [["linear on the CPU", 2, "library", 0.25]]


@pytest.mark.parametrize(
    "other",
    [
        {"operation": "bmm"}, {"inputs": "64x256 256x128"}, {"hint": 7}, {"precision": "medium"},
        {"candidates": ["template", "library", "another"]},
    ],
    ids=str,
)  # fmt: skip
def test_another_question_has_other_times(tools: str, other: dict[str, Any]) -> None:
    times(tools).keep(ASKED, TIMES)
    assert times(tools).find(msgspec.structs.replace(ASKED, **other)) is None


def test_what_is_there_is_added_to(tools: str) -> None:
    times(tools).keep(ASKED, TIMES)
    times(tools).keep(msgspec.structs.replace(ASKED, candidates=["another"]), {"another": math.inf, "more": 1.0})
    every = msgspec.structs.replace(ASKED, candidates=["another", "template"])
    assert times(tools).find(every) == {**TIMES, "another": math.inf, "more": 1.0}


def test_another_processor_or_configuration_has_other_times(tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    times(tools).keep(ASKED, TIMES)
    assert times(tools, "theirs").find(ASKED) is None
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    assert times(tools).find(ASKED) is None
    monkeypatch.undo()
    monkeypatch.setattr(system_facts, "processor", lambda: {"model name": "another"})
    assert times(tools).find(ASKED) is None


def test_a_processor_is_told_by_what_computes() -> None:
    facts = system_facts.processor()
    assert facts == system_facts.processor() and int(facts["cores"]) >= 1


@pytest.mark.parametrize("found", [{"template": math.inf}, {}])
def test_where_nothing_ran_nothing_is_kept(tools: str, found: dict[str, float]) -> None:
    times(tools).keep(ASKED, found)
    assert not (Path(tools) / "measured").exists()


def test_a_damaged_file_is_timed_again(tools: str) -> None:
    times(tools).keep(ASKED, TIMES)
    (file,) = (Path(tools) / "measured").iterdir()
    file.write_bytes(b"\xff")
    assert times(tools).find(ASKED) is None
    times(tools).keep(ASKED, TIMES)
    assert times(tools).find(ASKED) == TIMES


def test_without_a_directory_it_still_works() -> None:
    alone = times(None)
    assert alone.find(ASKED) is None
    alone.keep(ASKED, TIMES)
    assert alone.record


OTHER = """
import sys
import fxpool
from fxpool.errors import MeasurementBusyError
fxpool.configure(runtime_dir=sys.argv[1])
try:
    with fxpool.measuring(patience=0.1):
        print("mine")
except MeasurementBusyError:
    print("busy")
"""


@pytest.mark.slow
def test_nobody_else_measures_meanwhile(tools: str, tmp_path: Path) -> None:
    def other() -> str:
        asked = [sys.executable, "-c", OTHER, str(tmp_path / "run")]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    with times(tools).alone(ASKED):
        assert other() == "busy"
    assert other() == "mine"


# ------------------------------------------------------------------------------ Inductor's question


class Choice:
    def __init__(self, name: str, device: str = "cpu") -> None:
        self._name, self.layout = name, types.SimpleNamespace(device=torch.device(device))

    def hash_key(self) -> str:
        return self._name


def timing(calls: list[Any]) -> Callable[[Any], dict[Any, float]]:
    def benchmark(choices: Any) -> dict[Any, float]:
        calls.append(choices)
        return {choice: TIMES[choice.hash_key()] for choice in choices}

    return benchmark


def asked(choices: list[Choice], benchmark: Any, **more: Any) -> dict[Any, float]:
    from torch._inductor.codecache import PersistentCache

    cache = PersistentCache.__new__(PersistentCache)
    return {one.hash_key(): taken for one, taken in cache.lookup(choices, "linear", "sizes", benchmark, **more).items()}


def test_inductors_cache_of_times_is_ours_for_the_cpu(tools: str) -> None:
    calls: list[Any] = []
    choices = [Choice("template"), Choice("library")]
    with timed_choices.answered(times(tools)):
        assert asked(choices, None) == {}, "what is not known is compiled first"
        assert asked(choices, timing(calls)) == TIMES
    with timed_choices.answered(times(tools)):
        assert asked(choices, None) == TIMES, "nothing has to be compiled"
        assert asked(choices, timing(calls)) == TIMES
        assert len(calls) == 1
        asked(choices, timing(calls), hint_override=3)
        torch.set_float32_matmul_precision("medium")
        try:
            asked(choices, timing(calls))
        finally:
            torch.set_float32_matmul_precision("highest")
        assert len(calls) == 3


def test_its_switch_is_honoured(tools: str) -> None:
    calls: list[Any] = []
    with torch._inductor.config.patch(autotune_local_cache=False), timed_choices.answered(times(tools)):
        for _ in range(2):
            asked([Choice("template")], timing(calls))
    assert len(calls) == 2 and not (Path(tools) / "measured").exists()


def test_what_is_for_a_gpu_is_asked_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import PersistentCache

    monkeypatch.setattr(PersistentCache, "lookup", lambda *_, **__: {Choice("elsewhere"): 1.0})
    with timed_choices.answered(times(None)):
        assert asked([Choice("template", "cuda")], None) == {"elsewhere": 1.0}


# ------------------------------------------------------------------------------ programs


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_product_in_another_graph_and_process_is_not_timed_again(tmp_path: Path) -> None:
    """Frozen weights, for which there are C++ templates."""
    (tmp_path / "c").mkdir(mode=0o700)
    environment = {"FXPOOL_CACHE_DIR": str(tmp_path / "c"), "FXPOOL_POOL": "embedded"}

    def run(graph: str) -> Any:
        printed = run_python([str(HERE / "cpu_tuning_child.py"), graph], 250, **environment)
        return json.loads(printed.strip().splitlines()[-1])

    first, second = run("relu"), run("sigmoid")
    assert first["close"] and second["close"]
    assert first["key"] != second["key"]
    assert first["busy"] == [True], "timed once, in the host's turn"
    assert second["busy"] == [], "not timed"
    assert first["tuned"] == second["tuned"] and first["tuned"][0][1] > 1, "several candidates, and the same times"
