"""A farm on this machine: a Dask scheduler, `fxpool farm worker` once or more, and hosts, each with its directories.

All of it ends with the ``with`` block: workers, scheduler, and the servers of machines and hosts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.children import Children

from fxpool.bench.environment import child_environment
from fxpool.codecache.store import catalogue
from fxpool.codecache.store.store import LocalStore

__all__ = ["CHILD", "LocalFarm", "entries", "local_farm"]

CHILD = str(Path(__file__).with_name("farm_child.py"))
_FXPOOL = (sys.executable, "-m", "fxpool")
# Seconds for a scheduler or a machine to start, on a busy machine.
_START = 180.0


class LocalFarm:
    """A running farm; `address` is that of its scheduler. `machines` and `hosts` are directories."""

    def __init__(self, root: Path, port: int) -> None:
        self.root, self.address = root, f"dask://127.0.0.1:{port}"
        self.key_file = root / "key"
        self.machines: list[Path] = []
        self.hosts: list[Path] = []

    def environment(self, directory: Path, workers: int, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the environment of a process of the machine or host with this directory, which has so many slots."""
        for path in (directory, directory / "fxpool", directory / "run"):
            path.mkdir(mode=0o700, exist_ok=True)
        settings = {
            "FXPOOL_POOL": "host",
            "FXPOOL_WORKERS": str(workers),
            "FXPOOL_REMOTE_KEY_FILE": str(self.key_file),
            "FXPOOL_STRICT": "1",
        }
        return child_environment(directory, {**settings, **(more or {})})

    def host(self, name: str, workers: int, *, uses_farm: bool = False) -> dict[str, str]:
        """Return the environment of a host's programs; a new host if there is none with this name."""
        directory = self.root / name
        if directory not in self.hosts:
            self.hosts.append(directory)
        return self.environment(directory, workers, {"FXPOOL_FARM": self.address} if uses_farm else {})

    def wait_until_listed(self, environment: Mapping[str, str]) -> None:
        """Wait until all machines of the farm can compile for a host. Raises RuntimeError."""
        end = time.monotonic() + _START
        command = [*_FXPOOL, "farm", "status", "--json"]
        asking = {**environment, "FXPOOL_FARM": self.address}
        while True:
            done = subprocess.run(command, env=asking, capture_output=True, text=True, check=False)
            machines = [json.loads(line) for line in done.stdout.splitlines()]
            if len(machines) == len(self.machines) and not any(machine["differs"] for machine in machines):
                return
            if time.monotonic() > end:
                logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in self.root.glob("*.log"))
                raise RuntimeError(f"the farm did not start: {machines} {done.stderr}\n{logs}")
            time.sleep(0.5)

    def child(self, command: str, environment: Mapping[str, str], **arguments: Any) -> dict[str, Any]:
        """Return the report of a process of `farm_child`. Raises ChildError."""
        order = json.dumps({"farm": self.address, **arguments})
        return Children().result([CHILD, command, order], environment, command)


@contextlib.contextmanager
def local_farm(machines: int, slots: int) -> Iterator[LocalFarm]:
    """A farm of so many machines, with so many slots each."""
    with contextlib.ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fxpool-farm-")))
        port = _free_port()
        farm = LocalFarm(root, port)
        plain = farm.environment(root / "plain", slots)
        subprocess.run([*_FXPOOL, "cache", "key", str(farm.key_file)], env=plain, check=True, capture_output=True)
        stack.callback(_end_servers, farm, slots)
        scheduler = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1"]
        _start(
            stack, [*scheduler, "--port", str(port), "--no-dashboard", "--no-jupyter"], plain, root / "scheduler.log"
        )
        for number in range(machines):
            directory = root / f"machine{number}"
            farm.machines.append(directory)
            command = [*_FXPOOL, "farm", "worker", farm.address, "--slots", str(slots)]
            _start(stack, command, farm.environment(directory, slots), root / f"{directory.name}.log")
        yield farm


def entries(directory: Path) -> int:
    """Return the number of entries in the cache directory of a machine or host."""
    return len(list(catalogue.entries(LocalStore(str(directory / "fxpool")).root)))


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _start(stack: contextlib.ExitStack, command: list[str], environment: Mapping[str, str], log: Path) -> None:
    with open(log, "wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    stack.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_servers(farm: LocalFarm, slots: int) -> None:
    for directory in (*farm.hosts, *farm.machines):
        environment = {**os.environ, **farm.environment(directory, slots)}
        subprocess.run([*_FXPOOL, "stop"], env=environment, capture_output=True, check=False)
