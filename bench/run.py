"""The paired benchmarks: fxpool beside stock Inductor, A B A B, every call in a fresh process.

    make bench
    python bench/run.py --rows S1,S7 --pairs 3

prints a table, and writes the raw numbers (JSON), the table (Markdown) and a plot to bench/out/. Both sides get as
many compile threads as the machine has cores, and directories that are put into the row's state before every call:
emptied (bare), restored from a copy (known host), or left as an unmeasured first run made them (warm).
Nothing here is a test: a goal that is missed is reported, and the exit status is 1 only if a process failed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.children import ChildError, Children, orderly_end
from report import Measured, as_json, machine, markdown, plot, table
from rich.console import Console
from rows import CHILD, OURS, ROWS, Row, problem, select, summarise

from fxpool.bench.environment import child_environment


class Machine:
    """The cache directories of one backend, put into a row's state before each call.

    Always at the same place: a precompiled header holds paths, and what was restored elsewhere would be built again.
    """

    def __init__(self, root: Path, backend: str, settings: Mapping[str, str] | None = None) -> None:
        self.backend = backend
        self.directory = root / backend
        self._known = root / f"{backend}-known"
        threads = str(len(os.sched_getaffinity(0)))
        self._extra = {"TORCHINDUCTOR_COMPILE_THREADS": threads, "FXPOOL_WORKERS": threads, **(settings or {})}
        self._warm_for: Row | None = None

    def run(self, arguments: list[str], backend: str = "") -> dict[str, Any]:
        self.directory.mkdir(exist_ok=True, mode=0o700)
        command = [*arguments, "--backend", backend or self.backend]
        return Children().result(command, child_environment(self.directory, self._extra), " ".join(command))

    def put_into(self, row: Row, arguments: list[str]) -> None:
        if row.state == "warm":
            if self._warm_for is not row:
                self._empty()
                self.run(arguments)
                self._warm_for = row
            return
        self._warm_for = None
        if row.state == "known host" and not self._known.exists():
            self._empty()
            # "fxpool-waiting" and "fxpool-quick" are fxpool in another way: what a host knows is the same.
            self.run([CHILD, "prime"], self.backend.partition("-")[0])
            # Copied when the child's own directory (sockets, logs) is gone, or it could not be copied.
            shutil.rmtree(self.directory / "run", ignore_errors=True)
            shutil.copytree(self.directory, self._known, symlinks=True)
        self._empty()
        if row.state == "known host":
            shutil.copytree(self._known, self.directory, symlinks=True)

    def _empty(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)


def measure(
    row: Row, machines: dict[str, Machine], pairs: int, size: str, console: Console, ours: str = OURS
) -> Measured:
    """`pairs` rounds of one call each, ours first. Raises ChildError."""
    arguments = [*row.arguments, "--size", size]
    sides = [ours, *row.goals]
    results: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    problems: list[str] = []
    for number in range(pairs):
        for side in sides:
            machines[side].put_into(row, arguments)
            result = machines[side].run(arguments)
            results[side].append(result)
            note = ""
            if side == OURS and (note := problem(row, result)):
                problems.append(note)
            line = f"{row.name}, {row.state}: pair {number + 1}/{pairs}, {side}: {result[row.value]:.4g} {note}"
            console.print(line.rstrip(), highlight=False, markup=False, soft_wrap=True)
    values = {side: [result[row.value] for result in results[side]] for side in sides}
    summaries = [summarise(rival, goal, values[ours], values[rival]) for rival, goal in row.goals.items()]
    if row.limit is not None:
        summaries.append(summarise("(goal)", 1.0, values[ours], [row.limit] * pairs))
    return Measured(row, summaries, list(dict.fromkeys(problems)), results)


def main() -> int:
    every = ",".join(dict.fromkeys(row.id for row in ROWS))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=every, help=f"which rows of the targets, default {every}")
    parser.add_argument("--pairs", type=int, default=5, help="rounds per row; fewer than 5 are for a first look")
    parser.add_argument("--size", choices=("small", "full"), default="full", help="small models are for a first look")
    parser.add_argument("--backend", default=OURS, help="what to measure beside the rivals")
    parser.add_argument("--regions", action="store_true", help="graphs in pieces on fxpool's side (FXPOOL_REGIONS=on)")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("out"))
    chosen = parser.parse_args()
    try:
        rows = select(chosen.rows)
    except ValueError as error:
        parser.error(str(error))
    if chosen.pairs < 1:
        parser.error("--pairs must be at least 1")
    if any(chosen.backend in row.goals for row in rows):
        parser.error(f"{chosen.backend} is a rival of these rows")
    console = Console(width=max(160, Console().width))
    facts = machine(chosen.backend)
    settings = {}
    if chosen.regions:
        settings = {"FXPOOL_REGIONS": "on"}
        facts["ours"] += " in pieces"
    console.print(f"{facts['cpu']}, {facts['cores']} cores, torch {facts['torch']}", highlight=False)
    console.print(
        "A server is running in S3, S9, S10, S15, S16, R3 and a row of S5 and S14; elsewhere starting it is in the "
        "measured time."
    )
    measured: list[Measured] = []
    failed = False
    with orderly_end(), tempfile.TemporaryDirectory(prefix="fxpool-bench-") as directory:
        backends = list(dict.fromkeys([chosen.backend, *(rival for row in rows for rival in row.goals)]))
        machines = {backend: Machine(Path(directory), backend, settings) for backend in backends}
        for row in rows:
            try:
                measured.append(measure(row, machines, chosen.pairs, chosen.size, console, chosen.backend))
            except ChildError as error:
                failed = True
                console.print(f"{row.name}: {error.message}; the end of its output:", markup=False)
                console.print(error.output, markup=False, highlight=False)
    if measured:
        console.print(table(measured))
        _write(measured, facts, chosen.pairs, chosen.out, console)
    return 1 if failed else 0


def _write(measured: list[Measured], facts: dict[str, Any], pairs: int, out: Path, console: Console) -> None:
    out.mkdir(parents=True, exist_ok=True)
    base = out / time.strftime("%Y%m%d-%H%M%S")
    base.with_suffix(".json").write_text(json.dumps(as_json(measured, facts, pairs), indent=1))
    base.with_suffix(".md").write_text(markdown(measured, facts, pairs))
    written = [".json", ".md"]
    try:
        plot(measured, facts, base.with_suffix(".png"))
        written.append(".png")
    except ImportError:
        console.print("no plot: matplotlib is not installed (pip install 'fxpool[bench]')")
    console.print(f"written: {base}{{{','.join(written)}}}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
