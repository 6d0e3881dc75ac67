"""Functions that Dynamo writes into a file: compiled in a worker, and loaded where no cache and no server is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from processes import run_python
from tiers import first_tier

NOTHING = {"worker": 0, "in_process": 0}


def run(what: str, file: Path, case: str, **environment: str) -> dict[str, Any]:
    settings = {"FXPOOL_POOL": "embedded", **environment}
    report = run_python(["precompile_child.py", what, str(file), case], **settings)
    found: dict[str, Any] = json.loads(report.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("case", first_tier(["infer", "train"], "train"))
def test_a_function_compiled_ahead_of_time_needs_no_cache(case: str, tmp_path: Path) -> None:
    written = run("write", tmp_path / "f", case)
    assert written["compiles"] == {"worker": 1, "in_process": 0}
    assert not written["fallbacks"]
    again = run("write", tmp_path / "f", case)
    assert (again["hits"], again["compiles"]) == (1, NOTHING)
    loaded = run("load", tmp_path / "f", case, FXPOOL_CACHE_DIR=str(tmp_path / "other"), FXPOOL_POOL="off")
    assert (loaded["hits"], loaded["misses"], loaded["compiles"]) == (0, 0, NOTHING)
    assert written["lowerings"] == again["lowerings"] == loaded["lowerings"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_a_graph_called_through_cpp_carries_its_library(tmp_path: Path) -> None:
    assert run("write", tmp_path / "f", "infer", THROUGH_CPP="1")["compiles"]["worker"] == 1
    environment = {"FXPOOL_CACHE_DIR": str(tmp_path / "other"), "FXPOOL_POOL": "off", "THROUGH_CPP": "1"}
    assert run("load", tmp_path / "f", "infer", **environment)["lowerings"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_what_no_worker_can_have_is_inductors(tmp_path: Path) -> None:
    written = run("write", tmp_path / "f", "stays")
    assert written["compiles"] == {"worker": 0, "in_process": 1}
    assert written["fallbacks"]
    assert run("load", tmp_path / "f", "stays")["lowerings"] == 0


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_caching_precompile_finds_what_it_stored(tmp_path: Path) -> None:
    environment = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    first = run("cached", tmp_path / "f", "train", **environment)
    assert first["compiles"]["worker"] == 1
    second = run("cached", tmp_path / "f", "train", **environment)
    # Dynamo finds the function: no graph comes to the back end.
    assert (second["hits"], second["misses"], second["lowerings"]) == (0, 0, 0)
