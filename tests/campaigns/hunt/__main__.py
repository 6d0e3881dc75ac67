"""``python -m campaigns.hunt``: run cases, print a table, write the results as JSON; fails if anything is wrong.

python -m campaigns.hunt --cases 200 --seed 3 --kinds read_closure,use_low_implicit
python -m campaigns.hunt --cases 3000 --resume                        continues what --out holds of that seed
python -m campaigns.hunt --case read_closure:7 --keep DIRECTORY       one case again, its files kept
python -m campaigns.hunt --backend inductor --cases 100               tries the expectations: stock in fxpool's place
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import sys
from pathlib import Path

from harness.children import orderly_end
from harness.places import scratch

from .drawing import draw, kinds
from .program import Case
from .report import Report
from .runner import Hunter

OUT = Path(__file__).resolve().parents[3] / "bench" / "out" / "hunt.json"


def chosen_kinds(patterns: str | None) -> list[str]:
    """Names of kinds that match one of the patterns, with commas between them; all without. Raises SystemExit."""
    names = sorted(kinds())
    if not patterns:
        return names
    found = [name for name in names if any(fnmatch.fnmatch(name, one) for one in patterns.split(","))]
    if not found:
        raise SystemExit(f"no kind is called {patterns}; there are: {', '.join(names)}")
    return found


def cases_of(names: list[str], count: int, seed: int) -> list[Case]:
    """`count` cases, one of each kind in turn; of kinds whose processes are slow to start a fifth of that."""
    table, number = kinds(), 0
    found: list[tuple[str, int]] = []
    while len(found) < count:
        # Not by name: what a part of a hunt says should be said of all kinds.
        for name in random.Random(f"{seed} {number}").sample(names, len(names)):
            if len(found) < count and not (table[name].slow and number % 5 and len(names) > 1):
                found.append((name, number))
        number += 1
    return [draw(name, number, seed) for name, number in found]


def main() -> int:
    """The command line's exit status."""
    parser = argparse.ArgumentParser(prog="hunt", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="names or patterns of kinds, with commas between them")
    parser.add_argument("--case", help="one case: kind:number")
    parser.add_argument("--slots", type=int, default=2, help="cases that run at a time")
    parser.add_argument("--backend", default="fxpool", help="what is tried; inductor tries the expectations")
    parser.add_argument("--stock-every", type=int, default=10, help="compare every so many with stock in any case")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--resume", action="store_true", help="leave out cases that --out holds already")
    parser.add_argument("--keep", type=Path, help="a directory with a short name, for everything the cases write")
    parser.add_argument("--list", action="store_true", help="print the kinds")
    asked = parser.parse_args()
    names = chosen_kinds(asked.kinds)
    if asked.list:
        print("\n".join(names))
        return 0
    if asked.case:
        name, _, number = asked.case.partition(":")
        cases = [draw(name, int(number), asked.seed)]
    else:
        cases = cases_of(names, asked.cases, asked.seed)
    report = Report(asked.out, asked.seed, asked.backend, resume=asked.resume)
    cases = [case for case in cases if not report.has(case.kind, case.number)]
    with orderly_end(), scratch("hunt-", asked.keep) as root:
        with Hunter(
            root, slots=asked.slots, backend=asked.backend, stock_every=asked.stock_every, keep=bool(asked.keep)
        ) as hunter:
            try:
                for outcome in hunter.run_all(cases):
                    report.add(outcome)
            finally:  # an interrupted hunt can be resumed
                report.write()
    print(report.table())
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
