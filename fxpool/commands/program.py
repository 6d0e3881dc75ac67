"""The commands ``fxpool run``, ``warm`` and ``capture``: start a program whose ``backend="inductor"`` uses the pool.

The program is a new Python process, so that arguments, ``__main__``, tracebacks and exit status are Python's. It
installs fxpool itself (`lowering.inductor.program_run`), as do its child processes.

    run              replaces this process by the program
    run --summary    waits for the program, and adds up the reports of its processes
    warm             the same, and waits for its background compiles
    capture          the same with the setting `capture`: graphs are recorded and run eagerly

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

from fxpool import config, quantities, setting_values, temporary
from fxpool.commands.output import FOUND_WRONG, fail, show_rows, width, wrapped

__all__ = ["capture", "run", "warm"]

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
# Graphs that were not stored because the user's settings say so.
_INTENDED = ("compiled_fast",)


def _program(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options and arguments of a command that starts a program."""
    for add in (
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="PROGRAM [ARGUMENT]..."),
        click.option("-m", "as_module", is_flag=True, help="PROGRAM is a module, as for python -m."),
        click.option("--mode", metavar="MODE", help="Compile mode, such as async+subprocess (default: the setting)."),
    ):
        command = add(command)
    return command


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--summary", is_flag=True, help="Print hits, compiles and saved seconds at the end.")
@_program
def run(arguments: tuple[str, ...], as_module: bool, mode: str | None, summary: bool) -> None:
    """Run a program with stock torch.compile on fxpool.

    PROGRAM is a script or, with -m, a module; its code stays unchanged. Its backend "inductor" compiles on fxpool's
    workers, as after fxpool.install(), and so do its child processes. Everything else is as with python: arguments,
    output, tracebacks, exit status.
    """
    command, variables = _command(arguments, as_module, mode)
    if not summary:
        _replace(command, variables)
    status, reports = _report(command, variables, wait=False)
    click.echo(f"fxpool: {_summary(reports)}", err=True)
    _end(status)


@click.command(context_settings={"allow_interspersed_args": False})
@_program
def warm(arguments: tuple[str, ...], as_module: bool, mode: str | None) -> None:
    """Run a program to fill the cache before a deployment.

    Runs it as `fxpool run` does, waits for background compiles, and reports which graphs are in the cache. The exit
    status is the program's or, if that is 0, 1 if a graph could not be stored; the reason is printed.
    """
    command, variables = _command(arguments, as_module, mode)
    status, reports = _report(command, variables, wait=True)
    lost = _show_warm(reports)
    _end_of_report(status, not lost)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--to", "directory", required=True, type=click.Path(file_okay=False), help="Directory for the requests.")
@_program
def capture(arguments: tuple[str, ...], as_module: bool, mode: str | None, directory: str) -> None:
    """Record a program's graphs, for another machine to compile.

    Runs it as `fxpool run` does, but compiles nothing: its graphs run eagerly, and what a worker needs to compile them
    is written to DIRECTORY, which ranks may share. `fxpool build DIRECTORY` compiles them, on a machine without a GPU,
    too. The exit status is the program's or, if that is 0, 1 if nothing was recorded.
    """
    command, variables = _command(arguments, as_module, mode)
    variables[config.variable("capture")] = os.path.abspath(directory)
    status, reports = _report(command, variables, wait=True)
    recorded = _show_capture(reports, directory)
    _end_of_report(status, bool(recorded))


# ---------------------------------------------------------------- the program


def _command(arguments: tuple[str, ...], as_module: bool, mode: str | None) -> tuple[list[str], dict[str, str]]:
    """Return the program's command line and environment. Ends the command if the program could not use fxpool."""
    if not arguments:
        raise click.UsageError("Missing argument 'PROGRAM'.")
    try:
        mode = config.current().mode if mode is None else setting_values.as_mode(mode)
    except setting_values.BadValue as bad:
        raise click.BadParameter(f"{mode!r} is not {bad}", param_hint="--mode") from None
    if os.environ.get(_AUTOLOAD, "1") != "1":
        fail(f"{_AUTOLOAD}={os.environ[_AUTOLOAD]} keeps torch from loading fxpool\n  unset it")
    command = [sys.executable, *(["-m"] if as_module else []), *arguments]
    # torch reads the mode from the environment only, fxpool from its settings file, too.
    return command, {**os.environ, config.variable("mode"): mode}


def _replace(command: list[str], variables: dict[str, str]) -> NoReturn:
    from fxpool.lowering.inductor import program_run

    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(command[0], command, {**variables, **program_run.environment()})


def _report(command: list[str], variables: dict[str, str], *, wait: bool) -> tuple[int, list[dict[str, Any]]]:
    """Run a program; return its status as `subprocess` has it, and the reports of its processes."""
    from fxpool.lowering.inductor import program_run

    with temporary.directory("run") as directory:
        environment = {**variables, **program_run.environment(reports=directory, wait=wait)}
        with subprocess.Popen(command, env=environment) as process:
            with contextlib.ExitStack() as stack:
                # The terminal sends Ctrl-C to the program as well, which decides what follows.
                _handled(stack, signal.SIGINT, signal.SIG_IGN)
                for number in (signal.SIGTERM, signal.SIGHUP):
                    _handled(stack, number, lambda number, _: process.send_signal(number))
                status = process.wait()
        return status, [json.loads(path.read_bytes()) for path in sorted(Path(directory).glob("*.json"))]


def _handled(stack: contextlib.ExitStack, number: int, handler: Any) -> None:
    stack.callback(signal.signal, number, signal.signal(number, handler))


def _end_of_report(status: int, succeeded: bool) -> NoReturn:
    if status:
        click.echo(f"the program ended with {_status(status)}", err=True)
        _end(status)
    raise SystemExit(0 if succeeded else FOUND_WRONG)


def _end(status: int) -> NoReturn:
    """End as the program did: with its exit status, or by the same signal."""
    if status < 0:
        sys.stdout.flush()
        with contextlib.suppress(OSError):  # SIGKILL cannot be handled
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    raise SystemExit(status if status >= 0 else 128 - status)


def _status(status: int) -> str:
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


# ---------------------------------------------------------------- the reports


@dataclasses.dataclass
class _Totals:
    """Sums over the processes of a program."""

    hits: int
    compiled: int
    fallbacks: int
    saved: float
    inductor_hits: int
    inductor_compiled: int
    directories: list[str]


def _totals(reports: list[dict[str, Any]]) -> _Totals:
    def total(value: Callable[[dict[str, Any]], int]) -> int:
        return sum(map(value, reports))

    return _Totals(
        hits=total(lambda report: report["hits"]),
        compiled=total(lambda report: sum(report["compiles"].values())),
        fallbacks=total(lambda report: sum(report["fallbacks"].values())),
        saved=sum(report["seconds_saved"] for report in reports),
        inductor_hits=total(lambda report: report["inductor"].get("hits", 0)),
        inductor_compiled=total(lambda report: report["borrowed"].get("fx", 0)),
        directories=sorted({report["inductor"]["directory"] for report in reports if report["inductor"]}),
    )


def _summary(reports: list[dict[str, Any]]) -> str:
    """Format as ``3 hits, 1 compile, 12 s saved``; stock Inductor's own cache is named if it was used."""
    if not reports:
        return "no report: the program did not import torch, or was killed"
    total = _totals(reports)
    hits = quantities.counted(total.hits, "hit")
    if total.inductor_hits:
        of_inductor = f"{quantities.counted(total.inductor_hits, 'hit')} in Inductor's cache"
        hits = f"{hits}, {of_inductor}" if total.hits else of_inductor
    parts = [hits, quantities.counted(total.compiled + total.inductor_compiled, "compile")]
    if total.hits or not total.inductor_hits:  # Inductor's cache does not say what it saved
        parts.append(f"{quantities.span(total.saved)} saved")
    if total.fallbacks:
        parts.append(quantities.counted(total.fallbacks, "fallback"))
    return ", ".join(parts) + (f" ({len(reports)} processes)" if len(reports) > 1 else "")


def _show_warm(reports: list[dict[str, Any]]) -> int:
    """Print what a program left in the caches; return the number of graphs that are not stored."""
    total, lost = _totals(reports), sum(map(_lost, reports))
    rows = {"graphs compiled": str(total.compiled), "hits": str(total.hits)}
    if total.inductor_compiled or total.inductor_hits:
        caches, hits = ", ".join(total.directories) or "off", quantities.counted(total.inductor_hits, "hit")
        rows["by Inductor"] = f"{total.inductor_compiled} compiled, {hits}; its cache: {caches}"
    rows |= {"fallbacks": str(total.fallbacks), "not stored": str(lost)}
    directories = sorted({report["cache_dir"] for report in reports} or {str(config.current().cache_dir)})
    contents = [("cache", f"{directory}: {_contents(directory)}") for directory in directories]
    show_rows([*rows.items(), *contents])
    if not total.hits + total.compiled + total.inductor_compiled + total.inductor_hits:
        click.echo("no graph was compiled: the program called no compiled function, or was killed")
    for report in reports:
        _show_reasons(report)
    return lost


def _show_capture(reports: list[dict[str, Any]], directory: str) -> int:
    """Print the numbers of graphs that a program recorded, and why others were not; return how many there are."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report["captures"])
    recorded, present = counts.pop("recorded", 0), counts.pop("present", 0)
    again = f", {present} captured again" if present else ""
    click.echo(f"recorded {quantities.counted(recorded, 'graph')} in {directory}{again}")
    for reason, count in sorted(counts.items()):
        click.echo(f"not recorded: {quantities.counted(count, 'graph')} ({reason.removeprefix('not:')})")
    if recorded + present:
        click.echo(f"`fxpool build {directory}` compiles them")
    elif not counts:
        click.echo("no graph was captured: the program called no compiled function, or was killed")
    return recorded + present


def _contents(directory: str) -> str:
    if not os.path.isdir(directory):
        return "no entries"
    from fxpool.codecache.store.store import LocalStore
    from fxpool.errors import StoreError

    try:
        sizes = LocalStore(directory).sizes()
    except StoreError as error:
        return f"refused: {error.message}"
    counts = f"{quantities.counted(sizes['entries'], 'entry', 'entries')}, {quantities.counted(sizes['blobs'], 'blob')}"
    return f"{counts}, {quantities.size(sizes['bytes'])}"


def _lost(report: Mapping[str, Any]) -> int:
    """Return the number of a process's graphs that are not stored."""
    # A graph, and the graphs that AOTAutograd makes of it, are "graph 1 [1/0]" and "graph 1 [1/0] forward".
    labels = {" ".join(record["label"].split()[:2]) for record in report["graphs"] if _is_lost(record)}
    cached = report["inductor"]
    return len(labels) + (cached["bypasses"] if cached else report["borrowed"].get("fx", 0))


def _show_reasons(report: Mapping[str, Any]) -> None:
    """Print why graphs of a process are not stored, and what to do."""
    from fxpool.explanation import process

    reasons = {reason for record in report["graphs"] if _is_lost(record) for reason in record["reasons"]}
    columns = width()
    for counted in process.counted_reasons(report):
        if counted.counter == "bypasses" or counted.reason in reasons:
            first, *rest = str(counted).splitlines()
            for line in (wrapped("", first, columns), *(wrapped("  ", line.strip(), columns) for line in rest)):
                click.echo(line)
    if report["inductor"].get("bypasses"):
        click.echo("Inductor did not cache graphs; TORCH_LOGS=inductor says why")
    elif report["borrowed"].get("fx") and not report["inductor"]:
        click.echo("Inductor's caches are off (TORCHINDUCTOR_FORCE_DISABLE_CACHES or its configuration)")


def _is_lost(record: Mapping[str, Any]) -> bool:
    """Return whether a record is of a graph that the next process has to compile again."""
    lost = any(
        # A graph of AOTAutograd's that left its level was compiled by Inductor in the program's process.
        reason.startswith("fx:") or (reason.startswith("bypass:") and reason.removeprefix("bypass:") not in _INTENDED)
        for reason in record["reasons"]
    )
    return lost or record["level"] == "in_process" or record["outcome"] in ("eager", "not_kept")
