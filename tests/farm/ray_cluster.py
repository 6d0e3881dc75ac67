"""A Ray cluster of one node on this machine, with processes of hosts and machines beside it.

Each process has the cluster's directory in its environment, by which all of them are found and killed: ``ray stop``
would stop the clusters of others.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import psutil
import pytest
from harness.places import with_tests

__all__ = ["Cluster", "cluster"]

_MARK = "FARM_CLUSTER"
_FOLDER = Path(__file__).parent


class Cluster:
    """A running cluster. `log` is the log of its machines, which are `ray_machine.FakeMachine`."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.log = directory, directory / "log"
        self._ports = _free_ports(6)
        self.address = f"ray://127.0.0.1:{self._ports[0]}"
        self.errors = directory / "errors"
        paths = os.pathsep.join((with_tests(os.environ.get("PYTHONPATH")), str(_FOLDER)))
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
            _MARK: str(directory),
            "FARM_LOG": str(self.log),
            "PYTHONPATH": paths,
            "TMPDIR": str(directory),
        }
        self.log.touch()

    def start(self) -> None:
        """Start Ray's head, which is the only node."""
        client, head, *ports = map(str, self._ports)
        names = ("dashboard-agent-listen-port", "runtime-env-agent-port", "node-manager-port", "object-manager-port")
        command = [
            str(Path(sys.executable).with_name("ray")),
            "start",
            "--head",
            "--node-ip-address=127.0.0.1",
            f"--port={head}",
            f"--ray-client-server-port={client}",
            *(f"--{name}={port}" for name, port in zip(names, ports, strict=True)),
            "--min-worker-port=0",
            "--max-worker-port=0",
            "--include-dashboard=false",
            "--num-cpus=2",
            f"--object-store-memory={100 * 2**20}",
            f"--temp-dir={self.directory}",
            "--disable-usage-stats",
        ]
        with open(self.errors, "ab") as errors:
            subprocess.run(command, env=self._environment, check=True, stdout=errors, stderr=errors, timeout=60)

    def process(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``ray_child.py`` with the cluster's address and arguments."""
        with open(self.errors, "ab") as errors:
            return subprocess.Popen(
                [sys.executable, str(_FOLDER / "ray_child.py"), self.address, *arguments],
                env={**self._environment, **environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    @contextlib.contextmanager
    def machines(self, number: int) -> Iterator[list[subprocess.Popen[str]]]:
        """Machines of the farm, with a slot each, until the block ends."""
        workers: list[subprocess.Popen[str]] = []
        try:
            for _ in range(number):
                workers.append(self.worker())
            yield workers
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.communicate(timeout=60)

    def worker(self) -> subprocess.Popen[str]:
        """Start a machine of the farm, and wait until it is a part of it."""
        before = len(self.lines("made", ""))
        worker = self.process("worker")
        self.wait_for(lambda: len(self.lines("made", "")) > before)
        return worker

    def host(self, machines: int, *jobs: str, within: float | None = None) -> subprocess.Popen[str]:
        """Start a host's bridge that runs jobs once the farm has so many machines; see `reports`."""
        process = self.process("host", json.dumps({"machines": machines, "jobs": jobs, "within": within}))
        self._expect(process, "connected")  # Ray 2.60 has a race between clients that connect at the same time
        return process

    def with_jobs(self, process: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Wait until a process of `host` has asked for its jobs."""
        self._expect(process, "asked")
        return process

    def _expect(self, process: subprocess.Popen[str], line: str) -> None:
        assert process.stdout is not None
        if process.stdout.readline() != f"{line}\n":
            self.fail(f"a host has not {line}")

    def reports(self, process: subprocess.Popen[str]) -> list[dict[str, Any]]:
        """Wait for a process of `host`, and return the report of each job."""
        output, _ = process.communicate(timeout=90)
        if process.returncode:
            self.fail("a host failed")
        reports: list[dict[str, Any]] = json.loads(output.splitlines()[-1])
        return reports

    def lines(self, verb: str, key: str) -> list[int]:
        """Return the pids of the machines that have logged a verb for a job."""
        split = [line.split(" ") for line in self.log.read_text().splitlines()]
        return [int(pid) for said, of, pid, _ in split if (said, of) == (verb, key)]

    def wait_for(self, reached: Callable[[], object], limit: float = 60.0) -> None:
        """Wait until a condition holds; the test fails if that takes too long."""
        end = time.monotonic() + limit
        while not reached():
            if time.monotonic() > end:
                self.fail("not reached")
            time.sleep(0.02)

    def pids(self, name: str) -> list[int]:
        """Return the cluster's processes with a text in their command line."""
        pids = []
        for process in self._processes():
            with contextlib.suppress(psutil.Error):
                if name in " ".join(process.cmdline()):
                    pids.append(process.pid)
        return pids

    def kill(self, *, but: tuple[subprocess.Popen[str], ...] = ()) -> None:
        """Kill Ray, hosts and machines, but for some."""
        end = time.monotonic() + 20
        left = {psutil.Process(process.pid) for process in but}
        seen: set[psutil.Process] = set()
        while running := {process for process in seen | self._processes() if _runs(process)} - left:
            assert time.monotonic() < end, running
            seen |= running
            for process in running:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)

    def _processes(self) -> set[psutil.Process]:
        """Return processes with the mark in their environment, and their children: Ray's agents overwrite theirs."""
        processes = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == str(self.directory):
                    processes |= {process, *process.children(recursive=True)}
        return {process for process in processes if _runs(process)}

    def fail(self, reason: str) -> NoReturn:
        """Fail the test, with the processes' errors and the log."""
        pytest.fail(f"{reason}:\n{self.errors.read_text(errors='replace')[-5000:]}{self.log.read_text()[-2000:]}")


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Start a cluster; afterwards none of its processes and files is left."""
    # Not below the test's directory: sockets lie deep in it, and a socket's path may have no more than 107 bytes.
    directory = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))
    ray = Cluster(directory)
    try:
        ray.start()
        yield ray
    finally:
        ray.kill()
        shutil.rmtree(directory)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
