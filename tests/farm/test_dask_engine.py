"""A farm on Dask, without one: answers of a scheduler that the test plays, and workers that cannot start."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from remote_servers import free_port

from fxpool.codecache.bundle.authentication import new_key
from fxpool.errors import MissingExtraError
from fxpool.farm import machine
from fxpool.farm.engine import EngineError
from fxpool.pool.wire.farm import Machine

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="Dask is not installed"),
]

OWN = {"fxpool": "1", "torch": "1"}
ANNOUNCED = {"name": "m:1", "address": "", "slots": 2, "jobs": 1, "builds": OWN}


def listed(*announced: object) -> list[Machine]:
    """Return the machines that an engine lists if workers announce themselves so."""
    from fxpool.farm.dask_engine import DaskEngine  # needs Dask, which is optional

    workers = {
        f"tcp://m:{number}": {"last_seen": 1.0, "metrics": {"fxpool": one, "task_counts": {"executing": 2}}}
        for number, one in enumerate(announced)
    }

    async def identity(n_workers: int) -> dict[str, Any]:
        return {"workers": {**workers, "tcp://other": {"last_seen": 1.0, "metrics": {}}}}

    engine = DaskEngine("dask://127.0.0.1:9")
    engine._client = SimpleNamespace(scheduler=SimpleNamespace(identity=identity))
    return asyncio.run(engine.machines())


def test_machines_are_workers_that_announce_themselves() -> None:
    (machine,) = listed(ANNOUNCED)
    assert machine == Machine(name="m:1", address="tcp://m:0", slots=2, jobs=2, builds=OWN)
    assert machine.differing(OWN) == []


@pytest.mark.parametrize(
    ("announced", "name", "slots"),
    [
        ({**ANNOUNCED, "news": 1}, "m:1", 2),
        ({"name": "m:1", "builds": OWN}, "m:1", 1),
        ({**ANNOUNCED, "slots": 0}, "m:1", 1),
        ({**ANNOUNCED, "builds": ["torch"]}, "m:1", 2),
        ({**ANNOUNCED, "name": 1}, "tcp://m:1", 2),
        ("2", "tcp://m:1", 1),
    ],
)
def test_a_machine_of_another_version_is_listed_with_that_difference(announced: object, name: str, slots: int) -> None:
    same, other = listed(ANNOUNCED, announced)
    assert same.differing(OWN) == []
    assert (other.name, other.address, other.slots, other.jobs) == (name, "tcp://m:1", slots, 2)
    assert other.differing(OWN) == ["fxpool"] and other.differing({"torch": "1"}) == ["fxpool"]


# ---------------------------------------------------------------- `fxpool farm worker`


def worker(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``fxpool farm worker``, which has to fail at once."""
    return subprocess.run(
        [sys.executable, "-m", "fxpool", "farm", "worker", *arguments],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


def key_file(directory: Path) -> str:
    path = directory / "key"
    path.write_text(new_key())
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_a_worker_without_a_key_or_a_cache_is_one_message(engine: str, tmp_path: Path) -> None:
    pytest.importorskip("ray" if engine == "ray" else "distributed")
    address = f"{engine}://127.0.0.1:{free_port()}"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    key = key_file(tmp_path)
    for said, remedy, settings in (
        ("a farm needs a key file", "fxpool cache key FILE", {}),
        ("cannot read the key file", "fxpool cache key FILE", {"FXPOOL_REMOTE_KEY_FILE": str(tmp_path / "missing")}),
        ("writable by all users", "chmod go-w", {"FXPOOL_REMOTE_KEY_FILE": key, "FXPOOL_CACHE_DIR": str(shared)}),
    ):
        done = worker(address, **settings)
        assert done.returncode == 2 and done.stdout == "", done
        first, second = done.stderr.splitlines()
        assert first.startswith("fxpool: ") and said in first and remedy in second


@pytest.mark.parametrize("address", ["http://a:1", "dask://", "dask://a", "dask://a:b", "ray://a", "ray://a:99999"])
def test_a_worker_of_a_malformed_address_is_one_message(address: str) -> None:
    done = worker(address)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"fxpool: '{address}' is not the address of a farm"
    assert len(done.stderr.splitlines()) == 2


def test_a_worker_without_dask_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "distributed.py").write_text("raise ImportError")
    paths = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    done = worker("dask://127.0.0.1:9", PYTHONPATH=paths)
    assert done.returncode == 2 and "pip install 'fxpool[dask]'" in done.stderr
    assert done.stderr.startswith("fxpool: farms on Dask need distributed") and len(done.stderr.splitlines()) == 2
    assert MissingExtraError.__name__ not in done.stderr


def served(address: str, seconds: float) -> None:
    """Serve until SIGTERM, which comes after some seconds."""
    from fxpool.farm.dask_engine import DaskWorker  # as above

    timer = threading.Timer(seconds, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    try:
        DaskWorker(address, 1).serve()
    finally:
        timer.cancel()


def test_a_worker_says_once_that_it_waits_for_its_scheduler(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fxpool.farm import dask_engine  # as above

    monkeypatch.setattr(dask_engine, "SILENCE", 0.2)
    monkeypatch.setattr(dask_engine, "_AGAIN", 0.1)
    served(f"dask://127.0.0.1:{free_port()}", 2.0)
    (record,) = [one for one in caplog.records if one.name == "fxpool.farm.dask_engine"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("fxpool: no Dask scheduler answers at tcp://127.0.0.1:")
    assert ", waiting for one: " in record.getMessage()


@contextlib.contextmanager
def scheduler() -> Iterator[str]:
    """A scheduler in a thread of this process; yields its farm's address."""
    from distributed import Scheduler  # as above

    loop, ended = asyncio.new_event_loop(), asyncio.Event()
    address: concurrent.futures.Future[str] = concurrent.futures.Future()

    async def serve() -> None:
        async with Scheduler(host="127.0.0.1", port=0, dashboard=False, dashboard_address=":0") as running:
            address.set_result(running.address.replace("tcp://", "dask://"))
            await ended.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield address.result(60)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def test_a_machine_that_cannot_start_ends_the_worker_before_dask_s(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(slots: int) -> None:
        raise EngineError("no server")

    monkeypatch.setattr(machine, "LocalMachine", refuse)
    with scheduler() as address, pytest.raises(EngineError, match="no server"):
        served(address, 60.0)
    assert "Traceback" not in caplog.text and "failed to start" not in caplog.text


def test_a_worker_without_certificates_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"(?s)cannot connect to tls://.*correct distributed\.comm\.tls"):
        served(f"dask+tls://127.0.0.1:{free_port()}", 60.0)
