"""Records of runs, one JSON object per line, written when a run ends.

The first line identifies the suite and the machine. An incomplete line, left by a killed runner, is ignored.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from fxpool.bench.case import BACKENDS, MODES, Run
from fxpool.bench.suite import Suite
from fxpool.errors import ConfigurationError

__all__ = ["FORMAT", "Record", "Results", "in_order", "machine", "pyperf_json", "read"]

FORMAT = 1
#: The possible states of an ended run; see `Record`.
STATES = ("done", "wrong", "failed", "killed", "timeout", "memory")
# Version of pyperf's file format.
_PYPERF_VERSION = "1.0"


@dataclass(frozen=True)
class Record:
    """The result of one run.

    `state` is ``done``; ``wrong`` (measured, but the outputs differ from eager's); ``failed`` (it raised); ``killed``
    (its process died); ``timeout``; or ``memory``. `reason` explains it in words, with the end of the output.
    `first_call` is in seconds, compiling included; `warm_call` is that of a second process. `difference` is the largest
    difference from eager, relative to the largest value. `beside` says in words what else ran during the first call,
    and `warm_beside` during that of the second process. Empty: it was alone; None: unknown. `peak` is the memory of its
    process in bytes, `device_peak` that of tensors on a GPU. `lowerings` counts the graphs that Inductor lowered in its
    process by the end of the first call. `measured` is the measurement as plain data, `stats` fxpool's counters, and
    `phases` the seconds of each phase: starting, building, compiling, comparing, ready (waiting to measure), measuring,
    and paused (stopped while other runs measured, which does not count in the others).
    """

    run: Run
    state: str
    reason: str = ""
    first_call: float | None = None
    difference: float | None = None
    peak: int | None = None
    measured: dict[str, Any] | None = None
    stats: dict[str, Any] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    device_peak: int | None = None
    lowerings: int | None = None
    warm_call: float | None = None
    beside: list[str] | None = None
    warm_beside: list[str] | None = None

    @property
    def median(self) -> float | None:
        """Seconds per call; None if it was not measured."""
        return self.measured["median"] if self.measured is not None else None


class Results:
    """The file of a suite's records, open for writing. `before` are the records that it had."""

    def __init__(self, path: Path, suite: Suite, *, fresh: bool = False) -> None:
        """Raises ConfigurationError if the file belongs to another suite or another version of this suite."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.before: dict[Run, Record] = {}
        if not fresh and path.exists():
            head, self.before = read(path)
            if head.get("digest") != suite.digest:
                raise ConfigurationError(
                    f"{path} has results of another suite, or of an earlier version of {suite.name}",
                    remedy="discard them with --fresh, or name another directory with --out",
                )
        self._file = open(path, "w" if fresh or not self.before else "a", encoding="utf-8")  # noqa: SIM115 (`close`)
        if not self.before:
            head = {"format": FORMAT, "suite": suite.name, "digest": suite.digest, "machine": machine()}
            self._write(head | {"cases": [case.name for case in suite.cases]})
        else:
            self._end_half_line()

    def add(self, record: Record) -> None:
        """Write a record; it is on the disk when this returns."""
        run = record.run
        line = {"case": run.case, "mode": run.mode, "backend": run.backend, "repetition": run.repetition}
        line |= {name: value for name, value in vars(record).items() if name != "run" and value not in (None, "", {})}
        self._write(line)

    def close(self) -> None:
        self._file.close()

    def _end_half_line(self) -> None:
        if not self.path.read_bytes().endswith(b"\n"):
            self._file.write("\n")

    def _write(self, line: dict[str, Any]) -> None:
        # default=str, so that a counter that is not plain data does not lose the measurement.
        self._file.write(json.dumps(line, default=str) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read(path: Path) -> tuple[dict[str, Any], dict[Run, Record]]:
    """Return the first line of a results file, and the latest record of each run.

    Raises ConfigurationError if it can't be read, or is not a results file.
    """
    try:
        lines = list(_lines(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {path}: {error}") from error
    if not lines or lines[0].get("format") != FORMAT:
        raise ConfigurationError(
            f"{path} holds no results of fxpool bench", remedy="name a results.jsonl written by fxpool bench"
        )
    found: dict[Run, Record] = {}
    for line in lines[1:]:
        try:
            run = Run(line.pop("case"), line.pop("mode"), line.pop("backend"), line.pop("repetition"))
            found[run] = Record(run, **line)
        except (KeyError, TypeError):
            continue  # written by a version with other fields
    return lines[0], found


def in_order(head: Mapping[str, Any], records: Mapping[Run, Record]) -> dict[Run, Record]:
    """Return records, which a file has in the order in which they ended, in that of their suite.

    `head` is the first line of the file; those of earlier versions do not name the cases.
    """
    cases, backends = list(head.get("cases", [])), list(BACKENDS)
    for run in records:
        cases += [run.case] if run.case not in cases else []
        backends += [run.backend] if run.backend not in backends else []

    def rank(run: Run) -> tuple[int, ...]:
        mode = MODES.index(run.mode) if run.mode in MODES else len(MODES)
        return run.repetition, cases.index(run.case), mode, backends.index(run.backend)

    return {run: records[run] for run in sorted(records, key=rank)}


def _lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def machine() -> dict[str, Any]:
    """Return facts about the machine that matter for the numbers, but do not identify it."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    versions = {}
    for name in ("fxpool", "torch", "triton", "transformers"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory": psutil.virtual_memory().total,
        "python": platform.python_version(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


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
            "version": _PYPERF_VERSION,
            "metadata": _pyperf_metadata(head.get("machine", {})),
            "benchmarks": [
                {"metadata": {"name": name, "unit": "second"}, "runs": list(_pyperf_runs(ours))}
                for name, ours in benchmarks.items()
            ],
        }
    )


def _pyperf_runs(records: Iterable[Record]) -> Iterable[dict[str, Any]]:
    for record in records:
        assert record.measured is not None
        facts: dict[str, Any] = {}
        if record.peak:
            facts["mem_max_rss"] = record.peak
        if record.measured.get("calls"):
            facts["loops"] = record.measured["calls"]
        yield {"metadata": facts, "values": [float(sample) for sample in record.measured["samples"]]}


def _pyperf_metadata(machine: Mapping[str, Any]) -> dict[str, Any]:
    versions = {f"{name}_version": version for name, version in machine.get("versions", {}).items()}
    facts = {
        "cpu_model_name": machine.get("cpu"),
        "cpu_count": machine.get("cores"),
        "python_version": machine.get("python"),
        **versions,
    }
    return {name: value for name, value in facts.items() if value}
