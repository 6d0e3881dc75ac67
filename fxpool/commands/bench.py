"""``fxpool bench``: the cases of a suite, compiled side by side and measured one after the other."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from pathlib import Path

import click

from fxpool.commands.output import FOUND_WRONG, INTERRUPTED, console, fail

__all__ = ["bench"]


# Lines shown of why a run failed.
_LINES = 4


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


@click.command()
@click.argument("suite")
@click.option("--cases", default="", help="Only these cases: names or shell patterns, separated by commas.")
@click.option("--modes", default="", help="Only these modes: inference, training, dynamic.")
@click.option("--backends", default="", help="These backends instead of the cases' own; eager is not compiled.")
@click.option("--devices", default="", help="cuda, or cuda:0,cuda:1: there, instead of on the cases' own devices.")
@click.option("--repetitions", default=1, show_default=True, type=click.IntRange(1), help="Processes for each.")
@click.option("--jobs", default=0, help="Processes at once; by default one more than cores.")
@click.option("--threads", default=0, help="Threads of torch in each process; by default as torch decides.")
@click.option("--out", type=click.Path(path_type=Path), help="Where results go; by default bench-SUITE.")
@click.option("--fresh", is_flag=True, help="Begin anew; otherwise what is there is not run again.")
@click.option("--retry", is_flag=True, help="Run again what failed before.")
@click.option(
    "--caches",
    type=click.Choice(["own", "user"]),
    default="own",
    show_default=True,
    help="own: empty ones, for this run. user: yours.",
)
@click.option("--warm", is_flag=True, help="Time the first call of a second process, too: what caches save.")
@click.option("--beside", is_flag=True, help="Measure while others compile. For showing what that does to times.")
@click.option("--compare", type=click.Path(path_type=Path), help="Other results (results.jsonl) to compare with.")
@click.option("--pyperf", type=click.Path(path_type=Path), help="Write the times as a file for pyperf, too.")
@click.option("--noise", default=0.02, show_default=True, help="Changes by a smaller part are none.")
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
    """Run the cases of SUITE: a .py or .toml file, or one that ships (attention, convolutions, kernels, transformers).

    Models are compiled side by side and measured one after the other, with everything else of the run at a standstill.
    Results are written as they come; the same command goes on where it was stopped. The exit status is 1 if a case
    failed, was wrong, or (with --compare) is slower.
    """
    # Imported here: `fxpool --help` is to answer at once.
    from fxpool.bench import page, plots, pyperf_file, report, runner
    from fxpool.bench import suite as suites
    from fxpool.bench.case import runs
    from fxpool.bench.display import Display
    from fxpool.bench.results import Record, Results, read

    chosen = suites.load(suite)
    selected = suites.select(chosen.cases, _words(cases))
    other = read(compare)[1] if compare is not None else None
    place = out if out is not None else Path(f"bench-{chosen.name}")
    results = Results(place / "results.jsonl", chosen, fresh=fresh)
    wanted = list(runs(selected, modes=_words(modes), backends=_words(backends), repetitions=repetitions))
    found = {run: results.there[run] for run in wanted if run in results.there}
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
        environment=runner.fresh_caches(own.absolute()) if caches == "own" else {},
    )
    active = runner.Runner(chosen, missing, settings, add, lambda: display.change())
    with contextlib.closing(results), Display(shown, active, len(wanted), len(wanted) - len(missing)) as display:
        stopped = False
        try:
            asyncio.run(active.run())
        except asyncio.CancelledError:
            stopped = True
    done = {run: found[run] for run in wanted if run in found}
    shown.print(report.table(done))
    bad = report.failures(done)
    for record in bad:
        # All of it is in the file.
        reason = record.reason.strip() or f"off eager by {record.difference or 0:.1e}"
        said = "\n  ".join(reason.splitlines()[:_LINES])
        shown.print(f"{record.run.id}: {record.state}: {said}", markup=False, highlight=False)
    slower = False
    changed: list[report.Change] = []
    if other is not None:
        changed = report.changes(other, done, noise)
        shown.print(report.change_table(changed))
        slower = any(one.verdict == "slower" for one in changed)
    head = read(results.path)[0]
    (place / "report.html").write_text(page.page(head, done, changed), encoding="utf-8")
    written = [results.path, place / "report.html"]
    lines = report.lines(done)
    if lines and plots.available():
        written += plots.draw(lines, place)
    elif lines:
        shown.print("no pictures: pip install 'fxpool[bench]' brings matplotlib", markup=False, highlight=False)
    if pyperf is not None and lines:
        pyperf.write_text(pyperf_file.pyperf_json(head, done), encoding="utf-8")
        written.append(pyperf)
    shown.print(f"results: {', '.join(map(str, written))}", highlight=False, soft_wrap=True)
    if stopped:
        fail("stopped; the same command goes on from here", INTERRUPTED)
    raise SystemExit(FOUND_WRONG if bad or slower else 0)
