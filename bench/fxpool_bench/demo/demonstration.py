"""The demonstration: measures two models, inference and training, three backends, cold and warm, and prints a table.

Every measurement is a separate process (`demo.child`), forked from a process that has imported torch and the models'
code. Each backend has a temporary cache directory for the whole demonstration, as on a user's machine. The first run
finds it empty, later cold runs find the facts about compiler and processor, and warm runs find their graph. The runs
with fxpool share a server, as programs on a host do. The first of them starts it, and no run begins while the server is
busy with preparations. The user's caches and settings are not touched, and nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from fxpool.bench.demo import own_server
from fxpool.bench.demo.processes import ChildError, Loader, child_environment, orderly_end
from fxpool.errors import ConfigurationError

__all__ = ["Run", "plan", "run_demo", "table"]

MODELS = {"gpt2": "GPT-2", "bert": "BERT"}
WHATS = {"infer": "inference", "train": "training"}
# Both sides use float32 and the same weights, so a larger difference is an error, not another order of summation.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Run:
    """One measurement. `state` is `cold` (the graph was not compiled before), `warm` (it was), or "" for eager."""

    model: str
    what: str
    backend: str
    state: str

    def __str__(self) -> str:
        what = f"{MODELS.get(self.model, self.model)} {WHATS.get(self.what, self.what)}"
        return f"{what}, {self.backend}" + (f", {self.state}" if self.state else "")


def plan(backends: Sequence[str] = ("fxpool", "inductor", "eager")) -> list[Run]:
    """Return the measurements in order. `eager` is the uncompiled model, which has no warm run."""
    runs = []
    for model in MODELS:
        for what in WHATS:
            for backend in backends:
                states = ("",) if backend == "eager" else ("cold", "warm")
                runs += [Run(model, what, backend, state) for state in states]
    return runs


def run_demo(console: Console, backends: Sequence[str] = ("fxpool", "inductor", "eager")) -> int:
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
        f"{' and '.join(WHATS.values())}, with {', '.join(backends)}.",
        soft_wrap=soft,
    )
    started = time.monotonic()
    parts: dict[str, float] = {}
    results: list[tuple[Run, dict[str, Any]]] = []
    failures: list[ChildError] = []
    with (
        orderly_end(),
        tempfile.TemporaryDirectory(prefix="fxpool-demo-") as directory,
        own_server.own_server(_runtime_of(directory)),
        Loader("fxpool.bench.demo.child", child_environment(Path(directory, "loader"))) as loader,
        _display(console, len(runs)) as step,
    ):
        for run in runs:
            arguments = ["--model", run.model, "--what", run.what, "--backend", run.backend]
            arguments += ["--uncompiled"] if run.backend == "eager" else []
            extra = own_server.environment() if run.backend == "fxpool" else {}
            environment = child_environment(Path(directory, run.backend), extra)
            with _timed(parts, "waiting for the server's preparations"):
                own_server.quiet(_runtime_of(directory))
            with step(str(run)) as say, _timed(parts, run.backend) as took:
                try:
                    result = loader.run(arguments, environment, str(run))
                except ChildError as error:
                    failures.append(error)
                    say(f"failed after {took():.1f} s: the process {error.how}")
                else:
                    results.append((run, result))
                    say(f"first call {result['first_call_seconds']:.1f} s of the process's {took():.1f} s")
    console.print()
    console.print(table(results, console.width))
    console.print()
    console.print(
        "Seconds of the first call in a fresh process, including torch.compile(). cold: this graph was not compiled "
        "before; the first cold run of a backend also probes the compiler and the processor, and starts fxpool's "
        "server, which later runs use. eager: without compiling. Largest difference: from eager, over logits and "
        "gradients. torch and the models' code are imported before timing starts, for all backends.",
        soft_wrap=soft,
    )
    total = time.monotonic() - started
    parts["the rest"] = total - sum(parts.values())
    said = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in parts.items() if seconds >= 0.5)
    console.print(f"{total:.0f} s in total" + (f": {said}" if said else ""), highlight=False, soft_wrap=soft)
    for failure in failures:
        console.print(f"\n[red]{escape(failure.message)}[/red]; the end of its output:")
        console.print(failure.output or "(none)", markup=False, highlight=False)
    wrong = [run for run, result in results if not result["difference"] <= TOLERANCE]
    for run in wrong:
        console.print(f"[red]{escape(str(run))}: the results differ from eager's by more than {TOLERANCE:g}[/red]")
    return 1 if failures or wrong else 0


@contextlib.contextmanager
def _timed(parts: dict[str, float], name: str) -> Iterator[Callable[[], float]]:
    """Add the seconds of the ``with`` block to `parts`; yield a function that returns those so far."""
    started = time.monotonic()
    try:
        yield lambda: time.monotonic() - started
    finally:
        parts[name] = parts.get(name, 0.0) + time.monotonic() - started


def _runtime_of(directory: str) -> Path:
    """Return the runtime directory for the runs with fxpool under `directory`."""
    return Path(child_environment(Path(directory, "fxpool"))["FXPOOL_RUNTIME_DIR"])


@contextlib.contextmanager
def _display(
    console: Console, total: int
) -> Iterator[Callable[[str], contextlib.AbstractContextManager[Callable[[str], None]]]]:
    """Yield `step(what)`, a context manager that yields a function to report the outcome.

    Progress is shown as a bar on a terminal, and as lines elsewhere.
    """
    done = 0
    progress = None
    if console.is_terminal:
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
    task = progress.add_task("", total=total) if progress else None

    @contextlib.contextmanager
    def step(what: str) -> Iterator[Callable[[str], None]]:
        nonlocal done
        outcome = ""

        def say(text: str) -> None:
            nonlocal outcome
            outcome = text

        if progress is not None and task is not None:
            progress.update(task, description=what)
            yield say
            progress.advance(task)
        else:
            # Printed in advance, because a log that pauses for a minute should say what it waits for.
            console.print(f"[{done + 1}/{total}] {what} ...", markup=False, highlight=False, soft_wrap=True)
            yield say
        done += 1
        console.print(f"[{done}/{total}] {what}: {outcome}", markup=False, highlight=False, soft_wrap=progress is None)

    with progress or contextlib.nullcontext():
        yield step


def table(results: Sequence[tuple[Run, Mapping[str, Any]]], width: int = 80) -> Table:
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
    rival = {
        (run.model, run.what, run.state): result["first_call_seconds"]
        for run, result in results
        if run.backend == "inductor"
    }
    for run, result in results:
        group = (run.model, run.what)
        seconds, base = result["first_call_seconds"], rival.get((*group, run.state))
        ratio = f"{seconds / base:.2f} x" if base and run.backend != "inductor" else ""
        stats = result.get("stats") or {}
        shown.add_row(
            f"{MODELS.get(run.model, run.model)} {WHATS.get(run.what, run.what)}",
            f"{run.backend} {run.state}".strip(),
            f"{seconds:.2f} s",
            ratio,
            *([] if narrow else [str(stats.get("hits", "")), str(stats.get("misses", ""))]),
            _where(result),
            *([] if narrow else [f"{result['difference']:.1e}"]),
        )
    return shown


def _where(result: Mapping[str, Any]) -> str:
    """Return where the graphs of a process were compiled, from fxpool's counters and the lowerings counted in it."""
    here = result["graph_lowerings"]
    parts = []
    stats = result.get("stats")
    if stats is not None:
        compiles = stats.get("compiles", {})
        names = {"worker": "in a worker", "in_process": "in process"}
        parts = [f"{compiles[key]} {name}" for key, name in names.items() if compiles.get(key)]
        if here and not compiles.get("in_process"):
            parts.append(f"{here} lowered in the process, not counted")
        if stats.get("hits") and not parts:
            parts = ["from the cache"]
        reasons = {**stats.get("bypasses", {}), **stats.get("fallbacks", {})}
        parts += [f"{reason}: {count}" for reason, count in reasons.items()]
    elif here:
        parts = [f"{here} in process"]
    elif result["backend"] == "inductor":
        parts = ["from its cache"]
    return ", ".join(parts) or "nothing"
