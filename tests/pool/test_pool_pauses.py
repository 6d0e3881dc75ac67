"""While a process measures nothing of a pool runs; and whoever dies meanwhile, nothing stays stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pool_place import Place, until

from fxpool.pool import Job, JobSpec, PoolClient
from fxpool.pool.client import pausing
from fxpool.pool.host import runtime_dir
from fxpool.pool.wire import messages as m
from fxpool.pool.wire.protocol import Channel

Make = Callable[..., PoolClient]

_MEASURES = """
import pathlib, sys, time
from fxpool.pool.client import pausing
paused = pausing.pause(pathlib.Path(sys.argv[1]), float(sys.argv[2]), 20.0)
print(paused.workers, flush=True)
time.sleep(60)
"""


class Count:
    """A job that counts in a file, and whether it does at this moment."""

    def __init__(self, client: PoolClient, area: Place, function: str = "counts", **spec: float) -> None:
        self._file, self._go = area.mark("mark-count"), area.mark("mark-go")
        self.job: Job = client.submit(
            f"pool_jobs:{function}",
            str(area.files).encode(),
            JobSpec(label="counts", **spec),  # type: ignore[arg-type]
        )
        assert until(lambda: self.size and client.status()["running"])

    @property
    def size(self) -> int:
        return self._file.stat().st_size if self._file.exists() else 0

    @property
    def goes_on(self) -> bool:
        before = self.size
        return until(lambda: self.size > before + 2, 5.0)

    @property
    def stands(self) -> bool:
        before = self.size
        time.sleep(0.3)
        return self.size == before

    def result(self) -> bytes:
        self._go.touch()
        return self.job.result(timeout=30)


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def measures(others: list[subprocess.Popen[str]], place: Place, seconds: float = 50.0) -> subprocess.Popen[str]:
    """Another process that has everything stand still."""
    command = [sys.executable, "-c", _MEASURES, str(place.runtime), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    others.append(process)
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    return process


@pytest.mark.parametrize("function", ["counts", "counts_in_a_child"])
def test_workers_and_their_compilers_stand_still(client: PoolClient, place: Place, function: str) -> None:
    count = Count(client, place, function)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    assert paused.workers == 1 and count.stands
    assert client.status()["paused"]
    paused.end()
    assert count.goes_on
    assert count.result() == b"counted"
    assert not paused.remarks
    assert not client.status()["paused"]


def test_no_job_begins(client: PoolClient, place: Place, others: list[subprocess.Popen[str]]) -> None:
    client.start(wait=True)
    process = measures(others, place)
    job = client.submit("pool_jobs:echo", b"x", JobSpec(label="echo"))
    time.sleep(0.5)
    assert not job.done() and client.status()["queued"] == 1
    process.kill()
    assert job.result(timeout=30) == b"x"


def test_who_dies_leaves_nothing_stopped(client: PoolClient, place: Place, others: list[subprocess.Popen[str]]) -> None:
    count = Count(client, place)
    process = measures(others, place)
    assert count.stands
    process.send_signal(signal.SIGKILL)
    assert count.goes_on
    assert count.result() == b"counted"


def test_a_pause_lasts_only_so_long(client: PoolClient, place: Place) -> None:
    count = Count(client, place)
    paused = pausing.pause(place.runtime, 0.5, 20.0)
    assert count.goes_on
    paused.end()
    assert any("the pause was over first" in remark for remark in paused.remarks)
    assert count.result() == b"counted"


def test_it_is_over_when_the_last_one_is(client: PoolClient, place: Place, others: list[subprocess.Popen[str]]) -> None:
    count = Count(client, place)
    first, second = measures(others, place), measures(others, place)
    first.kill()
    first.wait()
    assert count.stands
    second.kill()
    assert count.goes_on
    assert count.result() == b"counted"


def test_all_servers_stand_still(make_client: Make, place: Place) -> None:
    counts = Count(make_client(), place), Count(make_client(), place)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    assert paused.workers == 2 and counts[0].stands
    paused.end()
    assert [count.result() for count in counts] == [b"counted"] * 2


@pytest.mark.parametrize("victim", ["fxpool worker", "fxpool zygote"])
def test_what_is_killed_meanwhile_is_begun_again(client: PoolClient, place: Place, victim: str) -> None:
    count = Count(client, place)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    assert count.stands
    (process,) = place.called(victim)
    process.kill()
    assert until(lambda: not place.called("fxpool worker"))
    time.sleep(0.3)
    assert not place.called("fxpool worker"), "a job began during a measurement"
    paused.end()
    assert count.goes_on
    assert count.result() == b"counted"


def test_a_server_that_is_killed_leaves_nothing_stopped(client: PoolClient, place: Place) -> None:
    Count(client, place, "counts_in_a_child")
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    (server,) = place.called("fxpool server")
    server.kill()
    assert until(lambda: not place.processes()), [p.status() for p in place.processes()]
    paused.end()
    client.close()


def test_server_and_zygote_at_once(client: PoolClient, place: Place) -> None:
    Count(client, place, "counts_in_a_child")
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    (server,), (zygote,) = place.called("fxpool server"), place.called("fxpool zygote")
    server.kill()
    with contextlib.suppress(psutil.NoSuchProcess):  # it ends with the server
        zygote.kill()

    def is_stopped(process: psutil.Process) -> bool:
        try:
            return process.status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
        except psutil.NoSuchProcess:  # it ended after it was listed
            return False

    assert until(lambda: not any(map(is_stopped, place.processes())))
    paused.end()
    place.mark("mark-go").touch()
    client.close()


def test_the_time_is_not_the_jobs(make_client: Make, place: Place) -> None:
    count = Count(make_client(job_timeout=3.0), place)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    time.sleep(3.5)
    paused.end()
    assert count.goes_on
    assert count.result() == b"counted"


def test_who_submits_does_not_wait_for_itself(client: PoolClient, place: Place) -> None:
    client.start(wait=True)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    assert client.submit("pool_jobs:echo", b"x", JobSpec(label="graph 3")).result(timeout=30) == b"x"
    paused.end()
    assert paused.remarks == ["graph 3 was compiled while this process measured: call it once before"]


def test_a_worker_that_measures_goes_on(client: PoolClient, place: Place) -> None:
    count = Count(client, place)
    job = client.submit("pool_jobs:pauses_and_counts", str(place.runtime).encode(), JobSpec(label="measures"))
    assert job.result(timeout=30) == b"(1, [])"
    assert count.goes_on
    assert count.result() == b"counted"


def test_a_worker_that_is_stopped_while_it_asks_goes_on(
    client: PoolClient, place: Place, others: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    """It measures on another device; were it left stopped, it would wait for the end of its own pause."""
    client.start(wait=True)
    (server,) = [path for path in place.runtime.glob(f"{runtime_dir.PREFIX}*") if runtime_dir.holder(path) is not None]
    directory = tmp_path / "asks"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place.mark("mark-s")))
        listener.listen()
        data = "\0".join((str(server), str(place.mark("mark-s")), str(directory)))
        client.submit("pool_jobs:lends_its_connection", data.encode(), JobSpec(label="asks"))
        sender, _ = listener.accept()
        with sender:
            _, (descriptor,), _, _ = socket.recv_fds(sender, 1, 1)
    count, bystander = directory / "mark-count", Count(client, place)
    assert until(lambda: count.exists())
    measures(others, place)

    def goes_on() -> bool:
        before = count.stat().st_size
        return until(lambda: count.stat().st_size > before + 2, 1.0)

    assert not goes_on() and bystander.stands
    channel: Channel[m.ToClient] = Channel(socket.socket(fileno=descriptor), m.ToClient)
    channel.send(m.Pause(seconds=50.0))
    assert until(goes_on) and bystander.stands
    channel.close()
    others[0].kill()
    assert bystander.goes_on and goes_on()
    (directory / "mark-go").touch()
    assert bystander.result() == b"counted"


def test_a_visitor_keeps_no_server(make_client: Make, place: Place) -> None:
    client = make_client()
    client.start(wait=True)
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    client.close()
    assert until(lambda: not place.processes())
    paused.end()
    assert not paused.remarks


def test_where_nothing_runs_there_is_nothing_to_wait_for(place: Place) -> None:
    start = time.monotonic()
    paused = pausing.pause(place.runtime, 30.0, 20.0)
    paused.end()
    assert (paused.workers, paused.remarks) == (0, [])
    assert time.monotonic() - start < 10 and not os.listdir(place.runtime)
