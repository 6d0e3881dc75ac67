"""The command ``fxpool doctor``: checks everything that fxpool needs, and names a remedy for each problem.

The checks are imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict
from typing import Any

import click

from fxpool import quantities
from fxpool.commands.output import FOUND_WRONG, width, wrapped
from fxpool.doctor.findings import FAIL, OK, WARN, Finding, examine
from fxpool.version import __version__

__all__ = ["doctor"]

_COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}
_NAME = 12
_TRIAL = "A graph is compiled, and loaded by another process: about ten seconds, up to a minute on a fresh machine."


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def doctor(as_json: bool) -> None:
    """Check compiler, directories, limits, GPUs and a compile.

    Each line is a finding, with a remedy if there is a problem. The farm is checked if FXPOOL_FARM is set. A graph is
    compiled and served from the cache, with temporary caches; yours is not changed. Takes about ten seconds, and up to
    a minute on a fresh machine. The exit status is 1 if a check fails.
    """
    from fxpool.doctor import compile_trial, host

    started = time.monotonic()
    # Slow and independent of the other checks: started first, reported last.
    with compile_trial.Trial() as trial:
        findings: list[Finding] = []
        for heading, checks in ((f"fxpool {__version__} on {_host()}", host.CHECKS), (_TRIAL, trial.checks())):
            if not as_json:
                click.echo(wrapped("", heading, width()))
            for finding in examine(checks):
                findings.append(finding)
                if not as_json:
                    _tell(finding)
    counts = {state: sum(one.state == state for one in findings) for state in (OK, WARN, FAIL)}
    seconds = time.monotonic() - started
    if as_json:
        facts: dict[str, Any] = {"fxpool": __version__, "host": _host(), "seconds": round(seconds, 1), **counts}
        click.echo(json.dumps({**facts, "checks": [asdict(one) for one in findings]}))
    else:
        warnings = quantities.counted(counts[WARN], "warning")
        click.echo(f"{counts[OK]} ok, {warnings}, {counts[FAIL]} failed, in {seconds:.0f} s")
    raise SystemExit(FOUND_WRONG if counts[FAIL] else 0)


def _tell(finding: Finding) -> None:
    columns = width()
    first = f"{finding.state:<5} {finding.check:<{_NAME}} "
    lines = wrapped(first, finding.found, columns)
    # Coloured after wrapping, which counts characters.
    if not os.environ.get("NO_COLOR"):
        lines = click.style(finding.state, fg=_COLOURS[finding.state]) + lines[len(finding.state) :]
    click.echo(lines)
    if finding.remedy and finding.state != OK:
        click.echo(wrapped(" " * len(first), f"-> {finding.remedy}", columns))


def _host() -> str:
    uname = platform.uname()
    return f"{uname.system} {uname.release}, {uname.machine}"
