"""``fxpool demo``: compares fxpool with stock Inductor and eager on two models, each first call in a fresh process.

The cases are those of the suite `transformers`, one process at a time. Each backend has temporary caches for the whole
demonstration, as on a user's machine: the first run finds them empty, later cold runs find the facts about compiler and
processor, and warm runs find their graph. The runs with fxpool share a server, as programs on a host do. The first of
them starts it, and no run begins while the server is busy with preparations. The user's caches and settings are not
touched, and nothing is downloaded.
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fxpool.bench import report, servers, suite
from fxpool.bench.case import BACKENDS, Run
from fxpool.bench.display import Display
from fxpool.bench.environment import child_environment
from fxpool.bench.results import Record
from fxpool.bench.runner import Runner, Settings
from fxpool.errors import ConfigurationError

__all__ = ["plan", "run_demo", "table"]

MODELS = {"gpt2": "GPT-2", "bert": "BERT"}
MODES = ("inference", "training")
# As on a host of several programs. The idle timeout ends the server if the demonstration is killed before it can.
_SERVER = {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "120"}
_STOPPED = 130


def plan(backends: Sequence[str] = BACKENDS) -> list[Run]:
    """Return the runs in the order of the table. The second repetition is warm; eager has only the first."""
    return [
        Run(model, mode, backend, repetition)
        for model in MODELS
        for mode in MODES
        for backend in backends
        for repetition in ((1,) if backend == "eager" else (1, 2))
    ]


def run_demo(console: Console, backends: Sequence[str] = BACKENDS) -> int:
    """Measure, print the table, and return the exit status: 1 if a process failed or a result was wrong, else 0.

    Raises ConfigurationError if transformers is not installed.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigurationError(
            "the demonstration needs transformers, which is not installed",
            remedy="pip install 'fxpool[bench]'",
        )
    runs = plan(backends)
    soft = not console.is_terminal  # a terminal would break the words of a long line
    console.print(
        f"{len(runs)} measurements, each in a new process with temporary caches: "
        f"{' and '.join(MODELS.values())} (2 layers, random weights, nothing is downloaded), "
        f"{' and '.join(MODES)}, with {', '.join(backends)}; #2 is warm.",
        soft_wrap=soft,
    )
    started = time.monotonic()
    records: dict[Run, Record] = {}
    try:
        asyncio.run(_measure(console, runs, records))
    except asyncio.CancelledError:
        return _STOPPED
    console.print()
    console.print(table([records[run] for run in runs], console.width))
    console.print()
    console.print(
        "Seconds of the first call in a fresh process, including torch.compile(). cold: this graph was not compiled "
        "before; the first cold run of a backend also probes the compiler and the processor, and starts fxpool's "
        "server, which later runs use. eager: without compiling. Largest difference: from eager, over outputs and "
        "gradients, relative to the largest value. torch and the models' code are imported before timing starts, for "
        "all backends.",
        soft_wrap=soft,
    )
    parts = ", ".join(f"{name} {spent:.0f} s" for name, spent in report.parts(records.values()).items() if spent >= 0.5)
    total = f"{time.monotonic() - started:.0f} s in total"
    console.print(total + (f"; all processes: {parts}" if parts else ""), highlight=False, soft_wrap=soft)
    bad = report.failures(records)
    for record in bad:
        reason = record.reason.strip() or f"differs from eager by {record.difference or 0:.1e}"
        console.print(f"\n{record.run.id}: {record.state}: {reason}", markup=False, highlight=False, soft_wrap=soft)
    return 1 if bad else 0


async def _measure(console: Console, runs: Sequence[Run], records: dict[Run, Record]) -> None:
    """Run all runs of a backend before those of the next one, each backend with its own caches; add to `records`."""
    with tempfile.TemporaryDirectory(prefix="fxpool-demo-") as directory:
        for backend in dict.fromkeys(run.backend for run in runs):
            own = Path(directory, backend)
            own.mkdir()
            environment = child_environment(own, _SERVER if backend == "fxpool" else {})
            runtime = environment["FXPOOL_RUNTIME_DIR"]
            settings = Settings(measure=False, environment=environment, runtime_dir=runtime)
            chosen = [run for run in runs if run.backend == backend]

            def add(record: Record) -> None:
                records[record.run] = record
                display.record(record)

            runner = Runner(suite.load("transformers"), chosen, settings, add, lambda: display.change())
            with servers.ended(Path(runtime)), Display(console, runner, len(runs), len(records)) as display:
                await runner.run()


def table(records: Sequence[Record], width: int = 80) -> Table:
    """Return the results as a table, one row per process; without counts and differences if `width` is below 80."""
    # 80 columns in total, the width of an ordinary terminal; only the column "compiled" may wrap.
    narrow = width < 80
    shown = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("model and step", "backend"):
        shown.add_column(name, no_wrap=True)
    for name in ("first\ncall", "of\nstock", *(() if narrow else ("hits", "misses"))):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("compiled")
    if not narrow:
        shown.add_column("largest\ndiff.", justify="right", no_wrap=True)
    stock = {_step(record.run): record.first_call for record in records if record.run.backend == "inductor"}
    for record in records:
        run, seconds = record.run, record.first_call
        if seconds is None:
            continue
        base = stock.get(_step(run)) if run.backend != "inductor" else None
        state = "" if run.backend == "eager" else "cold" if run.repetition == 1 else "warm"
        counts = [str(record.stats.get(name, "")) for name in ("hits", "misses")]
        difference = f"{record.difference:.1e}" if record.difference is not None else ""
        shown.add_row(
            f"{MODELS.get(run.case, run.case)} {run.mode}",
            f"{run.backend} {state}".strip(),
            f"{seconds:.2f} s",
            f"{seconds / base:.2f} x" if base and run.backend != "eager" else "",
            *([] if narrow else counts),
            _where(record),
            *([] if narrow else [difference]),
        )
    return shown


def _step(run: Run) -> tuple[str, str, int]:
    return run.case, run.mode, run.repetition


def _where(record: Record) -> str:
    """Return where the graphs of a process were compiled, from fxpool's counters and the lowerings counted in it."""
    lowered, stats = record.lowerings or 0, record.stats
    parts = []
    if stats:
        compiles: Mapping[str, int] = stats.get("compiles", {})
        names = {"worker": "in a worker", "in_process": "in process"}
        parts = [f"{compiles[key]} {name}" for key, name in names.items() if compiles.get(key)]
        if lowered and not compiles.get("in_process"):
            parts.append(f"{lowered} lowered in the process, not counted")
        if stats.get("hits") and not parts:
            parts = ["from the cache"]
        reasons = {**stats.get("bypasses", {}), **stats.get("fallbacks", {})}
        parts += [f"{reason}: {count}" for reason, count in reasons.items()]
    elif lowered:
        parts = [f"{lowered} in process"]
    elif record.run.backend == "inductor":
        parts = ["from its cache"]
    return ", ".join(parts) or "nothing"
