"""Every test of the pool leaves nothing: no process, no thread, no descriptor, no file in its private places."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pool_place import Place, until

from fxpool.pool import PoolClient

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(60))


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
        except OSError:
            pass
    return found


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    tmp_path_factory.getbasetemp()  # made now, for the session, not in the first test's directory
    base = Path(tempfile.mkdtemp(prefix="fxpt-", dir="/tmp"))
    made = Place(uuid.uuid4().hex, base / "r", base / "f")
    made.runtime.mkdir(0o700)
    made.files.mkdir(0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(made.files))
    before = _descriptors()
    try:
        yield made
        gone = until(lambda: not made.processes(), 5.0)
        left = [f"{p.pid} {p.name()} {p.cmdline()}" for p in made.processes()] if not gone else []
        until(lambda: not os.listdir(made.runtime), 5.0)
        assert not left, f"processes are left: {left}"
        assert not os.listdir(made.runtime), "the private directory is left"
        assert not [t for t in threading.enumerate() if t.name.startswith("fxpool")], "a thread is left"
        assert _descriptors() <= before, f"descriptors are left: {_descriptors() - before}"
        names = [n for n in os.listdir(made.files) if not n.startswith("mark")]
        assert not names, f"temporary files are left: {names}"
    finally:
        for process in made.processes():
            process.kill()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def make_client(place: Place) -> Iterator[Callable[..., PoolClient]]:
    """PoolClients that are closed after the test."""
    clients = []

    def make(**settings: Any) -> PoolClient:
        clients.append(PoolClient(place.config(**settings)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(make_client: Callable[..., PoolClient]) -> PoolClient:
    return make_client()
