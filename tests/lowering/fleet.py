"""Machines that share a remote cache: each has a cache directory and a runtime directory, so its own pool server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.places import with_tests
from processes import HERE

__all__ = ["Fleet", "fleet"]


class Fleet:
    """Running processes of some machines; see `fleet_child`."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes], names: Sequence[str]) -> None:
        self._directory, self._process, self._names = directory, process, names

    def go(self, *names: str) -> None:
        """Have processes begin; without names, all of them."""
        for name in names or self._names:
            (self._directory / f"{name}.go").touch()

    def wait_for(self, reached: Callable[[], object], limit: float = 200.0) -> None:
        """Wait until a condition holds; the test fails if that takes too long, or if all processes have ended."""
        end = time.monotonic() + limit
        while not reached():
            if time.monotonic() > end or self._process.poll() is not None:
                pytest.fail(f"not reached:\n{self._errors()}")
            time.sleep(0.02)

    def wait_until_waiting(self, name: str) -> None:
        self.wait_for((self._directory / f"{name}.waits").exists)

    def kill(self, name: str) -> None:
        """Kill a process, and everything that runs on its machine."""
        os.kill(int((self._directory / f"{name}.pid").read_text()), signal.SIGKILL)
        runtime = str(self._directory / name[0] / "r")
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("FXPOOL_RUNTIME_DIR") == runtime:
                    process.kill()

    def reports(self, limit: float = 250.0) -> dict[str, dict[str, Any]]:
        """Return the reports of all processes that were not killed, once they have ended."""
        self._process.wait(limit)
        paths = {name: self._directory / f"{name}.json" for name in self._names}
        reports = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
        if not all(all(report["right"]) for report in reports.values()) or not reports:
            pytest.fail(f"wrong results:\n{self._errors()}")
        return reports

    def _errors(self) -> str:
        return (self._directory / "errors").read_text(errors="replace")[-5000:]


@contextlib.contextmanager
def fleet(
    directory: Path,
    names: Sequence[str],
    known_host: Path,
    settings: Mapping[str, str],
    *,
    graphs: int = 1,
    take: float = 0.0,
) -> Iterator[Fleet]:
    """Processes that wait for `Fleet.go`. The first letter of a name is its machine.

    Each compiles `graphs` graphs, each of which takes a worker `take` seconds longer.
    """
    jobs = []
    for name in names:
        machine = directory / name[0]
        for path in (machine, machine / "c", machine / "r"):
            path.mkdir(mode=0o700, exist_ok=True)
        if not (machine / "c" / "toolchain").exists():
            (machine / "c" / "toolchain").symlink_to(known_host / "c" / "toolchain")
        environment = {
            "FXPOOL_CACHE_DIR": str(machine / "c"),
            "FXPOOL_RUNTIME_DIR": str(machine / "r"),
            "FXPOOL_WORKERS": "1",
            **settings,
        }
        report = str(directory / name)
        jobs.append({"environment": environment, "graphs": graphs, "take": take, "report": report})
    with open(directory / "errors", "wb") as errors:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "fleet_child.py"), json.dumps(jobs)],
            env={**os.environ, "PYTHONPATH": with_tests(os.environ.get("PYTHONPATH"))},
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield Fleet(directory, process, names)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
