"""Has the items of a sweep run in child processes, under one back end.

Items share processes in batches: each batch once with fresh directories, and once more in a second process with the
same ones, if the sweep asks for that. The item that a process dies of is tried again alone, the rest in another one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from fxpool.bench.demo.processes import ChildError, child_environment, run_child
from fxpool.pool.client import hosts

from .record import CRASH, Record, load

__all__ = ["Runner", "place"]

TESTS = Path(__file__).resolve().parents[2]
RunKeys = Callable[[list[str], Path, Mapping[str, str]], None]

# What a host's second use finds: the tool chain is known, the header precompiled. Both take 10 s and more.
_PREPARE = """
import glob, json, os, time, torch
torch.compile(lambda x: x.sin().sum(), backend="fxpool")(torch.ones(8))
end = time.monotonic() + 120
while not glob.glob(os.environ["FXPOOL_CACHE_DIR"] + "/toolchain/headers/*.json") and time.monotonic() < end:
    time.sleep(0.1)
import fxpool
print(json.dumps(fxpool.stats()["compiles"]))
"""


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """A directory with a short name, as sockets lie in it. It goes with all that is in it, and its server ends."""
    root = Path(tempfile.mkdtemp(prefix="cf-"))
    runtime = root / "r"
    try:
        for name in "rt":
            (root / name).mkdir(mode=0o700)
        yield root
    finally:
        for link in hosts.links(runtime):
            hosts.stop(link)
        end = time.monotonic() + 30
        while list(runtime.glob("pool-*")) and time.monotonic() < end:
            time.sleep(0.05)
        shutil.rmtree(root, ignore_errors=True)


@dataclasses.dataclass
class Runner:
    """Runs sweeps under `root`, `jobs` processes at a time."""

    root: Path
    jobs: int = 1
    seed: int = 0
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    _ending: threading.Event = dataclasses.field(default_factory=threading.Event)

    def run(
        self, sweep: str, module: ModuleType, keys: Sequence[str], backend: str, done: Callable[[list[Record]], None]
    ) -> dict[str, list[Record]]:
        """The records of `keys`: one, or two with a second process. Calls `done` with those of each finished batch."""
        if backend == "fxpool":
            self._prepare()
        size = module.BATCH
        batches = [list(keys[start : start + size]) for start in range(0, len(keys), size)]
        found: dict[str, list[Record]] = {}
        with ThreadPoolExecutor(self.jobs) as executor:
            work = [executor.submit(self._batch, sweep, module, n, batch, backend) for n, batch in enumerate(batches)]
            try:
                for future in work:
                    records = future.result()
                    for record in records:
                        found.setdefault(record.key, []).append(record)
                    done(records)
            except BaseException:
                self._ending.set()
                for future in work:
                    future.cancel()
                while not all(future.done() for future in work):
                    _end_children()
                    time.sleep(0.05)
                raise
        return found

    def _prepare(self) -> None:
        if (self.root / "known").is_dir():
            return
        environment = self._environment(self.root / "first", "fxpool")
        compiles = run_child(["-c", _PREPARE], environment, "a first graph", 300)
        if compiles != {"worker": 1, "in_process": 0}:
            raise RuntimeError(f"workers compile nothing here: {compiles}")
        (self.root / "first" / "fxpool" / "toolchain").rename(self.root / "known")

    def _environment(self, directory: Path, backend: str) -> dict[str, str]:
        cache = directory / "fxpool"
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if backend == "fxpool" and (known := self.root / "known").is_dir() and not (cache / "toolchain").exists():
            (cache / "toolchain").symlink_to(known)
        path = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
        return child_environment(
            directory,
            {
                "FXPOOL_POOL": "host",
                "FXPOOL_RUNTIME_DIR": str(self.root / "r"),
                "FXPOOL_IDLE_TIMEOUT": "60",
                "FXPOOL_WORKERS": str(self.jobs),
                "TORCHINDUCTOR_COMPILE_THREADS": "1",
                "TMPDIR": str(self.root / "t"),
                "TRANSFORMERS_OFFLINE": "1",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": os.pathsep.join(path),
                **self.environment,
            },
        )

    def _batch(self, sweep: str, module: ModuleType, number: int, keys: list[str], backend: str) -> list[Record]:
        directory = self.root / f"{sweep}-{backend}-{number}"
        environment = self._environment(directory, backend)
        found: list[Record] = []

        def run(some: list[str], out: Path, environment: Mapping[str, str]) -> None:
            if self._ending.is_set():  # a batch that was ended is not to be tried again item by item
                raise KeyboardInterrupt
            limit = float(module.LIMIT)
            asked: dict[str, Any] = {"sweep": sweep, "backend": backend, "keys": some, "out": str(out)}
            asked |= {"seed": self.seed, "limit": limit}
            arguments = ["-m", "campaigns.conformance.child", json.dumps(asked)]
            run_child(arguments, environment, f"{sweep} under {backend}", 60 + limit * len(some))

        for again in range(1 + module.AGAIN):
            found += survive(run, keys, directory / f"records-{again}", environment)
        shutil.rmtree(directory, ignore_errors=True)
        return found


def _end_children() -> None:
    """Kill the batches that run, each a session of its own: their threads wait for them, minutes for operators."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if "campaigns.conformance.child" in child.cmdline():
                os.killpg(child.pid, signal.SIGKILL)


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
