"""The results as a file for pyperf: ``python -m pyperf compare_to``, ``stats``, ``hist``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fxpool.bench.case import Run
from fxpool.bench.results import Record

__all__ = ["pyperf_json"]

# Version of pyperf's file format.
_VERSION = "1.0"


def pyperf_json(head: Mapping[str, Any], records: Mapping[Run, Record]) -> str:
    """Return the measurements as pyperf's JSON: a benchmark per case, mode and backend, a run per repetition.

    Values are seconds per call. `head` is the first line of the results file. Raises ValueError without measurements.
    """
    benchmarks: dict[str, list[Record]] = {}
    for run, record in records.items():
        if record.measured is not None and record.measured["samples"]:
            benchmarks.setdefault(f"{run.case}/{run.mode}/{run.backend}", []).append(record)
    if not benchmarks:
        raise ValueError("nothing was measured")
    return json.dumps(
        {
            "version": _VERSION,
            "metadata": _metadata(head.get("machine", {})),
            "benchmarks": [
                {"metadata": {"name": name, "unit": "second"}, "runs": list(_runs(ours))}
                for name, ours in benchmarks.items()
            ],
        }
    )


def _runs(records: Iterable[Record]) -> Iterable[dict[str, Any]]:
    for record in records:
        assert record.measured is not None
        facts: dict[str, Any] = {}
        if record.peak:
            facts["mem_max_rss"] = record.peak
        if record.measured.get("calls"):
            facts["loops"] = record.measured["calls"]
        yield {"metadata": facts, "values": [float(sample) for sample in record.measured["samples"]]}


def _metadata(machine: Mapping[str, Any]) -> dict[str, Any]:
    versions = {f"{name}_version": version for name, version in machine.get("versions", {}).items()}
    known = {
        "cpu_model_name": machine.get("cpu"),
        "cpu_count": machine.get("cores"),
        "python_version": machine.get("python"),
        **versions,
    }
    return {name: value for name, value in known.items() if value}
