"""No change between two processes makes a frame that was kept give a wrong result: see `frame_kinds`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from frame_kinds import KINDS
from processes import run_python

PROGRAM = Path(__file__).with_name("frame_changes.py")
PARTS = 16


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
def test_changes(part: int, cache: Path, tmp_path: Path) -> None:
    names = [*KINDS][part::PARTS]
    (tmp_path / "f").mkdir()
    printed = run_python([str(PROGRAM), str(tmp_path / "f"), *names], 580, CUDA_VISIBLE_DEVICES="")
    reports = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert [report["kind"] for report in reports] == names
    wrong = {report["kind"]: problem for report in reports if (problem := _problem(report))}
    assert not wrong, "\n".join(f"{name}: {problem}" for name, problem in wrong.items())


def _problem(report: dict[str, Any]) -> str:
    """Say what is wrong with a kind's outcomes; empty if they are as they should be."""
    kind, first = KINDS[report["kind"]], report["first"]
    if kind.lenient:
        return _served_wrongly(report)
    if kind.refused:
        return "" if first["outcome"] == "refused" and kind.refused in first["said"][-1] else f"not refused: {first}"
    if first["outcome"] != "kept" or not first["same"]:
        return f"not kept: {first}"
    again, changed = report["again"], report["changed"]
    if again["outcome"] not in (("missed", "partly") if kind.once else ("served",)) or not again.get("same", kind.once):
        return f"the same program: {again}"
    if changed["outcome"] in ("served", "partly") and not changed["same"]:
        return f"WRONG: {changed}"
    if changed["outcome"] == "served":
        return "" if kind.neutral else "served, although what it depends on changed"
    if changed["outcome"] not in ("missed", "partly", "refused"):
        return f"failed: {changed}"
    if kind.neutral:
        return f"not served: {changed['said']}"
    return "" if kind.silent or changed["want"] != first["want"] else "the change has no effect"


def _served_wrongly(report: dict[str, Any]) -> str:
    """Say which process had another result than it has uncompiled, or none at all."""
    for process in ("first", "again", "changed"):
        outcome = report.get(process, {"outcome": "missed"})
        if not outcome.get("same", outcome["outcome"] == "missed"):
            return f"WRONG: {process}: {outcome}"
    return ""
