"""``python -m campaigns.conformance``: run sweeps under stock Inductor and fxpool, and print what differs.

python -m campaigns.conformance --sweeps programs --only 'hop*,cond'
python -m campaigns.conformance --sweeps operators --shard 3/32 --out DIRECTORY    all records as JSON lines
python -m campaigns.conformance --backends inductor                                tries the sweep: what is not right

With TORCHINDUCTOR_AUTOGRAD_CACHE=0 in the environment, graphs are kept as AOTAutograd made them.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from harness.children import orderly_end
from harness.places import scratch

from . import verdict
from .child import MODULES
from .record import RIGHT, SKIP, Record, append
from .running import Runner


def chosen(keys: Sequence[str], only: str | None, shard: str) -> list[str]:
    """The keys of one shard that match one of the patterns, with commas between them. Raises SystemExit."""
    number, _, count = shard.partition("/")
    if not (number.isdigit() and count.isdigit() and int(number) < int(count)):
        raise SystemExit(f"--shard is I/N with 0 <= I < N, not {shard}")
    if only:
        patterns = only.split(",")
        keys = [key for key in keys if any(fnmatch.fnmatchcase(key, one) for one in patterns)]
    return list(keys[int(number) :: int(count)])


def main() -> int:
    """The command line's exit status: 1 if something is lost."""
    parser = argparse.ArgumentParser(prog="conformance", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sweeps", default=",".join(MODULES), help="names of sweeps, with commas between them")
    parser.add_argument("--only", metavar="PATTERN", help="names or patterns of items, with commas between them")
    parser.add_argument("--shard", default="0/1", metavar="I/N", help="items I, I+N, I+2N, ...")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, metavar="DIRECTORY", help="all records go there, a line of JSON each")
    parser.add_argument("--backends", default="inductor,fxpool", help="one alone is compared with eager execution only")
    parser.add_argument("--list", action="store_true", help="print the names of the items")
    asked = parser.parse_args()
    names, backends = asked.sweeps.split(","), asked.backends.split(",")
    if unknown := [*({*names} - {*MODULES}), *({*backends} - {"inductor", "fxpool"})]:
        parser.error(f"neither a sweep nor a back end: {', '.join(unknown)}")
    lost = False
    with orderly_end(), scratch("cf-") as root:
        for name in names:
            module = importlib.import_module(MODULES[name], __package__)
            keys = chosen(module.keys(), asked.only, asked.shard)
            if asked.list:
                print("\n".join(f"{name} {key}" for key in keys))
                continue
            if not keys:
                continue
            runner = Runner(root, asked.jobs, asked.seed)
            runs = {one: _run(runner, name, keys, one, asked.out) for one in backends}
            if len(runs) == 2:
                found = verdict.differences(runs["inductor"], runs["fxpool"])
                for one in found:
                    print(one)
                print(verdict.summary(name, keys, found), flush=True)
                lost |= any(one.kind in (verdict.LOST_RESULT, verdict.LOST_CACHING) for one in found)
            else:
                lost |= _print_alone(name, next(iter(runs.values())))
    return int(lost)


def _run(runner: Runner, name: str, keys: list[str], backend: str, out: Path | None) -> dict[str, list[Record]]:
    file = out / f"{name}-{backend}.jsonl" if out is not None else None
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
    count = 0

    def done(records: list[Record]) -> None:
        nonlocal count
        count += len({record.key for record in records})
        if file is not None:
            append(file, records)
        print(f"{name} under {backend}: {count} of {len(keys)}", file=sys.stderr, flush=True)

    return runner.run(name, importlib.import_module(MODULES[name], __package__), keys, backend, done)


def _print_alone(name: str, runs: dict[str, list[Record]]) -> bool:
    """Print what is not right under the only back end there is; True if that is anything."""
    wrong = {
        key: next(record for record in records if record.status != RIGHT)
        for key, records in runs.items()
        if any(record.status != RIGHT for record in records)
    }
    for key, record in wrong.items():
        print(f"{record.status}: {key}: {record.detail}")
    print(f"{name}: {len(runs)} items: {len(runs) - len(wrong)} right, {len(wrong)} not", flush=True)
    return any(record.status != SKIP for record in wrong.values())


if __name__ == "__main__":
    sys.exit(main())
