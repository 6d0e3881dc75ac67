"""Starts processes that call `fxpool.once` (`once_child.py`), and waits for what they do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["Process", "eventually", "lines", "start"]

CHILD = Path(__file__).with_name("once_child.py")
SECONDS = 60.0


class Process:
    """One process, and its report."""

    def __init__(self, arguments: dict[str, Any], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(arguments)],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate(timeout=SECONDS)

    def first_line(self) -> dict[str, Any]:
        """The report of a process that stays."""
        assert self._process.stdout is not None
        report: dict[str, Any] = json.loads(self._process.stdout.readline())
        return report

    def report(self) -> dict[str, Any]:
        output, errors = self._process.communicate(timeout=SECONDS)
        assert self._process.returncode == 0, errors
        report: dict[str, Any] = json.loads(output.splitlines()[-1])
        return {**report, "errors": errors}


def start(log: Path, environment: dict[str, str] | None = None, **arguments: Any) -> Process:
    return Process({"key": "k", "log": str(log), **arguments}, environment or {})


def lines(log: Path) -> list[str]:
    """The numbers of the processes that began to build."""
    return log.read_text().split() if log.exists() else []


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
