"""The directories and processes of a campaign, and the leftovers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from harness.children import Children
from harness.places import environment_of, learn_toolchain, link_toolchain, scratch

__all__ = ["Report", "Scene", "scene"]

# Seconds after which a server without clients ends, and for which leftovers may take to go.
IDLE_SECONDS = 4
_GOING_SECONDS = 40


@dataclass
class Report:
    """One part's figures. `wrong` are wrong results, `lost` answers that never came, `left` what remains afterwards."""

    part: str
    figures: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return bool(self.wrong or self.lost or self.left)


class Scene:
    """One directory for everything: cache ``c``, runtime directory ``r``, temporary files ``t``, output ``o``."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.cache = root / "d" / "fxpool"
        self.environment = environment_of(root, root / "d", FXPOOL_IDLE_TIMEOUT=str(IDLE_SECONDS), **settings)
        self.cache = Path(self.environment["FXPOOL_CACHE_DIR"])
        self.runtime, self.temporary, self.output = root / "r", root / "t", root / "o"
        self.output.mkdir(mode=0o700, exist_ok=True)
        self._before = set(os.listdir("/dev/shm"))

    def start(self, program: str, *arguments: object, name: str) -> subprocess.Popen[bytes]:
        """Start a program of `child`, which writes lines of JSON to a file in the output directory."""
        with open(self.output / f"{name}.out", "ab") as out, open(self.output / f"{name}.err", "ab") as errors:
            return subprocess.Popen(
                [sys.executable, "-m", "campaigns.chaos.child", program, *map(str, arguments)],
                env=self.environment,
                cwd=self.root,
                stdout=out,
                stderr=errors,
            )

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the programs have written."""
        for path in sorted(self.output.glob("*.out")):
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed process
                    yield json.loads(line)

    def processes(self) -> list[psutil.Process]:
        """Return the processes that have this directory in their environment."""
        mark = f"TMPDIR={self.temporary}".encode()
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                inside = any(variable.startswith(mark) for variable in environment)
                if inside and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self) -> list[str]:
        """Wait until the pool has ended, and return the leftovers: processes, and files that nothing will use."""
        end = time.monotonic() + IDLE_SECONDS + _GOING_SECONDS
        while self._left() and time.monotonic() < end:
            time.sleep(0.5)
        return self._left()

    def _left(self) -> list[str]:
        left = [f"process {process.pid} {_name(process)}" for process in self.processes()]
        left += [f"r/{name}" for name in os.listdir(self.runtime) if name != "host.lock"]
        # torch makes its default directories wherever others are set.
        left += [f"t/{name}" for name in os.listdir(self.temporary) if not name.startswith("torchinductor_")]
        for pattern in (".tmp-*", "building-*"):
            left += [str(path.relative_to(self.root)) for path in self.cache.rglob(pattern)]
        left += [f"/dev/shm/{name}" for name in set(os.listdir("/dev/shm")) - self._before]
        return left


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return "ended"


@contextlib.contextmanager
def scene(prefix: str, **settings: str) -> Iterator[Scene]:
    """Yield a scene whose tool chain is known; end its processes and remove it afterwards."""
    with scratch(f"fx{prefix}-", parent="/tmp") as root:
        made = Scene(root, **settings)
        known = Scene(root, FXPOOL_POOL="embedded") if settings else made
        toolchain = root / "known"
        environment = {**known.environment, "FXPOOL_CACHE_DIR": str(toolchain)}
        link_toolchain(made.cache, learn_toolchain(Children(), environment))
        try:
            yield made
        finally:
            for process in made.processes():
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)
                    process.kill()
