"""Many clients of one server and one store, for minutes: jobs that end, fail, die and are cancelled; entries."""

from __future__ import annotations

import contextlib
import subprocess
import time

import psutil

from fxpool.pool.client import hosts

from .scene import Report, Scene, scene

__all__ = ["run"]

_THREADS = 25
_LOOK_SECONDS = 5.0
_LATE_SECONDS = 300


def run(clients: int, seconds: float) -> Report:
    """Run `clients` clients for some seconds, up to 25 in a process."""
    report = Report("clients")
    with scene("c") as stage:
        numbers = [min(_THREADS, clients - first) for first in range(0, clients, _THREADS)]
        store = stage.root / "store"
        processes = [
            stage.start("clients", number, threads, seconds, store, name=f"{number}")
            for number, threads in enumerate(numbers)
        ]
        end = time.monotonic() + seconds + _LATE_SECONDS
        while any(process.poll() is None for process in processes) and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
            _look(stage, report)
        for process in processes:
            _ended(process, report)
        for line in stage.lines():
            for outcome, count in line["outcomes"].items():
                kind = outcome.partition(":")[0]
                if kind in ("wrong", "lost"):
                    getattr(report, kind).append(f"{outcome} ({count} times)")
                else:
                    report.figures[outcome] += count
        report.left = stage.left()
    return report


def _look(stage: Scene, report: Report) -> None:
    for link in hosts.links(stage.runtime):
        facts = hosts.status(link)
        if facts["state"] != "running":
            continue
        report.figures["clients at once"] = max(report.figures["clients at once"], len(facts["clients"]))
        with contextlib.suppress(psutil.Error):
            server = psutil.Process(facts["server_pid"])
            for name, value in (("descriptors", server.num_fds()), ("MB", server.memory_info().rss >> 20)):
                report.figures[f"server's {name}"] = max(report.figures[f"server's {name}"], value)


def _ended(process: subprocess.Popen[bytes], report: Report) -> None:
    if process.poll() is None:
        process.kill()
        report.lost.append("a process with clients did not end")
    if process.wait() != 0:
        report.lost.append(f"a process with clients ended with status {process.returncode}")
