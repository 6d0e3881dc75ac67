"""A dashboard as a user starts it, and what it is asked: a process of its own, a store, a runtime directory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fxpool.codecache.store.entry import Component, Entry, Metadata, Origin
from fxpool.codecache.store.store import LocalStore
from fxpool.pool import PoolClient, PoolConfig

__all__ = ["EVIL", "Place", "dashboard", "fill", "place", "pool"]

JOBS = Path(__file__).parents[2] / "pool"
#: A name that would run if it got into the page as it is.
EVIL = "<script>document.title='broken'</script><img src=x onerror=\"document.title='broken'\">&amp;"


@dataclass
class Place:
    """Directories of one test: short ones, as a socket's path may have no more than 107 bytes."""

    base: Path

    @property
    def store(self) -> Path:
        return self.base / "c"

    @property
    def runtime(self) -> Path:
        return self.base / "r"

    @property
    def environment(self) -> dict[str, str]:
        ours = {"FXPOOL_CACHE_DIR": str(self.store), "FXPOOL_RUNTIME_DIR": str(self.runtime)}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FXPOOL_")}
        return {**kept, **ours, "FXPOOL_CONFIG": os.devnull}


@contextlib.contextmanager
def place() -> Iterator[Place]:
    # In memory, if there is such a place: a thousand entries that are synced to a disk take ten seconds.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    with tempfile.TemporaryDirectory(prefix="fxpd-", dir=where) as name:
        made = Place(Path(name))
        made.runtime.mkdir(mode=0o700)
        yield made


@contextlib.contextmanager
def dashboard(place: Place, *arguments: str, browser: str = "") -> Iterator[str]:
    """`fxpool dashboard`; gives its address, and sees that Ctrl-C ends it with status 0. Opens only `browser`."""
    options = arguments if browser else ("--no-open", *arguments)
    child = subprocess.Popen(
        [sys.executable, "-m", "fxpool", "dashboard", *options],
        env={**place.environment, "BROWSER": browser},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), (address, child.stderr and child.stderr.read())
        yield address
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
        assert child.returncode == 0 and "Traceback" not in errors and "could not read" not in errors, errors
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def pool(place: Place, workers: int = 1) -> PoolClient:
    """A client of a server of this place's, whose jobs are those of the pool's tests."""
    return PoolClient(
        PoolConfig(
            host="shown",
            workers=workers,
            runtime_dir=str(place.runtime),
            sys_path=(str(JOBS),),
            environment={"PATH": os.environ["PATH"]},
            idle_timeout=0.2,
        )
    )


def fill(place: Place, count: int, first: int = 0, label: str = "graph") -> list[Entry]:
    """Publish small entries; every third is of the same function as the one before."""
    store = LocalStore(str(place.store))
    made = []
    for number in range(first, first + count):
        function = number - (number % 3 == 2)
        digests = {
            "graph": hashlib.sha256(b"graph %d" % function).hexdigest(),
            "inputs": hashlib.sha256(b"inputs %d" % number).hexdigest(),
        }
        entry = Entry(
            key=hashlib.sha256(b"%d" % number).hexdigest(),
            components=[Component(name, digest, f"{label} {name} {number}") for name, digest in digests.items()],
            metadata=Metadata(
                f"{label} {number}",
                time.time(),
                1.0 + number % 7,
                "2.13.0",
                origin=Origin(function=f"{label}_{function}", file="train.py", line=function, inputs=["float32[8]"]),
            ),
        )
        made.append(store.publish(entry, {}))
    return made


def ask(address: str, data: bytes) -> bytes:
    """All that the server at `address` answers to `data`."""
    port = int(address.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(1 << 16):
            answer += piece
    return answer
