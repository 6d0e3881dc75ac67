"""What belongs to one test of the pool, and how it waits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from fxpool.pool import PoolConfig

HERE = Path(__file__).parent
TAG = "FXPOOL_TEST_TAG"


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Wait for something that happens soon; the limit is only there to end a broken test."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@dataclass
class Place:
    """What belongs to one test: a runtime directory, a directory for its files, and a mark on all its processes."""

    tag: str
    runtime: Path
    files: Path

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "TMPDIR": str(self.files), TAG: self.tag}

    def processes(self) -> list[psutil.Process]:
        """All processes whose environment bears the mark, whoever their parent is by now."""
        found = []
        mark = f"{TAG}={self.tag}".encode()
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) == os.getpid():
                continue
            try:
                marked = mark in Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
                if marked:
                    process = psutil.Process(int(name))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
            except (OSError, psutil.Error):
                continue
        return found

    def called(self, name: str) -> list[psutil.Process]:
        """Those of them with this name; others may end while we look."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if process.name() == name:
                    found.append(process)
        return found

    def config(self, **settings: Any) -> PoolConfig:
        settings.setdefault("workers", 2)
        settings.setdefault("patience", 1.5)
        environment = {**self.environment, **settings.pop("extra", {})}
        settings.setdefault("runtime_dir", str(self.runtime))
        return PoolConfig(environment=environment, sys_path=(str(HERE),), **settings)

    def mark(self, name: str) -> Path:
        return self.files / name
