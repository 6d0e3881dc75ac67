"""Has the items of a sweep run in child processes, under one back end.

Items share processes in batches: each batch once with fresh directories, and once more in a second process with the
same ones, if the sweep asks for that. The item that a process dies of is tried again alone, the rest in another one.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.children import ChildError, Children
from harness.places import environment_of, learn_toolchain, link_toolchain

from .record import CRASH, Record, load

__all__ = ["Runner", "survive"]

RunKeys = Callable[[list[str], Path, Mapping[str, str]], None]


@dataclasses.dataclass
class Runner:
    """Runs sweeps under `root`, `jobs` processes at a time."""

    root: Path
    jobs: int = 1
    seed: int = 0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    _children: Children = dataclasses.field(default_factory=Children)
    _toolchain: Path | None = None

    def run(
        self, sweep: str, module: ModuleType, keys: Sequence[str], backend: str, done: Callable[[list[Record]], None]
    ) -> dict[str, list[Record]]:
        """The records of `keys`: one, or two with a second process. Calls `done` with those of each finished batch."""
        if backend == "fxpool":
            self._prepare()
        size = module.BATCH
        batches = [list(keys[start : start + size]) for start in range(0, len(keys), size)]
        found: dict[str, list[Record]] = {key: [] for key in keys}

        def run(number: int) -> list[Record]:
            return self._batch(sweep, module, number, batches[number], backend)

        for records in self._children.each(run, range(len(batches)), self.jobs):
            for record in records:
                found[record.key].append(record)
            done(records)
        return found

    def _prepare(self) -> None:
        if self._toolchain is None:
            self._toolchain = learn_toolchain(self._children, self._environment(self.root / "first"))

    def _environment(self, directory: Path) -> dict[str, str]:
        return environment_of(
            self.root,
            directory,
            FXPOOL_IDLE_TIMEOUT="60",
            FXPOOL_WORKERS=str(self.jobs),
            TRANSFORMERS_OFFLINE="1",
            **self.environment,
        )

    def _batch(self, sweep: str, module: ModuleType, number: int, keys: list[str], backend: str) -> list[Record]:
        directory = self.root / f"{sweep}-{backend}-{number}"
        environment = self._environment(directory)
        if backend == "fxpool" and self._toolchain is not None:
            link_toolchain(Path(environment["FXPOOL_CACHE_DIR"]), self._toolchain)
        found: list[Record] = []

        def run(some: list[str], out: Path, environment: Mapping[str, str]) -> None:
            limit = float(module.LIMIT)
            asked: dict[str, Any] = {"sweep": sweep, "backend": backend, "keys": some, "out": str(out)}
            asked |= {"seed": self.seed, "limit": limit}
            arguments = ["-m", "campaigns.conformance.child", json.dumps(asked)]
            self._children.result(arguments, environment, f"{sweep} under {backend}", 60 + limit * len(some))

        for again in range(1 + module.AGAIN):
            found += survive(run, keys, directory / f"records-{again}", environment)
        shutil.rmtree(directory, ignore_errors=True)
        return found


def survive(run: RunKeys, keys: list[str], out: Path, environment: Mapping[str, str]) -> list[Record]:
    """A record for each of `keys`, whatever their processes die of. `run` has some of them run in one process."""
    pending: list[list[str]] = [keys]
    tried: set[str] = set()
    found: dict[str, Record] = {}
    while pending:
        some = pending.pop(0)
        how = ""
        out.unlink(missing_ok=True)
        begun = Path(f"{out}.begun")
        begun.unlink(missing_ok=True)
        try:
            run(some, out, environment)
        except ChildError as error:
            how = f"{error.message}: {error.output[-1500:]}"
        found |= {record.key: record for record in load(out)}
        left = [key for key in some if key not in found]
        if not left:
            continue
        # Without a word of which, it is the first: each round has to take one away.
        culprit = begun.read_text() if begun.exists() else left[0]
        if culprit not in left:
            culprit = left[0]
        if culprit in tried or some == [culprit]:
            found[culprit] = Record(culprit, CRASH, how or "its process ended early")
        else:
            tried.add(culprit)
            pending.append([culprit])
        if rest := [key for key in left if key != culprit]:
            pending.append(rest)
    return [found[key] for key in keys]
