"""The command ``fxpool doctor``: whether everything that fxpool needs is here, and what to do where it is not.

    doctor_host         Python, torch, compiler, directories, limits: looked at from here, and no torch is imported
    doctor_compile      a compile and a hit in two processes, and the GPUs in a third

Each check is a generator of findings. One that fails in a way nobody thought of is a finding, too, and the others go
on: this runs where something is wrong.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import click

import fxpool
from fxpool.command_line import FOUND_WRONG, width, wrapped

__all__ = ["Check", "Finding", "doctor", "examine"]

OK, WARN, FAIL = "ok", "warn", "fail"
_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}
_NAME = 12


@dataclass(frozen=True)
class Finding:
    """What one check found: `state` is ``ok``, ``warn`` or ``fail``; `remedy` is what to do; `detail` is for --json."""

    check: str
    state: str
    found: str
    remedy: str = ""
    detail: str = ""


Check = tuple[str, Callable[[], Iterable[Finding]]]


def examine(checks: Iterable[Check]) -> Iterator[Finding]:
    """What the checks find, one after another. Never raises."""
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:
            said = " ".join(str(error).split())
            yield Finding(
                name,
                WARN,
                f"can't be told here: {type(error).__name__}" + (f": {said}" if said else ""),
                "nothing, if all else is well; please report it",
            )


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Plain data.")
def doctor(as_json: bool) -> None:
    """Check compiler, directories, limits, GPUs, and do a real compile and a real hit. Some ten seconds.

    Each line says what was found, and what to do where something is amiss. Nothing of yours is changed: the compile has
    temporary caches. Status 1 if something fails, 0 if not.
    """
    from fxpool import doctor_compile, doctor_host

    started = time.monotonic()
    # Slow, and nobody else waits for it meanwhile: begun first, told last.
    with doctor_compile.Trial() as trial:
        checks = [*doctor_host.CHECKS, *trial.checks()]
        found: list[Finding] = []
        if not as_json:
            click.echo(wrapped("", f"fxpool {fxpool.__version__} on {_host()}", width()))
        for finding in examine(checks):
            found.append(finding)
            if not as_json:
                _tell(finding)
    counts = {state: sum(one.state == state for one in found) for state in (OK, WARN, FAIL)}
    seconds = time.monotonic() - started
    if as_json:
        facts: dict[str, Any] = {"fxpool": fxpool.__version__, "host": _host(), "seconds": round(seconds, 1), **counts}
        click.echo(json.dumps({**facts, "checks": [asdict(one) for one in found]}))
    else:
        warnings = f"{counts[WARN]} warning{'' if counts[WARN] == 1 else 's'}"
        click.echo(f"{counts[OK]} ok, {warnings}, {counts[FAIL]} failed, in {seconds:.0f} s")
    raise SystemExit(FOUND_WRONG if counts[FAIL] else 0)


def _tell(finding: Finding) -> None:
    columns = width()
    first = f"{finding.state:<5} {finding.check:<{_NAME}} "
    lines = wrapped(first, finding.found, columns)
    # Coloured after it was measured.
    if not os.environ.get("NO_COLOR"):
        lines = click.style(finding.state, fg=_COLOURS[finding.state]) + lines[len(finding.state) :]
    click.echo(lines)
    if finding.remedy and finding.state != OK:
        click.echo(wrapped(" " * len(first), f"-> {finding.remedy}", columns))


def _host() -> str:
    uname = platform.uname()
    return f"{uname.system} {uname.release}, {uname.machine}"
