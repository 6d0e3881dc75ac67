"""Farms for tests: a real scheduler, and machines with their own cache and runtime directories, on 127.0.0.1."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness.places import with_tests
from processes import HERE
from remote_servers import free_port

from fxpool import temporary
from fxpool.codecache.bundle.authentication import new_key
from fxpool.pool.client import hosts

__all__ = ["ENGINES", "Farm", "FarmMachine", "farm", "key_settings"]

_FXPOOL = Path(sys.executable).with_name("fxpool")
_ROOT = HERE.parents[1]
# Seconds for a scheduler or a machine to start, on a loaded machine.
_START = 120.0


def key_settings(directory: Path, name: str = "key") -> dict[str, str]:
    """Settings with a new key."""
    path = directory / name
    path.write_text(new_key())
    path.chmod(0o600)
    return {"FXPOOL_REMOTE_KEY_FILE": str(path)}


class FarmMachine:
    """A machine of the farm: ``fxpool farm worker``, and the server that it has started."""

    def __init__(self, directory: Path, process: subprocess.Popen[bytes]) -> None:
        self.directory, self.process = directory, process

    def entries(self) -> int:
        """Return the number of graphs in its cache."""
        script = "import fxpool; print(fxpool.stats()['store']['entries'])"
        environment = {**os.environ, "FXPOOL_CACHE_DIR": str(self.directory / "c")}
        command = [sys.executable, "-c", script]
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    def pids(self) -> dict[str, list[int]]:
        """Return the processes of its server by kind: ``server``, ``zygote``, ``worker``."""
        for link in hosts.links(self.directory / "r"):
            facts = hosts.status(link)
            if facts["state"] == "running":
                zygote = facts["zygote"].get("pid")
                return {
                    "server": [facts["server_pid"]],
                    "zygote": [zygote] if zygote else [],
                    "worker": [job["pid"] for job in facts["running"] if not job["sub_job"] and job["pid"]],
                }
        return {"server": [], "zygote": [], "worker": []}

    def kill(self) -> None:
        """Kill all of its processes, as if it had lost its power."""
        processes: list[psutil.Process] = []
        for pid in self.pids()["server"]:
            with contextlib.suppress(psutil.Error):
                server = psutil.Process(pid)
                processes += [server, *server.children(recursive=True)]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()
        temporary.sweep()  # as the next process on the machine does


class Farm:
    """A scheduler and its machines."""

    def __init__(self, address: str, scheduler: subprocess.Popen[bytes]) -> None:
        self.address, self.scheduler = address, scheduler
        self.machines: list[FarmMachine] = []

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def wait_until_listed(self, environment: Mapping[str, str], number: int) -> None:
        """Wait until ``fxpool farm status`` lists so many machines."""
        self.wait_for(lambda: len(self.listed(environment)) == number)

    def listed(self, environment: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the machines that ``fxpool farm status`` lists."""
        said = subprocess.run(
            [str(_FXPOOL), "farm", "status", "--json"],
            env={**os.environ, **environment, "FXPOOL_FARM": self.address},
            capture_output=True,
            text=True,
            timeout=_START,
        )
        return [json.loads(line) for line in said.stdout.splitlines()]

    @staticmethod
    def wait_for(reached: Callable[[], object]) -> None:
        end = time.monotonic() + _START
        while not reached():
            if time.monotonic() > end:
                pytest.fail("the farm did not start")
            time.sleep(0.1)


def _dask(directory: Path) -> tuple[list[str], str]:
    port = free_port()
    command = [
        sys.executable, "-m", "distributed.cli.dask_scheduler",
        "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-jupyter",
    ]  # fmt: skip
    return command, f"dask://127.0.0.1:{port}"


def _ray(directory: Path) -> tuple[list[str], str]:
    client = free_port()
    command = [
        str(_FXPOOL.with_name("ray")), "start", "--head", "--block", "--port", str(free_port()),
        "--ray-client-server-port", str(client), "--num-cpus", "2", "--num-gpus", "0", "--include-dashboard", "false",
        "--disable-usage-stats", "--temp-dir", str(directory), "--object-store-memory", str(200 << 20),
    ]  # fmt: skip
    return command, f"ray://127.0.0.1:{client}"


#: The command of a scheduler and the address of its farm, by engine.
ENGINES: dict[str, Callable[[Path], tuple[list[str], str]]] = {"dask": _dask, "ray": _ray}


@contextlib.contextmanager
def farm(
    directory: Path,
    engine: str,
    settings: Mapping[str, str],
    known_host: Path,
    *,
    machines: int = 1,
    more: Mapping[str, str] | None = None,
    python: str | None = None,
) -> Iterator[Farm]:
    """A farm of some machines with `settings`, in the environment of `python`; the last one has `more`, too."""
    with contextlib.ExitStack() as stack:
        # Short, because Ray makes sockets in it.
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="fr", dir="/tmp"))
        command, address = ENGINES[engine](Path(scratch))
        log = stack.enter_context(open(directory / "scheduler.log", "wb"))
        scheduler = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        stack.callback(_end, scheduler)
        running = Farm(address, scheduler)
        program, fxpool_at = [str(_FXPOOL)], list[str]()
        if python is not None:
            program, fxpool_at = [python, "-m", "fxpool"], [str(_ROOT)]
        for number in range(machines):
            own = directory / f"m{number}"
            for path in (own, own / "c", own / "r"):
                path.mkdir(mode=0o700)
            (own / "c" / "toolchain").symlink_to(known_host / "c" / "toolchain")
            environment = {
                **os.environ,
                # With the modules that the hosts' program imports, and fxpool, which `python` need not have.
                "PYTHONPATH": os.pathsep.join((with_tests(os.environ.get("PYTHONPATH")), str(HERE), *fxpool_at)),
                "FXPOOL_CACHE_DIR": str(own / "c"),
                "FXPOOL_RUNTIME_DIR": str(own / "r"),
                "FXPOOL_IDLE_TIMEOUT": "1",
                **settings,
                **((more or {}) if number == machines - 1 else {}),
            }
            errors = stack.enter_context(open(own / "errors", "wb"))
            process = subprocess.Popen(
                [*program, "farm", "worker", address, "--slots", "1"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                start_new_session=True,
            )
            running.machines.append(FarmMachine(own, process))
            stack.callback(_end_machine, running.machines[-1])
        try:
            running.wait_until_listed({**settings, "FXPOOL_CACHE_DIR": str(directory / "m0" / "c")}, machines)
            yield running
        except BaseException:
            for path in (directory / "scheduler.log", *(one.directory / "errors" for one in running.machines)):
                sys.stderr.write(f"{path.parent.name}/{path.name}:\n{path.read_text(errors='replace')[-3000:]}\n")
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_machine(machine: FarmMachine) -> None:
    """Stop a machine as its user would, and kill it if it does not."""
    if machine.process.poll() is None:
        machine.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            machine.process.wait(20)
    machine.kill()
    machine.process.wait()
