"""``python -m campaigns.chaos``: faults against running pools, and a table of figures; fails if anything goes wrong.

python -m campaigns.chaos                            300 kills, 20,000 frames, 200 clients for 10 minutes, all limits
python -m campaigns.chaos --parts kills --kills 20   some of it
python -m campaigns.chaos --parts limits --limits nofile
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable

from . import clients, frames, kills, limits
from .scene import Report

_SHOWN = 20


def main() -> int:
    """The command line's exit status."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="kills,frames,clients,limits", help="some of them, with commas between")
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the clients")
    parser.add_argument("--limits", default="", metavar="WORDS", help="rows whose names contain them")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    options = parser.parse_args()
    seed = options.seed or random.SystemRandom().randrange(1, 1 << 31)
    print(f"seed {seed}", flush=True)
    parts: dict[str, Callable[[], Report]] = {
        "kills": lambda: kills.run(options.kills, seed),
        "frames": lambda: frames.run(options.frames, seed),
        "clients": lambda: clients.run(options.clients, options.minutes * 60),
        "limits": lambda: limits.run(options.limits),
    }
    failed = False
    for name in options.parts.split(","):
        started = time.monotonic()
        report = parts[name]()
        report.seconds = time.monotonic() - started
        print(table(report), flush=True)
        failed |= report.failed
    return int(failed)


def table(report: Report) -> str:
    """Return a part's lines: figures, the three counts that have to be 0, and examples."""
    figures = ", ".join(f"{count:,} {name}" for name, count in sorted(report.figures.items()))
    lines = [f"{report.part} ({report.seconds:.0f} s): {figures}"]
    for name, found in (("wrong", report.wrong), ("lost", report.lost), ("left behind", report.left)):
        lines.append(f"    {len(found)} {name}")
        lines += [f"        {one}" for one in found[:_SHOWN]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
