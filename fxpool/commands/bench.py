"""``fxpool bench``: compiles the cases of a suite in parallel and measures them one after the other.

Modules are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fxpool import quantities
from fxpool.commands.output import FOUND_WRONG, INTERRUPTED, console, fail, width, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from fxpool.bench.case import Run
    from fxpool.bench.report import Change
    from fxpool.bench.results import Record

__all__ = ["bench"]


# Lines shown of the reason why a run failed: the first, and the last of a traceback.
_LINES = 6


def _failed(run: str, state: str, reason: str, columns: int | None) -> str:
    """Return the text on a run without a result: the beginning of `reason`, and its end, with the user's line."""
    first, *rest = reason.splitlines()
    # The lines of ^^^ below code, which mark a part of it, say little when wrapped.
    rest = [line for line in rest if line.strip(" ^~")]
    lines = [wrapped("", f"{run}: {state}: {first}", columns)]
    lines += [
        wrapped("  " + line[: len(line) - len(line.lstrip())], line.strip(), columns) for line in rest[1 - _LINES :]
    ]
    return "\n".join(lines)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@click.command()
@click.argument("suite")
@click.option("--cases", default="", help="Run only these cases: names or shell patterns, separated by commas.")
@click.option("--modes", default="", help="Run only these modes: inference, training, dynamic.")
@click.option("--backends", default="", help="Backends to run (default: each case's own). eager does not compile.")
@click.option("--devices", default="", help="Devices to run on, such as cuda:0,cuda:1 (default: each case's own).")
@click.option(
    "--repetitions", default=1, show_default=True, type=click.IntRange(1), help="Processes per case, mode and backend."
)
@click.option("--jobs", default=0, help="Processes at a time (default: cores + 1). 1: first calls alone.")
@click.option("--threads", default=0, help="Threads of torch in each process (default: torch's).")
@click.option("--out", type=click.Path(path_type=Path), help="Directory for results (default: bench-SUITE).")
@click.option("--fresh", is_flag=True, help="Discard previous results (default: resume).")
@click.option("--retry", is_flag=True, help="Repeat runs that failed earlier.")
@click.option(
    "--caches",
    type=click.Choice(["own", "user"]),
    default="own",
    show_default=True,
    help="own: empty caches for this run. user: your caches.",
)
@click.option("--warm", is_flag=True, help="Also time the first call of a second process, with warm caches.")
@click.option("--beside", is_flag=True, help="Measure while other cases compile, to see the effect on times.")
@click.option("--compare", type=click.Path(path_type=Path), help="Compare with these results (a results.jsonl).")
@click.option("--pyperf", type=click.Path(path_type=Path), help="Also write the times to this file, for pyperf.")
@click.option("--noise", default=0.02, show_default=True, help="Ignore relative changes below this.")
def bench(
    suite: str,
    cases: str,
    modes: str,
    backends: str,
    devices: str,
    repetitions: int,
    jobs: int,
    threads: int,
    out: Path | None,
    fresh: bool,
    retry: bool,
    caches: str,
    warm: bool,
    beside: bool,
    compare: Path | None,
    pyperf: Path | None,
    noise: float,
) -> None:
    """Run the cases of a benchmark suite.

    SUITE is a .py or .toml file, or a built-in suite: attention, convolutions, kernels, transformers. Models are
    compiled in parallel and measured one after the other, while the rest of the run is paused. First calls are timed
    beside other compiles, and marked so; --jobs 1 measures them alone.
    Results are written as they arrive, and the same command resumes a stopped run. The exit status is 1 if a case
    failed, gave wrong results, or (with --compare) is slower.
    """
    from fxpool.bench import report, runner
    from fxpool.bench import suite as suites
    from fxpool.bench.case import runs
    from fxpool.bench.display import Display
    from fxpool.bench.environment import fresh_caches
    from fxpool.bench.results import Results, read

    chosen = suites.load(suite)
    selected = suites.select(chosen.cases, _words(cases))
    other = read(compare)[1] if compare is not None else None  # before the runs: it may be unreadable
    place = out if out is not None else Path(f"bench-{chosen.name}")
    results = Results(place / "results.jsonl", chosen, fresh=fresh)
    wanted = list(runs(selected, modes=_words(modes), backends=_words(backends), repetitions=repetitions))
    found = {run: results.before[run] for run in wanted if run in results.before}
    missing = [run for run in wanted if run not in found or (retry and found[run].state != "done")]
    shown = console()

    def add(record: Record) -> None:
        results.add(record)
        found[record.run] = record
        display.record(record)

    own = place / "caches"
    if fresh or (caches == "own" and not found):
        shutil.rmtree(own, ignore_errors=True)
    settings = runner.Settings(
        jobs=jobs or runner.default_jobs(),
        exclusive=not beside,
        threads=threads,
        devices=tuple(_words(devices)),
        warm=warm,
        environment={**os.environ, **fresh_caches(own.absolute())} if caches == "own" else None,
    )
    began = time.monotonic()
    if done_before := len(wanted) - len(missing):
        shown.print(f"already done: {done_before} of {quantities.counted(len(wanted), 'run')}", highlight=False)
    active = runner.Runner(chosen, missing, settings, add, lambda: display.change())
    with contextlib.closing(results), Display(shown, active, len(wanted), done_before) as display:
        stopped = False
        try:
            asyncio.run(active.run())
        except asyncio.CancelledError:
            stopped = True
    ended = [found[run] for run in missing if run in found and found[run] is not results.before.get(run)]
    took = f"{quantities.counted(len(ended), 'run')} in {time.monotonic() - began:.0f} s"
    parts = [f"{name} {spent:.0f} s" for name, spent in report.parts(ended).items() if spent >= 0.5]
    if parts:
        took += f"; all processes together: {', '.join(parts)}"
    done = {run: found[run] for run in wanted if run in found}
    bad, changed = _show(shown, done, other, noise)
    written = [results.path, *_write(shown, results.path, done, changed, pyperf)]
    for first, text in (("results: ", ", ".join(map(str, written))), ("", took)):
        shown.print(wrapped(first, text, width()), markup=False, highlight=False, soft_wrap=True)
    if stopped:
        fail("stopped; run the same command to resume", INTERRUPTED)
    raise SystemExit(FOUND_WRONG if bad or any(change.verdict == "slower" for change in changed) else 0)


def _show(
    shown: Console, done: dict[Run, Record], before: dict[Run, Record] | None, noise: float
) -> tuple[list[Record], list[Change]]:
    """Print the results of runs; return those that failed, and the changes since the results `before`."""
    from fxpool.bench import report

    shown.print()
    shown.print(report.table(done, shown.width))
    for mark, note in report.footnotes(done):
        shown.print(wrapped(f"{mark:<2} ", note, shown.width), markup=False, soft_wrap=True)
    shown.print()
    bad = report.failures(done)
    for record in bad:
        # The file has the complete reason.
        reason = record.reason.strip() or f"differs from eager by {record.difference or 0:.1e}"
        shown.print(
            _failed(record.run.id, record.state, reason, width()), markup=False, highlight=False, soft_wrap=True
        )
    if before is None:
        return bad, []
    changed = report.changes(before, done, noise)
    shown.print()
    shown.print(report.change_table(changed, shown.width))
    shown.print()
    return bad, changed


def _write(
    shown: Console, results: Path, done: dict[Run, Record], changed: list[Change], pyperf: Path | None
) -> list[Path]:
    """Write the page, the plots and pyperf's file beside the results; return their paths."""
    from fxpool.bench import page, plots, report
    from fxpool.bench.results import pyperf_json, read

    head = read(results)[0]
    written = [results.with_name("report.html")]
    written[0].write_text(page.page(head, done, changed), encoding="utf-8")
    lines = report.lines(done)
    if lines and plots.available():
        drawn = plots.draw(lines, results.parent)
        written += drawn
        if not any(path.name == plots.FIRST_CALLS for path in drawn) and any(line.beside for line in lines):
            shown.print(
                "no picture of first calls: none was alone (use --jobs 1 --fresh on an idle machine)", highlight=False
            )
    elif lines:
        shown.print(
            "no plots: matplotlib is not installed (pip install 'fxpool[bench]')", markup=False, highlight=False
        )
    if pyperf is not None and lines:
        pyperf.write_text(pyperf_json(head, done), encoding="utf-8")
        written.append(pyperf)
    return written
