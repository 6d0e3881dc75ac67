"""Hunts for frames that are served although something changed: programs made of several kinds, one of which changes.

    frame_hunt.py FOLDER CASES SEED

prints a line of JSON for each case that is wrong, and the numbers of all outcomes at the end. `facts` is the number of
facts that were changed when frames were kept. Kinds that are never kept, fit no other
process, or need a graph of operators, are left out.
"""

from __future__ import annotations

import collections
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
from frame_changes import reported, warm_up
from frame_kinds import KINDS
from frame_programs import Together

from fxpool.frames.record import Record


def case(chance: random.Random) -> tuple[list[str], Together]:
    """Return a random case, with the names of its kinds."""
    names = [name for name, kind in KINDS.items() if not (kind.refused or kind.once or kind.flat)]
    chosen = chance.sample(names, chance.choice((1, 2, 2, 3)))
    # One of these is of the kinds that the others are unchanged of.
    kinds = tuple(KINDS[name] for name in chosen)
    return chosen, Together(kinds, chance.randrange(len(kinds)), chance.random() < 0.5)


def verdict(report: dict[str, Any], together: Together) -> str:
    """Return what came of a case in a word."""
    said = report["first"]["said"]
    if report["first"]["outcome"] != "kept" or any(one != "kept" for one in said):
        return "failed" if report["first"]["outcome"] == "failed" else "refused"
    if not report["first"]["same"]:
        return "own state"  # a second call has another result
    for process in ("again", "changed"):
        outcome = report.get(process, {"outcome": ""})
        if outcome["outcome"] in ("served", "partly") and not outcome["same"]:
            return "WRONG"
    lenient = any(kind.lenient for kind in together.kinds)
    if report.get("again", {"outcome": "served"})["outcome"] != "served" and not lenient:
        return "the same program is not served"
    changing = together.kinds[together.at]
    if report["changed"]["outcome"] == "served" and not (changing.neutral or changing.lenient):
        return "served although it changed"
    return str(report["changed"]["outcome"])


def main(folder: Path, cases: int, seed: int) -> None:
    """Print wrong cases, and the numbers of all outcomes."""
    warm_up()
    chance = random.Random(seed)
    counts: collections.Counter[str] = collections.Counter()
    facts = 0
    for number in range(cases):
        names, together = case(chance)
        place = folder / str(number)
        report = reported(together, place, again=number % 4 == 0)
        counts[found := verdict(report, together)] += 1
        if "again" in report:
            counts[f"the same program: {report['again']['outcome']}"] += 1
        for path in place.glob("*.record"):
            facts += msgspec.msgpack.decode(path.read_bytes(), type=Record).proof
        if found not in ("missed", "partly", "served", "refused", "own state"):
            print(
                json.dumps({"kinds": names, "at": together.at, "back": together.back, "found": found, **report}),
                flush=True,
            )
        shutil.rmtree(place)
    print(json.dumps({"cases": cases, "seed": seed, "facts": facts, "outcomes": counts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
