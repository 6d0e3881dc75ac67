"""Compiles while the host is short of something: the result is right wherever stock Inductor's is."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .scene import Report, Scene, scene

__all__ = ["ROWS", "Row", "run"]

_SECONDS = 240
_MEGABYTES = 5


@dataclass(frozen=True)
class Row:
    """A shortage: `prepare` yields settings of the environment, and words in front of the command."""

    name: str
    prepare: Callable[[Scene], contextlib.AbstractContextManager[tuple[dict[str, str], list[str]]]]
    root: bool = False


def run(pattern: str = "") -> Report:
    """Run the rows whose names contain `pattern`, each with two graphs; compare with stock Inductor."""
    report = Report("limits")
    for row in ROWS:
        if pattern not in row.name:
            continue
        if row.root and os.getuid() != 0:
            report.figures["not run (needs root)"] += 1
            continue
        with scene("l") as stage:
            with row.prepare(stage) as (settings, before):
                stock = _compile(stage, "inductor", settings, before)
                for _ in range(2):
                    _judge(row, _compile(stage, "fxpool", settings, before), stock, report)
            report.figures["rows"] += 1
            report.left += [f"{row.name}: {one}" for one in stage.left()]
    return report


def _compile(stage: Scene, backend: str, settings: dict[str, str], before: list[str]) -> dict[str, object]:
    factor = random.random()
    command = [*before, sys.executable, "-m", "campaigns.chaos.child", "once", str(factor), backend]
    # Out of reach of the pool of other rows, which has no such limit.
    environment = {**stage.environment, **settings}
    try:
        done = subprocess.run(
            command, env=environment, cwd=stage.root, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"result": "lost: it did not end"}
    try:
        line: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return line
    except (IndexError, ValueError):
        return {"result": f"status {done.returncode}: {done.stderr[-300:]}"}


def _judge(row: Row, got: dict[str, object], stock: dict[str, object], report: Report) -> None:
    report.figures["compiles"] += 1
    if got["result"] == "wrong":
        report.wrong.append(row.name)
    elif got["result"] != "right" and stock["result"] == "right":
        report.lost.append(f"{row.name}: {got['result']}")
    elif got["result"] == "right" and stock["result"] != "right":
        report.figures["right where stock fails"] += 1


# ---------------------------------------------------------------- rows


Prepared = Iterator[tuple[dict[str, str], list[str]]]


def _ulimit(*options: str) -> Callable[[Scene], contextlib.AbstractContextManager[tuple[dict[str, str], list[str]]]]:
    @contextlib.contextmanager
    def prepare(stage: Scene) -> Prepared:
        yield {}, ["prlimit", *options, "--"]

    return prepare


@contextlib.contextmanager
def _disk(stage: Scene, options: str, fill: int = 0) -> Iterator[Path]:
    """Mount a small file system; `fill` kilobytes of it are taken."""
    place = stage.root / "m"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "tmpfs", str(place)], check=True)
    try:
        if fill:
            with contextlib.suppress(OSError):
                (place / "fill").write_bytes(b"x" * (fill << 10))
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def _on_disk(variable: str, options: str, fill: int = 0, *, readonly: bool = False) -> Callable[[Scene], Any]:
    @contextlib.contextmanager
    def prepare(stage: Scene) -> Prepared:
        with _disk(stage, options, fill) as place:
            directory = place / "d"
            with contextlib.suppress(OSError):
                directory.mkdir(mode=0o700)
            if readonly:
                subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
            yield {variable: str(directory)}, []

    return prepare


@contextlib.contextmanager
def _few_processes(stage: Scene) -> Prepared:
    """As a user whom the limit holds for: root is exempt."""
    for path in (stage.root, *stage.root.rglob("*")):
        os.chown(path, 12001, 12001, follow_symlinks=False)
    stage.root.chmod(0o755)
    yield {"HOME": str(stage.root / "d"), "USER": "u"}, [
        "setpriv", "--reuid=12001", "--regid=12001", "--clear-groups", "prlimit", "--nproc=24", "--",
    ]  # fmt: skip


_SIZE = f"size={_MEGABYTES}m"
ROWS = (
    Row("cache on a full disk", _on_disk("FXPOOL_CACHE_DIR", _SIZE, _MEGABYTES << 10), root=True),
    Row("cache on a disk of 5 MB", _on_disk("FXPOOL_CACHE_DIR", _SIZE), root=True),
    Row("cache with 12 inodes", _on_disk("FXPOOL_CACHE_DIR", "size=50m,nr_inodes=12"), root=True),
    Row("cache read-only", _on_disk("FXPOOL_CACHE_DIR", _SIZE, readonly=True), root=True),
    Row("runtime directory on a full disk", _on_disk("FXPOOL_RUNTIME_DIR", _SIZE, _MEGABYTES << 10), root=True),
    Row("runtime directory with 10 inodes", _on_disk("FXPOOL_RUNTIME_DIR", "size=50m,nr_inodes=10"), root=True),
    Row("runtime directory read-only", _on_disk("FXPOOL_RUNTIME_DIR", _SIZE, readonly=True), root=True),
    Row("40 descriptors", _ulimit("--nofile=40")),
    Row("files of 100 KB", _ulimit("--fsize=102400")),
    Row("2.5 GB of addresses", _ulimit("--as=2500000000")),
    Row("few processes", _few_processes, root=True),
)
