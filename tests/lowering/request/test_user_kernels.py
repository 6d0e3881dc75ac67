"""A program's own Triton kernels in a graph: they travel by name and value, and their sources are in the key.

Tracing and compiling are done in processes that have Triton (see `test_triton_kernels`), none of which has a GPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import HERE
from triton_place import path_with_triton


def child(place: Path, *commands: str, **environment: str) -> dict[str, Any]:
    """What `user_kernels_child.py` reports, by command."""
    environment = {**os.environ, "PYTHONPATH": path_with_triton(str(HERE)), **environment}
    done = subprocess.run(
        [sys.executable, str(HERE / "user_kernels_child.py"), str(place), *commands],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("u")


@pytest.fixture(scope="module")
def here(place: Path) -> dict[str, Any]:
    return child(place, "encode", "keys", "variants", "refused")


@pytest.fixture(scope="module")
def elsewhere(place: Path, here: dict[str, Any]) -> dict[str, Any]:
    return child(place, "decode", "keys", PYTHONHASHSEED="7")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "twice", "warps", "tuned", "several", "differentiable", "dynamic"])
def test_another_process_calls_the_same_kernels(here: dict[str, Any], elsewhere: dict[str, Any], name: str) -> None:
    there = elsewhere["decode"][name]
    assert there == here["encode"][name]
    assert there["modules"] == ["user_kernels_module"]


def test_what_dynamo_makes_of_kernels(here: dict[str, Any]) -> None:
    """That the tests are about what they say."""
    calls = {name: report["calls"] for name, report in here["encode"].items()}
    assert [call["names"] for call in calls["several"]] == ["['tuned']", "['picked']", "['pruned']", "['squared']"]
    assert [call["names"] for call in calls["differentiable"]] == ["['squared']", "['squared_backward']"]
    first, second = calls["twice"]
    assert first["place"] == second["place"]
    assert (first["constants"], second["constants"]) == ("{'count': 100, 'BLOCK': 64}", "{'count': 100, 'BLOCK': 32}")
    assert (first["grid"], second["grid"]) == ("[(2, 1, 1)]", "[(4, 1, 1)]")
    (warps,) = calls["warps"]
    assert "('num_warps', 8)" in warps["configs"]
    (tuned,) = calls["tuned"]
    assert tuned["grid"] == "[(2, 1, 1), (1, 1, 1)]"
    assert (tuned["restored"], tuned["constants"]) == (
        "['out']",
        "{'count': 100, 'KIND': triton.language.float32, 'LOW': -inf}",
    )
    (dynamic,) = calls["dynamic"]
    assert dynamic["grid"] == "[(floordiv, 1, 1)]"
    _, picked, pruned, _ = calls["several"]
    assert "{'BLOCK': 64, 'EVEN': True}" in picked["configs"]
    assert "{'BLOCK': 128}" in pruned["configs"]
    assert "64" not in pruned["configs"]


@pytest.mark.slow
def test_another_process_finds_the_same_keys(here: dict[str, Any], elsewhere: dict[str, Any]) -> None:
    assert here["keys"] == elsewhere["keys"]
    assert len(set(here["keys"].values())) == len(here["keys"])


@pytest.mark.parametrize(
    ("variant", "changed"),
    [
        ("moved", ()),
        ("own source", ("plain",)),
        ("helper", ("plain",)),
        ("constant", ("plain",)),
        ("dtype", ("several", "tuned")),
        ("configuration", ("several", "tuned")),
        ("restored", ("several", "tuned")),
        ("pruning", ("several",)),
        ("heuristic", ("several",)),
    ],
)
def test_keys_change_with_what_a_kernel_is_made_of(
    here: dict[str, Any], variant: str, changed: tuple[str, ...]
) -> None:
    before, after = here["variants"]["same"], here["variants"][variant]
    assert tuple(sorted(name for name in before if before[name] != after[name])) == changed


def test_why_graphs_do_not_travel(here: dict[str, Any]) -> None:
    refused = {name: reason for name, (reason, _) in here["refused"].items()}
    assert refused == {
        "main": "triton_kernel_in_main",
        "local": "triton_kernel_without_name",
        "object": "triton_kernel_source",
        "hook": "triton_kernel_hook",
        "constant": "triton_kernel_constant",
    }
    details = {name: detail for name, (_, detail) in here["refused"].items()}
    assert details["main"] == "of_main"
    assert "STATE" in details["object"]
    assert "BLOCK" in details["constant"]


def test_a_module_that_was_changed_after_its_import_is_noticed(elsewhere: dict[str, Any]) -> None:
    assert elsewhere["decode"]["changed"] == "triton_kernel_differs"


@pytest.mark.slow
def test_workers_compile_them_for_a_gpu(tmp_path: Path) -> None:
    report = child(tmp_path, "compile")["compile"]
    kernels = {
        name: {kernel for kernel in made["kernels"] if not kernel.startswith("triton_")}
        for name, made in report.items()
    }
    assert kernels == {
        "several": {"tuned", "picked", "pruned", "_squared"},
        "differentiable": {"_squared", "squared_backward"},
        "dynamic": {"added"},
    }
    assert {name: made["graphs"] for name, made in report.items()} == {"several": 1, "differentiable": 2, "dynamic": 1}
    assert report["several"]["written"]["tuned"] == ["out"]  # measured on a copy
    # Triton's intermediate code says what a kernel writes to; where nobody answers, torch takes it to be everything.
    assert {name: made["mutated"] for name, made in report.items()} == {
        "several": [1],
        "differentiable": [],
        "dynamic": [],
    }
    assert report["differentiable"]["elsewhere"] == [[80], [100]], "forward and backward for an A100 and a B200"
    for name, made in report.items():
        assert made["targets"] == [90]
        assert made["launches"] == dict.fromkeys(kernels[name], True)
