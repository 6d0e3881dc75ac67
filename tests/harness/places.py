"""Where children run: directories with short names, an environment, and a tool chain that is known."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from fxpool.bench.environment import child_environment
from fxpool.pool.client import hosts

from .children import Children

__all__ = ["TESTS", "environment_of", "learn_toolchain", "link_toolchain", "scratch", "stop_servers", "with_tests"]

TESTS = Path(__file__).resolve().parents[1]

# What a host's second use finds: the tool chain is known, the header precompiled. Both take 10 s and more.
_FIRST_GRAPH = """
import glob, json, os, time, torch
torch.compile(lambda x: x.sin().sum(), backend="fxpool")(torch.ones(8))
end = time.monotonic() + 120
while not glob.glob(os.environ["FXPOOL_CACHE_DIR"] + "/toolchain/headers/*.json") and time.monotonic() < end:
    time.sleep(0.1)
import fxpool
print(json.dumps(fxpool.stats()))
"""


@contextlib.contextmanager
def scratch(prefix: str, keep: Path | None = None, parent: str | None = None) -> Iterator[Path]:
    """A directory with a short name, because sockets lie in it. It is removed afterwards, unless it is `keep`."""
    root = keep or Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    root.mkdir(parents=True, exist_ok=True)
    try:
        yield root
    finally:
        stop_servers(root)
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


def stop_servers(root: Path) -> None:
    """Stop servers that wait for the next client of `root`, and wait until they have ended."""
    runtime = root / "r"
    for link in hosts.links(runtime):
        hosts.stop(link)
    end = time.monotonic() + 30
    while list(runtime.glob("pool-*")) and time.monotonic() < end:
        time.sleep(0.05)


def with_tests(path: str | None) -> str:
    """Return a PYTHONPATH for children that import the harness or a campaign: `path`, and ``tests`` behind it."""
    return os.pathsep.join(filter(None, [path, str(TESTS)]))


def environment_of(root: Path, directory: Path, **settings: str) -> dict[str, str]:
    """Return a child's environment: caches in `directory`, one server of the host for all children of `root`."""
    for made in (root / "r", root / "t", directory):
        made.mkdir(mode=0o700, parents=True, exist_ok=True)
    shared = {
        "FXPOOL_POOL": "host",
        "FXPOOL_RUNTIME_DIR": str(root / "r"),
        "TMPDIR": str(root / "t"),
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": with_tests(os.environ.get("PYTHONPATH")),
    }
    return child_environment(directory, {**shared, **settings})


def learn_toolchain(children: Children, environment: Mapping[str, str]) -> Path:
    """Have one graph compiled; return the directory of what fxpool knows of the tool chain afterwards.

    Raises ChildError if the process fails, RuntimeError if no worker compiled the graph.
    """
    stats = children.result(["-c", _FIRST_GRAPH], environment, "a first graph", 300)
    if stats["compiles"] != {"worker": 1, "in_process": 0}:
        raise RuntimeError(f"no worker compiled a first graph: {stats['fallbacks']}")
    return Path(environment["FXPOOL_CACHE_DIR"], "toolchain")


def link_toolchain(cache: Path, toolchain: Path) -> None:
    """Let a cache directory start with what `learn_toolchain` returned."""
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    (cache / "toolchain").symlink_to(toolchain)
