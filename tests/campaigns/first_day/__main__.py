"""``python -m campaigns.first_day``: run the rows, print a table; fails if a row does.

python -m campaigns.first_day --list
python -m campaigns.first_day --rows 'fork*,HOME*' --keep /tmp/fd     some rows, their files kept
python -m campaigns.first_day --backend inductor                      tries the rows: stock Inductor in fxpool's place
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from harness.children import orderly_end

from . import checkout, compilers, directories, frameworks, homes, interpreters, limits, machines, processes, streams
from .row import Row
from .running import LIMIT, Outcome, Runner

SUBJECTS = (
    checkout, processes, interpreters, streams, directories, homes, limits, machines, compilers, frameworks,
)  # fmt: skip


def rows(patterns: str | None = None) -> list[Row]:
    """All rows, or those whose name matches one of `patterns`, with commas between them. Raises SystemExit."""
    every = [row for subject in SUBJECTS for row in subject.ROWS]
    if not patterns:
        return every
    wanted = patterns.split(",")
    found = [row for row in every if any(fnmatch.fnmatchcase(row.name, one.strip()) for one in wanted)]
    if not found:
        raise SystemExit(f"no row is called {patterns}; --list prints their names")
    return found


def line(outcome: Outcome) -> str:
    """A row's line of the table."""
    columns = [f"{outcome.row:<44.44}", f"{outcome.happened:<22.22}", f"{outcome.again:<16.16}"]
    columns += [f"{outcome.warnings or '':>4}", f"{outcome.seconds:6.1f} ", outcome.verdict]
    return "  ".join(columns)


def main() -> int:
    """The command line's exit status."""
    parser = argparse.ArgumentParser(prog="first_day", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", metavar="PATTERN", help="names or patterns of rows, with commas between them")
    parser.add_argument("--slots", type=int, default=2, help="rows that run at a time")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS", help="for one run of a program")
    parser.add_argument("--backend", default="fxpool", help="what is tried; inductor tries the rows themselves")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all that was seen there")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="a short name; everything stays there")
    parser.add_argument("--list", action="store_true", help="print the names of the rows")
    asked = parser.parse_args()
    wanted = rows(asked.rows)
    if asked.list:
        print("\n".join(row.name for row in wanted))
        return 0
    order = {row.name: number for number, row in enumerate(wanted)}
    outcomes: list[Outcome] = []
    begun = time.monotonic()
    print(f"{'row':<44}  {'what happened':<22}  {'second run hit':<16}  warn  seconds  verdict")
    with orderly_end(), Runner(slots=asked.slots, backend=asked.backend, limit=asked.limit, keep=asked.keep) as runner:
        for outcome in runner.run_all(wanted):
            outcomes.append(outcome)
            print(line(outcome), flush=True)
    outcomes.sort(key=lambda outcome: order[outcome.row])
    if asked.json:
        asked.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    failed = [outcome for outcome in outcomes if outcome.failed]
    skipped = sum(outcome.verdict.startswith("skipped") for outcome in outcomes)
    print(
        f"\n{len(outcomes)} rows in {time.monotonic() - begun:.0f} s on {len(os.sched_getaffinity(0))} cores: "
        f"{len(outcomes) - len(failed) - skipped} ok, {len(failed)} failed, {skipped} skipped"
    )
    for outcome in failed:
        print(f"  {outcome.row}: {outcome.verdict}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
