"""A farm on Ray: a real cluster of one node, whose machines only pretend to compile."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import msgspec
import psutil
import pytest
from ray_cluster import Cluster, cluster

from fxpool.errors import MissingExtraError
from fxpool.farm import ray_actors, ray_engine
from fxpool.farm.engine import SILENCE, EngineError
from fxpool.farm.ray_engine import RayEngine, RayWorker

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


@pytest.fixture(scope="module")
def ray() -> Iterator[Cluster]:
    with cluster() as running:
        yield running


def _kill(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).kill()


@pytest.mark.slow
def test_two_hosts_that_ask_for_the_same_job_share_a_run(ray: Cluster) -> None:
    done = ray.directory / "done"
    with ray.machines(2):
        hosts = [ray.with_jobs(ray.host(2, f"same until {done}")) for _ in range(2)]
        done.touch()
        reports = [report for host in hosts for report in ray.reports(host)]
    (pid,) = ray.lines("started", "same")
    assert [report["answer"] for report in reports] == [str(pid)] * 2


@pytest.mark.slow
def test_jobs_run_on_all_machines_a_slot_at_a_time(ray: Cluster) -> None:
    with ray.machines(2):
        reports = ray.reports(ray.host(2, *(f"spread{number} sleep 0.5" for number in range(4))))
    assert sorted(map(len, _by_answer(reports).values())) == [2, 2]
    assert max(report["seconds"] for report in reports) >= 1.0


def _by_answer(reports: list[dict[str, object]]) -> dict[object, list[object]]:
    answers: dict[object, list[object]] = {}
    for report in reports:
        answers.setdefault(report["answer"], []).append(report)
    return answers


@pytest.mark.slow
def test_a_job_whose_machine_is_killed_runs_on_another_and_the_machine_comes_back(ray: Cluster) -> None:
    done = ray.directory / "after the kill"
    with ray.machines(2):
        host = ray.with_jobs(ray.host(2, f"killed until {done}"))
        ray.wait_for(lambda: ray.lines("started", "killed"))
        made = len(ray.lines("made", ""))
        _kill(ray.lines("started", "killed")[0])
        ray.wait_for(lambda: len(ray.lines("started", "killed")) == 2)
        done.touch()
        (report,) = ray.reports(host)
        first, second = ray.lines("started", "killed")
        assert report["answer"] == str(second) and first != second
        ray.wait_for(lambda: len(ray.lines("made", "")) > made)
        ray.reports(ray.host(2))


@pytest.mark.slow
def test_a_job_without_another_machine_fails_when_its_machine_is_killed(ray: Cluster) -> None:
    with ray.machines(1):
        host = ray.host(1, "alone sleep 60")
        ray.wait_for(lambda: ray.lines("started", "alone"))
        _kill(ray.lines("started", "alone")[0])
        (report,) = ray.reports(host)
        assert "the job's machine was lost and no other may run it" in report["error"]


@pytest.mark.slow
def test_a_withdrawn_job_ends_on_its_machine(ray: Cluster) -> None:
    with ray.machines(1):
        (report,) = ray.reports(ray.host(1, "withdrawn sleep 60", within=2.0))
        assert report["withdrawn"]
        ray.wait_for(lambda: ray.lines("cancelled", "withdrawn"), 5.0)
        reports = ray.reports(ray.host(1, "next sleep 0"))
        assert "answer" in reports[0]


@pytest.mark.slow
def test_the_job_of_a_killed_host_ends(ray: Cluster) -> None:
    with ray.machines(1):
        host = ray.host(1, "orphan sleep 60")
        ray.wait_for(lambda: ray.lines("started", "orphan"))
        host.kill()
        host.communicate()
        ray.wait_for(lambda: ray.lines("cancelled", "orphan"), 5 * SILENCE)


@pytest.mark.slow
def test_jobs_survive_a_restart_of_the_registry(ray: Cluster) -> None:
    done = ray.directory / "after the restart"
    with ray.machines(1):
        host = ray.with_jobs(ray.host(1, f"restart until {done}"))
        ray.wait_for(lambda: ray.lines("started", "restart"))
        (registry,) = ray.pids("ray::RegistryActor")
        _kill(registry)
        ray.wait_for(lambda: len(ray.lines("started", "restart")) == 2)
        done.touch()
        (report,) = ray.reports(host)
        assert "answer" in report


@pytest.mark.slow
def test_a_large_order_and_its_answer(ray: Cluster) -> None:
    with ray.machines(1):
        (report,) = ray.reports(ray.process("large", "20000000"))
        assert report["equal"]


@pytest.mark.slow
def test_a_machine_that_cannot_start_says_why(ray: Cluster) -> None:
    worker = ray.process("worker", FARM_FAILS="yes")
    output, _ = worker.communicate(timeout=60)
    assert "cannot be a part of the farm" in output and "ValueError: no key" in output


@pytest.mark.slow
def test_a_worker_that_is_ended_ends_its_machine(ray: Cluster) -> None:
    worker = ray.worker()
    ray.reports(ray.host(1))
    (machine,) = ray.pids("ray::MachineActor")
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=30)
    assert worker.returncode == 0
    assert machine in ray.lines("closed", "")
    ray.wait_for(lambda: not psutil.pid_exists(machine), 10.0)
    ray.reports(ray.host(0))


@pytest.mark.slow
def test_a_machine_ends_with_its_killed_worker(ray: Cluster) -> None:
    worker = ray.worker()
    ray.reports(ray.host(1))
    worker.kill()
    worker.communicate()
    ray.reports(ray.host(0))
    ray.wait_for(lambda: not ray.pids("ray::MachineActor"), 10.0)


@pytest.mark.slow
def test_jobs_are_lost_soon_after_the_head_is_killed_and_machines_join_the_next() -> None:
    with cluster() as ray:
        worker = ray.worker()
        host = ray.with_jobs(ray.host(1, "lost sleep 60"))
        ray.wait_for(lambda: ray.lines("started", "lost"))
        killed = time.monotonic()
        ray.kill(but=(host, worker))
        (report,) = ray.reports(host)
        assert "lost the job" in report["error"] or "does not answer" in report["error"]
        assert report["at"] - killed < SILENCE + 1.0
        ray.start()
        ray.wait_for(lambda: len(ray.lines("made", "")) == 2)
        ray.reports(ray.host(1))
        worker.terminate()
        worker.communicate(timeout=30)


def test_a_head_that_does_not_answer_is_an_error_soon() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"ray://127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        with pytest.raises(EngineError, match=f"the farm {address} does not answer: ConnectionRefusedError"):
            asyncio.run(RayEngine(address).connect())
        assert time.monotonic() - start < SILENCE


def test_a_worker_says_once_that_it_waits_for_a_head_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        worker = RayWorker(f"ray://127.0.0.1:{unused.getsockname()[1]}", 1)
        timer = threading.Timer(2.5, lambda: os.kill(os.getpid(), signal.SIGTERM))
        timer.start()
        _serve(worker)
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "does not answer: ConnectionRefusedError" in caplog.text


def _serve(worker: RayWorker) -> None:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        worker.serve()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_calls_without_a_connection_are_errors() -> None:
    engine = RayEngine("ray://127.0.0.1:1")
    for call in (engine.machines(), engine.run("k", b"", [], 0)):
        with pytest.raises(EngineError, match="not connected"):
            asyncio.run(_awaited(call))


async def _awaited(call: object) -> None:
    await call  # type: ignore[misc]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"farms on Ray need ray\[client\], .*\n.*pip install 'fxpool\[ray\]'"):
        RayEngine("ray://127.0.0.1:1")


def test_a_worker_s_node_is_this_machine_s() -> None:
    def node(name: str, address: str, host: str, alive: bool = True) -> dict[str, object]:
        return {"NodeID": name, "Alive": alive, "NodeManagerAddress": address, "NodeManagerHostname": host}

    def chosen(*nodes: dict[str, object]) -> str:
        return RayWorker("ray://head:10001", 1)._node(SimpleNamespace(nodes=lambda: nodes))

    this = socket.gethostname()
    other, named = node("other", "192.0.2.77", "other"), node("named", "192.0.2.78", this)
    own, dead = node("own", "127.0.0.1", "other"), node("dead", "127.0.0.1", this, alive=False)
    assert chosen(other, named, own) == "own"
    assert chosen(dead, other, named) == "named"
    with pytest.raises(EngineError, match="ray start --address=head:6379"):
        chosen(other, dead)


@pytest.mark.parametrize(
    ("described", "name"),
    [
        (msgspec.msgpack.encode({"name": "m:1", "address": "fxpool-m", "slots": 2, "builds": {}, "news": 1}), "m:1"),
        (msgspec.msgpack.encode({"name": 1, "address": "fxpool-m"}), "fxpool-m"),
        (b"\xc1", "unknown"),
    ],
)
def test_a_machine_of_another_version_is_listed_with_that_difference(described: bytes, name: str) -> None:
    machine = ray_engine._machine(described, 3)
    assert (machine.name, machine.jobs, machine.differing({"fxpool": "1", "torch": "1"})) == (name, 3, ["fxpool"])


def test_an_address_may_leave_out_the_port() -> None:
    assert ray_engine._host_and_port("ray://head") == ("head", 10001)
    assert ray_engine._host_and_port("ray://[::1]:7") == ("::1", 7)


def test_a_machine_s_environment_is_its_worker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("RAY_JOB_ID", "1")
    monkeypatch.setattr(sys, "path", ["/a"])
    ray_actors._become({"FXPOOL_WORKERS": "2", "RAY_ADDRESS": "x", "PYTHONPATH": "/b:/a:"})
    assert dict(os.environ) == {"FXPOOL_WORKERS": "2", "PYTHONPATH": "/b:/a:", "RAY_JOB_ID": "1"}
    assert sys.path == ["/b", "/a"]
